"""papermill's own engine, with three additions: it says where it is, saves atomically, and knows how a kernel died."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jupyter_core.paths import jupyter_runtime_dir
from nbclient.exceptions import DeadKernelError
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager
from papermill.iorw import LocalHandler
from papermill.log import logger
from traitlets.config import Config

from rocmlab.runner import files

LONGEST_SOCKET_BYTES = 103  # sun_path less its end: 107 on Linux, 103 on macOS
Report = Callable[..., None]  # called with the name of an event and its facts


class KernelDied(Exception):
    """The kernel's process ended while the notebook needed it."""


class AtomicHandler(LocalHandler):  # type: ignore[misc]
    """papermill's local files, replaced at once; it writes often and a reader may come at any time."""

    def write(self, buf: str, path: str) -> None:
        """Write a notebook."""
        files.write_text(Path(path), buf)


class Manager(NotebookExecutionManager):  # type: ignore[misc]
    """papermill's record of an execution, which also reports each code cell."""

    def __init__(self, report: Report, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  papermill's own
        super().__init__(*arguments, **options)
        self.report = report
        code = [index for index, cell in enumerate(self.nb.cells) if cell.cell_type == "code"]
        self.numbers = {index: number for number, index in enumerate(code, 1)}  # of code cells, from 1

    def cell_start(self, cell: Any, cell_index: int, **options: Any) -> None:  # noqa: ANN401
        """Save, and report that a code cell starts."""
        super().cell_start(cell, cell_index, **options)
        if cell_index in self.numbers:
            number, total, title = self.numbers[cell_index], len(self.numbers), title_of(self.nb.cells, cell_index)
            sys.stdout.write(f"--- cell {number} of {total}: {title}\n")
            sys.stdout.flush()
            self.report("cell", index=cell_index, number=number, total=total, title=title)

    def cell_complete(self, cell: Any, cell_index: int, **options: Any) -> None:  # noqa: ANN401
        """Save, and report that a code cell has ended by itself; papermill calls this after a death as well."""
        super().cell_complete(cell, cell_index, **options)
        if cell_index in self.numbers and sys.exc_info()[0] is None:
            self.report("cell done", index=cell_index)


class Client(PapermillNotebookClient):  # type: ignore[misc]
    """papermill's client, which looks how the kernel ended before nbclient tidies it away."""

    def papermill_execute_cells(self) -> None:
        """Execute the cells."""
        try:
            super().papermill_execute_cells()
        except DeadKernelError as err:
            code = getattr(getattr(self.km.provisioner, "process", None), "returncode", None)
            raise KernelDied(_describe(code)) from err


def _describe(code: int | None) -> str:
    """Return how a kernel ended, from the exit status of its process."""
    if code is None:
        return "the kernel's process is gone"
    if code >= 0:
        return f"the kernel's process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", perhaps because the memory was full" if name == "SIGKILL" else ""
    return f"the kernel's process was ended by {name}{hint}"


def engine(report: Report, started: Callable[[Manager], None]) -> type:
    """Return an engine for `papermill_engines.register`.

    Args:
        report: called with what happens.
        started: called with the manager, so that a signal handler can save.
    """

    class Engine(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_notebook(cls, nb: Any, kernel_name: str, output_path: str | None = None, **options: Any) -> Any:  # noqa: ANN401
            autosave = options.pop("autosave_cell_every", 30)
            options = {name: value for name, value in options.items() if name not in ("progress_bar", "log_output")}
            manager = Manager(report, nb, output_path=output_path, progress_bar=False, autosave_cell_every=autosave)
            started(manager)
            manager.notebook_start()
            try:
                cls.execute_managed_notebook(manager, kernel_name, **options)
            finally:
                manager.notebook_complete()
            return manager.nb

        @classmethod
        def execute_managed_notebook(cls, nb_man: Manager, kernel_name: str, **options: Any) -> None:  # noqa: ANN401
            Client(
                nb_man,
                kernel_name=kernel_name,
                timeout=options.get("execution_timeout"),
                startup_timeout=options["start_timeout"],
                stdout_file=options.get("stdout_file"),
                stderr_file=options.get("stderr_file"),
                log=logger,
                config=_transport(),
            ).execute()

    return Engine


def _transport() -> Config:
    """Return a configuration with which the kernel is reached through sockets in the runtime folder, the job's own.

    TCP ports are chosen before the kernel binds them, which fails now and then when notebooks start side by side, and
    any user of the machine can listen to them. A socket's path has a limit, though.
    """
    sockets = os.path.join(jupyter_runtime_dir(), "kernel")  # jupyter_client adds -1 to -5
    if len(os.fsencode(f"{sockets}-1")) > LONGEST_SOCKET_BYTES:
        return Config()
    return Config({"KernelManager": {"transport": "ipc", "ip": sockets, "connection_file": f"{sockets}.json"}})


def title_of(cells: list[Any], index: int) -> str:
    """Return what to call a cell: `parameters`, its first comment, the heading above it, or its first line."""
    if {"parameters", "injected-parameters"} & set(cells[index]["metadata"].get("tags", [])):
        return "parameters"
    lines = [line.strip() for line in cells[index]["source"].splitlines() if line.strip()]
    first = lines[0] if lines else "(empty)"
    if first.startswith("#") and not first.startswith("#!"):
        return first.lstrip("#% ").strip()[:80] or "(comment)"
    return _heading(cells[:index]) or first[:80]


def _heading(above: list[Any]) -> str | None:
    """Return the nearest heading; the notebook's own title only where it is right above."""
    for distance, cell in enumerate(reversed(above)):
        if cell["cell_type"] == "markdown":
            level = "#" if distance == 0 else "##"
            headings = [line for line in cell["source"].splitlines() if line.startswith(level)]
            if headings:
                return str(headings[-1].lstrip("# ").strip()[:80])
    return None


def escape(path: str) -> str:
    """Return a path that survives papermill, which takes `{name}` in it for a parameter."""
    return path.replace("{", "{{").replace("}", "}}")


def in_folder(path: str) -> str:
    """Return the folder of a path, with its separator, as a prefix for papermill's handlers."""
    return os.path.join(os.path.dirname(path), "")
