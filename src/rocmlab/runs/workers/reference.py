"""papermill's own engine, as a reference to compare with: `rocmlab run --engine papermill`.

It saves as often as papermill does and calls cells completed that never ran; it only says where it is, and the runner
corrects the notebook of a job that was cut short.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbclient.util import run_sync
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.log import logger

from rocmlab.base import private
from rocmlab.base.formatting import ANSI
from rocmlab.kernels import kernelspec
from rocmlab.kernels.forkserver import inheritance
from rocmlab.kernels.forkserver.lifeline import Lifeline
from rocmlab.notebook.cells import numbered, title_of
from rocmlab.notebook.notebooks import escape
from rocmlab.notebook.outcome import Outcome, describe

if TYPE_CHECKING:
    from rocmlab.kernels.leases import Lease

Report = Callable[..., None]  # called with the name of an event and its facts


class KernelDied(Exception):
    """The kernel's process ended while the notebook needed it."""


class Manager(NotebookExecutionManager):  # type: ignore[misc]
    """papermill's record of an execution, which also reports each code cell."""

    def __init__(self, report: Report, *arguments: Any, **options: Any) -> None:  # noqa: ANN401  papermill's own
        super().__init__(*arguments, **options)
        self.report = report
        self.numbers = numbered(self.nb.cells)

    def cell_start(self, cell: Any, cell_index: int, **options: Any) -> None:  # noqa: ANN401
        """Save, and report that a code cell starts."""
        super().cell_start(cell, cell_index, **options)
        if cell_index in self.numbers:
            number, total = self.numbers[cell_index], max(self.numbers.values())
            title = title_of(self.nb.cells, cell_index)
            sys.stdout.write(f"--- cell {number} of {total}: {title}\n")
            sys.stdout.flush()
            self.report("cell", index=cell_index, number=number, total=total, title=title)

    def cell_complete(self, cell: Any, cell_index: int, **options: Any) -> None:  # noqa: ANN401
        """Save, and report that a code cell has ended by itself; papermill calls this after a death as well."""
        super().cell_complete(cell, cell_index, **options)
        if cell_index in self.numbers and sys.exc_info()[0] is None:
            self.report("cell done", index=cell_index)


class Client(PapermillNotebookClient):  # type: ignore[misc]
    """papermill's client, which hands a lease on, and looks how the kernel ended before nbclient tidies it away."""

    def __init__(self, *arguments: Any, lease: Lease | None, **options: Any) -> None:  # noqa: ANN401  papermill's own
        super().__init__(*arguments, **options)
        self._lease = lease
        self._lifeline = Lifeline()  # closed with this process: a kernel of the reference has to end with it as well

    async def async_start_new_kernel(self, **options: Any) -> None:  # noqa: ANN401  those of jupyter_client
        """Start the kernel; where that is a process of this machine, it inherits the lease."""
        specification = self.km.kernel_spec
        if not kernelspec.is_local(specification.metadata):
            await super().async_start_new_kernel(**options)
            return
        specification.metadata.pop("kernel_provisioner", None)
        locks = self._lease.descriptors if self._lease else ()
        self.extra_arguments += inheritance.keeping(specification.argv, locks)[len(specification.argv) :]
        await super().async_start_new_kernel(pass_fds=(*locks, self._lifeline.descriptor), **options)
        pid = self.km.provisioner.pid
        self._lifeline.tie(pid)
        if self._lease:
            self._lease.passed_to(pid)

    start_new_kernel = run_sync(async_start_new_kernel)

    def papermill_execute_cells(self) -> None:
        """Execute the cells."""
        try:
            super().papermill_execute_cells()
        except DeadKernelError as err:
            code = getattr(getattr(self.km.provisioner, "process", None), "returncode", None)
            raise KernelDied(describe(code)) from err


def engine(report: Report, lease: Lease | None) -> type:
    """Return an engine for `papermill_engines.register`.

    Args:
        report: called with what happens.
        lease: for the kernel.
    """

    class Engine(NBClientEngine):  # type: ignore[misc]
        @classmethod
        def execute_notebook(cls, nb: Any, kernel_name: str, output_path: str | None = None, **options: Any) -> Any:  # noqa: ANN401
            autosave = options.pop("autosave_cell_every", 30)
            options = {name: value for name, value in options.items() if name not in ("progress_bar", "log_output")}
            manager = Manager(report, nb, output_path=output_path, progress_bar=False, autosave_cell_every=autosave)
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
                lease=lease,
            ).execute()

    return Engine


def execute(job: dict[str, Any], report: Report, lease: Lease | None) -> Outcome:
    """Execute a job's notebook with papermill's own engine."""
    papermill_engines.register("rocmlab-reference", engine(report, lease))
    os.close(private.create(job["output"], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC))  # papermill keeps its mode
    try:
        papermill.execute_notebook(
            escape(job["notebook"]),
            escape(job["output"]),
            parameters=job["parameters"],
            engine_name="rocmlab-reference",
            kernel_name=job["kernel"],
            language=job["language"],
            progress_bar=False,
            stdout_file=sys.stdout,
            stderr_file=sys.stdout,
            cwd=str(Path(job["notebook"]).parent),
            execution_timeout=job["cell_timeout_seconds"],
        )
    except PapermillExecutionError as err:
        sys.stdout.write(ANSI.sub("", str(err)) + "\n")
        return Outcome("failed")
    except CellTimeoutError:
        return Outcome("timeout", f"a cell ran longer than {job['cell_timeout_seconds']:g} s")
    except KernelDied as err:
        return Outcome("kernel died", str(err))
    except DeadKernelError:
        return Outcome("kernel died", "the kernel's process ended after the last cell")
    except RuntimeError as err:
        return Outcome("kernel died", f"the kernel did not start: {err}")
    return Outcome("ok")
