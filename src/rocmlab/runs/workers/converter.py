"""The process of a run that converts executed notebooks to HTML, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from pathlib import Path

from rocmlab.kernels import memory
from rocmlab.runs.workers.channel import Link

PROGRAM = "rocmlab.runs.workers.converting"
CONVERSION_SECONDS = 60.0  # for one notebook; then the process is killed
QUICK_SECONDS = 5.0  # a job that is past half of its cells in that time
ATTEMPTS = 2  # at a conversion; the process may have been killed for lack of memory that others used


class Converter:
    """It starts its process when there is something to convert, or may be soon."""

    def __init__(self, environment: Mapping[str, str], *, is_on: bool = True) -> None:
        self.environment = environment  # which the process inherits
        self.is_on = is_on  # whether anything is converted
        self._link: Link | None = None
        self._turn = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a notebook is being converted."""
        return self._turn.locked()

    def launch(self) -> Link:
        """Start a process.

        Raises:
            OSError: none could be started.
        """
        link = Link(PROGRAM, self.environment)
        memory.make_expendable(link.process.pid)
        return link

    async def release(self, link: Link) -> None:
        """End a process that is not needed any more."""
        await link.close()

    def expect(self, cell: int, cells: int, seconds: float) -> None:
        """Get ready if a job may end soon; that takes half a second, and memory until the run is over.

        A cell begins, counted from 1; a job that has run for long may end half a second later.
        """
        is_quick = seconds < QUICK_SECONDS and 2 * cell > cells
        if self.is_on and (is_quick or cell >= cells):
            with contextlib.suppress(OSError):  # reported when something is to be converted
                self._start()

    async def convert(self, notebook: Path, target: Path) -> str | None:
        """Convert a notebook to HTML; return why there is none, None if there is."""
        async with self._turn:
            try:
                why = await self._convert({"notebook": str(notebook), "target": str(target)})
            except asyncio.TimeoutError:
                why = f"it took longer than {CONVERSION_SECONDS:g} s"
                await self._end()
            except OSError as err:
                why = f"no process could be started for it: {err}"
        return None if why is None else why[-500:]

    def stop(self) -> None:
        """Convert nothing any more: someone is in a hurry."""
        self.is_on = False
        if self._link is not None:
            self._link.signal(signal.SIGKILL)

    async def close(self) -> None:
        """Convert nothing any more, and end the process."""
        self.is_on = False
        await self._end()

    async def _convert(self, command: dict[str, str]) -> str | None:
        why = ""
        for _ in range(ATTEMPTS):
            if not self.is_on:
                break
            link = self._start()
            if link.send(command):
                event = await asyncio.wait_for(link.event(), CONVERSION_SECONDS)
                if event is not None:
                    return None if event.get("message") is None else str(event["message"])
            code = await link.exit_code()
            why = link.fault or link.last_output().strip() or f"its process ended with {code}"
            await self._end()
        return why if self.is_on else "the run was ended"

    def _start(self) -> Link:
        if self._link is None or not self._link.is_alive:
            self._link = self.launch()
        return self._link

    async def _end(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await self.release(link)
