"""The question before a command stops or restarts a lab: what runs there, and may it end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from rocmlab.base.errors import RocmlabError

TYPE_CHECKING = False  # a lab's own commands import this for its options alone
if TYPE_CHECKING:
    import argparse

    from rocmlab.stack import busy
    from rocmlab.stack.lab import Lab, Say

LOOK_AGAIN_SECONDS = 2.0
TRUTH = {**dict.fromkeys(("1", "yes", "on", "true"), True), **dict.fromkeys(("", "0", "no", "off", "false"), False)}
WAITING = "waiting until nothing computes (Ctrl-C ends the wait and changes nothing):"
LOST = "what kernels have in memory is lost when they stop"


class LabIsBusy(RocmlabError):
    """Something runs that the command would end."""


@dataclass(frozen=True)
class Consent:
    """What the user allows for what runs."""

    force: bool = False  # stop it
    waits: bool = False  # wait until nothing computes


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add `--force` and `--when idle`."""
    parser.add_argument("--force", action="store_true", help="even if this ends notebooks or runs (or FORCE=1)")
    parser.add_argument("--when", choices=["idle"], help="wait until nothing computes, then do it (or WHEN=idle)")


def flag(name: str) -> bool:
    """Return whether a variable such as FORCE, which make passes, is true; raise RocmlabError if it is neither."""
    value = os.environ.get(name, "")
    found = TRUTH.get(value.strip().lower())
    if found is None:
        raise RocmlabError(
            f"invalid {name}={value}", "1, yes, on and true are yes; 0, no, off, false and empty are no", f"{name}=1"
        )
    return found


def agrees(question: str) -> bool:
    """Return whether the user says yes on the terminal; Ctrl-D is a no."""
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def consent(chosen: argparse.Namespace) -> Consent:
    """Return the options' values, or those of FORCE and WHEN, which is how make passes them.

    Raises:
        RocmlabError: WHEN is not `idle`, or FORCE is neither yes nor no.
    """
    when = chosen.when or os.environ.get("WHEN", "")
    if when not in ("", "idle"):
        raise RocmlabError(f"invalid WHEN={when}", "the only value is idle: wait until nothing computes", "WHEN=idle")
    return Consent(chosen.force or flag("FORCE"), when == "idle")


def given(chosen: argparse.Namespace) -> list[str]:
    """Return the options as they were given, for a command that runs another one."""
    return [*(["--force"] if chosen.force else []), *(["--when", chosen.when] if chosen.when else [])]


@dataclass(frozen=True)
class Stop:
    """What a command is about to do to a lab."""

    command: str  # as the user typed it: `make down`
    does: str  # what it does to the lab: stops, restarts
    ends_idle: bool = False  # idle kernels may end with it, because the user requested exactly this
    ends_runs: bool = False  # runs outside of the server end with it as well: image or environment goes
    note: str = ""  # a note for the error


def check(lab: Lab, stop: Stop, given: Consent, say: Say, *, may_wait: bool = True) -> None:
    """Make sure that a command may stop or restart a lab: now, by force, or after a wait for what computes.

    Args:
        lab: as it runs now; nothing that does not run is in the way.
        stop: what is to be done to it.
        given: what the user allows.
        say: prints a line.
        may_wait: False to raise where it would wait.

    Raises:
        LabIsBusy: something runs that it would end, or it is unknown what runs. Nothing was changed.
    """
    from rocmlab.stack import busy

    shown = ""
    while True:
        found = busy.find(lab)
        ended = [work for work in found.works if work.is_open or stop.ends_runs]
        if given.force:
            _announce(ended, found.unknown, stop, say)
            return
        if found.unknown:
            raise _unknown(found.unknown, stop)
        blocking = [work for work in ended if _blocks(work, stop, given)]
        if not blocking:
            _announce(ended, "", stop, say)
            return
        if not (given.waits and may_wait):
            raise _refusal(blocking, ended, stop)
        if (names := "\n".join(work.what for work in blocking)) != shown:
            say(WAITING)
            for line in busy.lines(blocking).splitlines():
                say(f"  {line}")
            shown = names
        time.sleep(LOOK_AGAIN_SECONDS)


def _blocks(work: busy.Work, stop: Stop, given: Consent) -> bool:
    """Return whether something keeps the command from being done now."""
    if work.is_busy:
        return True
    if given.waits:  # idle ones may end; one that has just worked may be between two cells
        return work.is_fresh
    return not stop.ends_idle


def _announce(ended: list[busy.Work], unknown: str, stop: Stop, say: Say) -> None:
    """Name what ends, before it does."""
    from rocmlab.stack import busy

    if unknown:
        say(f"what runs in the lab is not known: {unknown}")
    if ended:
        say(f"{stop.command} {stop.does} the lab and ends what runs in it; variables in memory are lost:")
        for line in busy.lines(ended).splitlines():
            say(f"  {line}")


def _refusal(blocking: list[busy.Work], ended: list[busy.Work], stop: Stop) -> LabIsBusy:
    from rocmlab.stack import busy

    count = f"{len(blocking)} task{'s' * (len(blocking) != 1)} run{'s' * (len(blocking) == 1)} in it"
    others = [work for work in ended if work not in blocking]
    why = [busy.lines(blocking), *([f"and idle: {busy.lines(others)}"] if others else []), LOST]
    return LabIsBusy(
        f"{stop.command} {stop.does} the lab, and {count}",
        "\n".join([*why, *([stop.note] if stop.note else [])]),
        f"{stop.command} WHEN=idle waits until nothing computes; {stop.command} FORCE=1 does it now",
        exit_code=1,
    )


def _unknown(unknown: str, stop: Stop) -> LabIsBusy:
    return LabIsBusy(
        f"{stop.command} {stop.does} the lab, and it is not known what runs in it",
        "\n".join([unknown, *([stop.note] if stop.note else [])]),
        f"make logs shows what it does; {stop.command} FORCE=1 does it anyway",
        exit_code=1,
    )
