"""Reads what one AMD GPU reports, once or again and again: files stay open, and what has not changed is not parsed.

Of the table `gpu_metrics` only those numbers are taken which no file holds, and the card's count of its energy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from rocmlab.devices import gpu_metrics, roots, sensors
from rocmlab.devices.kept_file import KeptFile, read_all
from rocmlab.devices.model import Sample
from rocmlab.devices.sensors import FAN, RULES, Source, source

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

    from rocmlab.devices.gpu_metrics import Column

FIND_SECONDS = 600.0  # after which files that were missing are looked for again
NAMES = tuple(field.name for field in fields(Sample))
THROTTLE, ENERGY = "throttle_reasons", "energy_joules"


class CardReader:
    """Reads one GPU through descriptors that stay open; whatever cannot be read, or cannot be true, is None.

    A partition other than the first has no sensors of its own: those of the whole GPU are reported by partition 0, so
    that nothing counts twice.
    """

    def __init__(
        self, folder: Path, root: Path, errors_seconds: float = 0.0, fields: Collection[str] | None = None
    ) -> None:
        """Prepare to read.

        Args:
            folder: of the device, below the root.
            root: of the host.
            errors_seconds: how old counts of memory errors may be: each look at them asks the card's firmware.
            fields: of a Sample, all in RULES, that are read, and in any case the card's energy; None for everything.
        """
        self._folder_handle = -1  # on a simulated host
        self.energy_joules: float | None = None  # counted by the card until the last reading; None where it does not
        self._folder = folder
        self._simulated = os.fspath(root) if roots.is_simulated(root) else None
        self._errors_seconds = errors_seconds
        self._fields = fields
        self._status = KeptFile(folder / "power/runtime_status", roots.to_text)
        self._card: _Card | None = None  # none before it was seen awake
        self._stamp: tuple[int, int] | None = (-1, -1)  # of its folder; nothing is known of it yet
        self._find_at = 0.0

    def read(self) -> Sample:
        """Return what it reports now; a sleeping GPU is not woken."""
        now = time.time()
        simulated = self._simulated
        is_announced = roots.on_read is not None
        if simulated is not None:
            is_announced = roots.must_announce(simulated)
            if self._stamp != self._new_stamp():
                self._renew()
        if self._status.read(is_announced) in sensors.ASLEEP:
            return Sample(now, is_asleep=True)
        card = self._card
        if card is None or time.monotonic() > self._find_at:
            card = self._open()
        if not card.read(is_announced, self._errors_seconds):
            asked_at = card.errors_at
            card = self._open()  # it may be another one by now, whose sensors have another number
            card.errors_at = asked_at  # the firmware of one that fails is not asked more often
            card.read(is_announced, self._errors_seconds)
        self.energy_joules = card.energy_joules
        values = card.values
        values["time_seconds"] = now
        sample = object.__new__(Sample)  # a frozen dataclass takes 8 µs to fill its fields one by one; this takes half
        sample.__dict__.update(values)
        return sample

    def _new_stamp(self) -> tuple[int, int] | None:
        """Return what changes when the folder is replaced or gets other files; None where there is none.

        A simulated host is checked, since its deleted files can still be read. A removed real card fails every reading.
        """
        try:
            found = os.fstat(self._folder_handle)
        except OSError:
            return None
        return found.st_nlink, found.st_mtime_ns

    def _renew(self) -> None:
        """Forget the files, and which folder it was."""
        self.close()
        if self._simulated is not None:
            with suppress(OSError):  # there is none: the next reading looks again
                self._folder_handle = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stamp = self._new_stamp()

    def _open(self) -> _Card:
        """Find the files again."""
        if self._simulated is not None and self._folder_handle < 0:
            self._renew()  # there was no folder when it was last looked for
        self._close_card()
        self._find_at = time.monotonic() + FIND_SECONDS
        self._card = _Card(sensors.find_files(self._folder), self._fields)
        return self._card

    def close(self) -> None:
        """Close all descriptors; another reading opens them again."""
        self._status.close()
        self._close_card()
        if self._folder_handle >= 0:
            handle, self._folder_handle = self._folder_handle, -1
            os.close(handle)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # `os` may be gone when the interpreter ends
        if self._folder_handle >= 0:
            close(self._folder_handle)

    def _close_card(self) -> None:
        if self._card is not None:
            self._card.close()
            self._card = None


class _Card:
    """The files of a GPU that is awake, and the fields of a Sample that they make."""

    def __init__(self, found: sensors.Files, fields: Collection[str] | None) -> None:
        self.values: dict[str, Any] = {**dict.fromkeys(NAMES), "is_asleep": False}
        self.energy_joules: float | None = None
        self._signals: dict[str, int | None] = dict.fromkeys(FAN)
        self._candidates: dict[str, list[Any]] = {name: [None] * len(rule.sources) for name, rule in RULES.items()}
        names = set(found.texts) if fields is None else {name for field in fields for name, _ in RULES[field].sources}
        sources = {name: source(name) for name, path in found.texts.items() if name in names and os.path.lexists(path)}
        files = {name: KeptFile(found.texts[name], source.decode) for name, source in sources.items()}
        self._sources = [(files[name], sources[name]) for name in files if name not in sensors.CONSTANT]
        self._files = [file for file, _ in self._sources]
        self._contents: list[bytes | None] = [None] * len(self._files)
        self._is_link = [name in sensors.LINK for name in files if name not in sensors.CONSTANT]
        self._constants = [(files[name], sources[name]) for name in files if name in sensors.CONSTANT]
        errors = found.errors if fields is None else {}
        self._errors = {block: KeptFile(path, roots.to_text) for block, path in errors.items()}
        self._error_files = list(self._errors.values())
        self._error_contents: list[bytes | None] = [None] * len(self._errors)
        self.errors_at = float("-inf")  # when its counts of memory errors were last read
        self._table = _Table(found.metrics, fields) if os.path.lexists(found.metrics) else None

    def read(self, is_announced: bool, errors_seconds: float) -> bool:
        """Bring the values up to date; return whether anything that changes could be read just now.

        The PCIe link does not count: it belongs to the bus, and can be read without the driver.
        """
        contents = read_all(self._files, is_announced)
        if contents != self._contents or self._constants:
            for place, content in enumerate(contents):
                if content != self._contents[place]:
                    file, source = self._sources[place]
                    self._contents[place] = file.take(content)
                    self._put(source, file.meaning)
            if self._constants:
                self._read_constants(is_announced)
            self._settle()
        is_up = any(content and not is_link for content, is_link in zip(contents, self._is_link, strict=True))
        if self._error_files and self._read_errors(is_announced, errors_seconds):
            is_up = True
        if self._table:
            self._table.read(is_announced, self.values)
            self.energy_joules = self._table.energy_joules
            is_up = is_up or self._table.is_readable
        return is_up

    def _put(self, source: Source, meaning: Sequence[Any] | None) -> None:
        """Put what a file means into the fields that it is a source of."""
        values = self.values
        for turn, (field, place) in enumerate(source.uses):
            value = None if meaning is None else meaning[turn]
            candidates = self._candidates.get(field)
            if candidates is None:  # the fan's, or the one field that is a word
                (self._signals if field in FAN else values)[field] = value
                continue
            candidates[place] = value
            if place and candidates[0] is not None:
                value = candidates[0]
            elif value is None:
                value = next((other for other in candidates if other is not None), None)
            values[field] = value
            if self._table and RULES[field].column:
                self._table.want(field, is_wanted=value is None)

    def _read_constants(self, is_announced: bool) -> None:
        """Read what stays as it is, until it has been read."""
        for file, held in self._constants:
            if file.read(is_announced) is not None:
                self._put(held, file.meaning)
        for file, _ in self._constants:
            file.close()
        self._constants = [(file, held) for file, held in self._constants if file.content is None]

    def _settle(self) -> None:
        """Settle what several fields or files decide together; memory in use ends at what there is."""
        values, signals = self.values, self._signals
        has_fan = any(value is not None for value in signals.values())
        for used, total in (("vram_used_bytes", "vram_total_bytes"), ("gtt_used_bytes", "gtt_total_bytes")):
            read, most = self._candidates[used][0], values[total]
            values[used] = None if read is not None and most is not None and read > most else read
        values["fan_percent"] = sensors.fan_percent(*(signals[name] for name in FAN)) if has_fan else None

    def _read_errors(self, is_announced: bool, errors_seconds: float) -> bool:
        """Bring the counts of memory errors up to date if that is due; return whether one could be read just now."""
        now = time.monotonic()
        if now - self.errors_at < errors_seconds:
            return False
        self.errors_at = now
        contents = read_all(self._error_files, is_announced)
        if contents != self._error_contents:
            pairs = zip(self._error_files, contents, strict=True)
            self._error_contents = [file.take(content) for file, content in pairs]
            texts = {block: file.meaning for block, file in self._errors.items() if file.meaning}
            self.values["ecc_corrected"], self.values["ecc_uncorrected"] = sensors.errors(texts)
        return any(contents)

    def close(self) -> None:
        for file in (*self._files, *self._error_files, *(file for file, _ in self._constants)):
            file.close()
        if self._table:
            self._table.close()


class _Table:
    """The table `gpu_metrics`: read only for values that no file has, or for energy."""

    def __init__(self, path: Path, fields: Collection[str] | None) -> None:
        self.energy_joules: float | None = None
        self.is_readable = False
        self._file = KeptFile(path, lambda content: None)
        self._wants_throttle = fields is None
        names = RULES if fields is None else fields
        self._wanted = {name for name in names if RULES[name].column}  # what no file holds
        self._is_useful = True  # as far as its revision is known
        self._content: bytes | None = None
        self._form: tuple[int, bytes] | None = None  # length and first bytes of tables that `_columns` fit
        self._columns: list[tuple[str, str, Column]] = []  # field, its unit, where it is
        self._throttle: Column | None = None
        self._energy: Column | None = None

    def want(self, field: str, *, is_wanted: bool) -> None:
        """Have a field read here, or not any more."""
        if is_wanted != (field in self._wanted):
            (self._wanted.add if is_wanted else self._wanted.discard)(field)
            self._form, self._is_useful = None, True
        if is_wanted:
            self._content = None  # what was taken from it has just been overwritten

    def read(self, is_announced: bool, values: dict[str, Any]) -> None:
        """Add the table's values to the fields of a Sample."""
        if not self._is_useful:
            self.is_readable = False
            return
        content = self._file.fetch(is_announced)
        if content is not None and len(content) >= self._file.limit:
            content = self._file.take(content)
        self.is_readable = bool(content)
        if content == self._content and content is not None:
            return
        self._content = content
        if content is not None and self._form == (len(content), content[:4]):
            self._pick(content, values)
        else:
            self._parse(content, values)

    def _pick(self, content: bytes, values: dict[str, Any]) -> None:
        for field, unit, column in self._columns:
            values[field] = sensors.capped(unit, sensors.known(unit, column.read(content)))
        if self._throttle:
            bits = self._throttle.read(content)
            values[THROTTLE] = None if bits is None else gpu_metrics.throttle_words(int(bits))
        if self._energy:
            count = self._energy.read(content)
            self.energy_joules = None if count is None else count * gpu_metrics.JOULES_PER_COUNT

    def _parse(self, content: bytes | None, values: dict[str, Any]) -> None:
        table = gpu_metrics.parse(content) if content else None
        for field in self._wanted:
            unit, _, column = RULES[field]
            found = getattr(table, column) if table and column else None
            values[field] = sensors.capped(unit, sensors.known(unit, found))
        if self._wants_throttle:
            values[THROTTLE] = table.throttle_reasons if table else None
        self.energy_joules = table.energy_joules if table else None
        self._form = None
        if table and content:
            self._plan(content, table.revision)

    def _plan(self, content: bytes, revision: tuple[int, int]) -> None:
        """Find out what of such a table is wanted, and whether that is possible without parsing all of it."""
        told, columns = gpu_metrics.provided(revision), gpu_metrics.columns(revision)
        if told is None or columns is None:
            return
        wanted = {field: str(RULES[field].column) for field in self._wanted if RULES[field].column in told}
        has_throttle, has_energy = self._wants_throttle and THROTTLE in told, ENERGY in told
        self._is_useful = bool(wanted) or has_throttle or has_energy
        if all(column in columns for column in wanted.values()):
            self._columns = [(field, RULES[field].unit, columns[column]) for field, column in wanted.items()]
            self._throttle = _column(columns, "throttle", is_there=has_throttle)
            self._energy = _column(columns, "energy_count", is_there=has_energy)
            self._form = (len(content), content[:4])

    def close(self) -> None:
        self._file.close()


def _column(columns: Mapping[str, Column], name: str, *, is_there: bool) -> Column | None:
    return columns[name] if is_there else None
