"""What the first `make up` leaves to the background: the frameworks, and compiling what was installed.

One process at a time, in a session of its own. It has the lock of `installation` until the environment is whole, and
so has what it starts: while a uv whose parent was killed still writes, no other installation begins.

Run as `python -m rocmlab.stack.installing ENVIRONMENT DESCRIPTOR`: the fields of `Environment` as JSON, and the lock.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import rocmlab
from rocmlab.base import files, identity, installation
from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.stack import making, packages
from rocmlab.stack.daemon import Daemon
from rocmlab.stack.environment import Environment
from rocmlab.stack.lab import Say

FIX = f"make up      # retries; complete log: {installation.LOG}"
END_SECONDS = 5.0
INSTALL_NICENESS, COMPILE_NICENESS = 5, 14  # together 19, the lowest priority


class Installer(Daemon):
    """The process that finishes one project's environment, running or not."""

    variable = "ROCMLAB_INSTALLER"

    def __init__(self, project: Path) -> None:
        super().__init__(project / ".rocmlab/installing.json", secrets.token_hex(16))
        self.project = project

    def begin(self, environment: Environment) -> None:
        """Start it if there is something to do, and nothing does it already."""
        is_compiled = not packages.needs_compiling(environment.folder) or self.find() is not None
        if not environment.is_part() and is_compiled:
            return
        if (lock := installation.take(self.project, None)) is None:
            return
        try:
            self.end()  # without the lock it installs nothing more
            (environment.folder / installation.FAILURE).unlink(missing_ok=True)
            given = {**vars(environment), "project": str(environment.project), "building": None, "descriptors": ()}
            command = [sys.executable, "-m", "rocmlab.stack.installing", json.dumps(given), str(lock)]
            variables = {**os.environ, "PYTHONPATH": str(Path(rocmlab.__file__).parents[1])}
            log = self.project / installation.LOG
            self.launch(command, variables, {}, log=log, cwd=self.project, keep=[lock])
        finally:
            os.close(lock)

    def end(self) -> None:
        """End it and what it has started; the next `make up` continues."""
        if found := self.find():
            family = identity.family(found)
            identity.send(family, signal.SIGTERM)
            if not identity.wait_gone(family, END_SECONDS):
                identity.send(family, signal.SIGKILL)
                identity.wait_gone(family, END_SECONDS)
        self.forget()

    @contextmanager
    def paused(self, say: Say) -> Iterator[None]:
        """Be the only one that changes the environment: wait until nothing is installed, and end a compilation."""
        lock = installation.take(self.project, say)
        try:
            self.end()
            yield
        finally:
            if lock is not None:
                os.close(lock)


def main(arguments: Sequence[str]) -> int:
    """Install what is missing, show in the launcher how that ended, and compile; return the exit code."""
    given = json.loads(arguments[0])
    lock = int(arguments[1])
    environment = Environment(**{**given, "project": Path(given["project"]), "descriptors": (lock,)})
    os.nice(INSTALL_NICENESS)
    try:
        if environment.is_part():
            making.finish(environment, _say)
    except Exception as err:
        with suppress(OSError):  # the disk is full, for example
            _say(str(err) if isinstance(err, (RocmlabError, OSError)) else traceback.format_exc())
        with suppress(OSError):
            _note(environment, err)
        return 1
    finally:
        os.close(lock)
        environment.mark_kernels()
    os.nice(COMPILE_NICENESS)
    if packages.needs_compiling(environment.folder):
        packages.compile_all(environment.folder, environment.interpreter)
    return 0


def _note(environment: Environment, err: Exception) -> None:
    """Have `make status` and the launcher show why it failed."""
    is_known = isinstance(err, (RocmlabError, OSError))
    problem = err.problem if isinstance(err, RocmlabError) else Problem(str(err) if is_known else repr(err), "", "")
    why = f"{problem.what}: {problem.why}" if problem.why else problem.what
    found = Problem(f"{installation.FRAMEWORKS} could not be installed", why, FIX)
    files.write_text(environment.folder / installation.FAILURE, json.dumps(found.as_dict()))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
