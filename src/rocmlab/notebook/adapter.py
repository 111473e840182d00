"""The engine behind papermill's interface: `papermill --engine rocmlab`, or `engine_name="rocmlab"`.

papermill loads this module while it is being imported itself, so nothing of papermill is imported at the top.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import signal
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbclient.exceptions import CellTimeoutError, DeadKernelError

from rocmlab.base import files
from rocmlab.base.errors import RocmlabError
from rocmlab.notebook.options import Limits, Options
from rocmlab.notebook.outputs import OverflowLog

if TYPE_CHECKING:
    from rocmlab.notebook.outcome import Aborted

PAPERMILL_AUTOSAVE_SECONDS = 30  # papermill's default, which it always passes: not a wish of the user
OPTIONS = ("stdout_file", "stderr_file", "start_timeout", "execution_timeout", "timeout", "allow_errors")


class KernelDied(DeadKernelError):  # type: ignore[misc]
    """The kernel ended, stopped or hung while the notebook needed it."""


_unsaved: set[Path] = set()  # our outputs that papermill saves again, after the engine has returned


class RocmlabEngine:
    """Runs a notebook for papermill; it has what papermill calls of an `Engine`."""

    @classmethod
    def nb_kernel_name(cls, nb: Any, name: str | None = None) -> str:  # noqa: ANN401  a NotebookNode
        """Return the name of the kernel, from the notebook if none is given."""
        from papermill.utils import nb_kernel_name

        return str(nb_kernel_name(nb, name))

    @classmethod
    def nb_language(cls, nb: Any, language: str | None = None) -> str:  # noqa: ANN401  a NotebookNode
        """Return the language, from the notebook if none is given."""
        from papermill.utils import nb_language

        return str(nb_language(nb, language))

    @classmethod
    def execute_notebook(
        cls,
        nb: Any,  # noqa: ANN401  a NotebookNode
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool | dict[str, Any] = True,
        log_output: bool = False,
        autosave_cell_every: float = 30,
        **options: Any,  # noqa: ANN401  papermill's, ours, and nbclient's
    ) -> Any:  # noqa: ANN401
        """Execute a notebook and return it.

        Args:
            nb: the notebook, with its parameters.
            kernel_name: of the kernelspec.
            output_path: where it is saved; None: nowhere.
            progress_bar: whether to show one, or tqdm's options for it.
            log_output: whether what cells print goes to papermill's logger.
            autosave_cell_every: seconds between two saves while a cell runs; 0: none. papermill's default counts as
                not given.
            options: `stdout_file`, `stderr_file`, `start_timeout` and `execution_timeout` (0: no limit),
                `allow_errors`, and the limits by their names.

        Raises:
            RocmlabError: an option is unknown, or a limit is invalid.
            DeadKernelError: the kernel died, stopped or hung.
            CellTimeoutError: a limit was reached.
            KeyboardInterrupt: SIGINT came; SystemExit: SIGTERM.
        """
        import nbformat

        from rocmlab.base import job_tokens
        from rocmlab.kernels import kernel, kernelspec
        from rocmlab.notebook.execution import Execution
        from rocmlab.notebook.outcome import Aborted

        target = _local(output_path)
        chosen = _chosen(nb, {"autosave_cell_every": autosave_cell_every, **options}, target, output_path)
        bar = _Bar(len(nb.cells), progress_bar, log_output)
        chosen.report = bar.see
        chosen.show = _log if log_output else None
        token = os.environ.get(job_tokens.NAME) or job_tokens.new()
        environment = {**os.environ, job_tokens.NAME: token}
        running = kernel.start(kernelspec.find(kernel_name), os.getcwd(), environment)
        try:
            Execution(nb, running, chosen, lambda: _save(nb, output_path, target)).run()
            _save_atomically(output_path, target)
        except Aborted as aborted:
            if job_tokens.NAME not in os.environ:  # else the process that has set it ends what is left
                job_tokens.end(token, grace_seconds=0.5)
            raise _translated(aborted) from aborted
        finally:
            bar.close()
        return nbformat.from_dict(nb)


class _Bar:
    """papermill's progress bar, and the lines about cells in its log."""

    def __init__(self, total: int, wanted: bool | dict[str, Any], logs_cells: bool) -> None:
        self.bar: Any = None
        self._logs_cells = logs_cells
        if wanted:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]

            options = {"unit": "cell", "desc": "Executing", **(wanted if isinstance(wanted, dict) else {})}
            self.bar = tqdm(total=total, **options)

    def see(self, event: str, **facts: Any) -> None:  # noqa: ANN401
        """Advance when a cell has finished, and pass warnings on."""
        from papermill.log import logger

        if event == "warning":
            logger.warning(facts["message"])
            return
        is_done = event in ("cell done", "text done")
        number = facts["index"] + 1
        if self._logs_cells:  # the lines of papermill's own engine
            if event in ("cell", "text done"):
                logger.info(f"Executing Cell {number:-<40}")
            if is_done:
                logger.info(f"Ending Cell {number:-<43}")
        if self.bar is not None and is_done:
            self.bar.update(1)

    def close(self) -> None:
        """Leave it as it is."""
        if self.bar is not None:
            self.bar.close()


def _local(path: str | None) -> Path | None:
    """Return the file that papermill would write; None where another back end is in charge.

    papermill notes the working directory of each call in its handler, and changes it for the notebook alone (`cwd=`).
    """
    from papermill.iorw import LocalHandler, papermill_io

    handler = papermill_io.get_handler(path) if path else None
    return _target(handler, str(path)) if isinstance(handler, LocalHandler) else None


def _target(handler: Any, path: str) -> Path:  # noqa: ANN401  a LocalHandler
    return Path(os.path.abspath(os.path.join(getattr(handler, "_cwd", None) or os.getcwd(), path)))


def _save_atomically(path: str | None, target: Path | None) -> None:
    """Let papermill's own last save of this output be atomic: a reader may come at any time.

    The handler of local files is one for the process. Its `write` is replaced once; it asks for the file at each call,
    and leaves every file alone that is not an output of this engine.
    """
    from papermill.iorw import LocalHandler, papermill_io

    handler: Any = papermill_io.get_handler(path) if path and target else None
    if type(handler) is not LocalHandler or target is None:
        return
    _unsaved.add(target)
    if "write" in vars(handler):
        return
    theirs = handler.write

    def write(buf: str, path: str) -> None:
        target = _target(handler, path)
        if target not in _unsaved:
            theirs(buf, path)
            return
        _unsaved.discard(target)
        _check_folder(target)
        files.write_text(target, buf)

    handler.write = write


def _check_folder(target: Path) -> None:
    if not target.parent.is_dir():
        msg = f"output folder {target.parent} doesn't exist."
        raise FileNotFoundError(msg)


def _save(nb: Any, path: str | None, target: Path | None) -> None:  # noqa: ANN401
    from rocmlab.notebook import notebooks

    if target is not None:
        _check_folder(target)
        notebooks.save(nb, target)
    elif path is not None:
        import nbformat
        from papermill.iorw import write_ipynb

        write_ipynb(nbformat.from_dict(nb), path)


def _chosen(nb: Any, options: dict[str, Any], target: Path | None, output_path: str | None) -> Options:  # noqa: ANN401
    """Return what surrounds the execution, from the options that papermill passes on.

    Raises:
        RocmlabError: an option is unknown, or a limit is invalid.
    """
    names = [field.name for field in fields(Limits)]
    for name in options:
        if name not in (*names, *OPTIONS, "input_path", "autosave_cell_every"):
            raise RocmlabError(
                f"unknown option {name!r} for the engine rocmlab",
                "it would be ignored, and the notebook would run differently from what was requested",
                f"remove it, or use one of {', '.join((*OPTIONS, *names))}",
            )
    given = {name: options[name] for name in names if name in options}
    timeout = options.get("execution_timeout") or options.get("timeout")
    given.setdefault("cell_seconds", timeout if timeout and timeout > 0 else None)
    start, every = options.get("start_timeout"), options["autosave_cell_every"]
    given.setdefault("start_seconds", start or None)
    limits = Limits().with_metadata(nb.metadata, given)
    if start == 0 and "start_seconds" not in options:
        limits = replace(limits, start_seconds=math.inf)
    if every != PAPERMILL_AUTOSAVE_SECONDS and "save_seconds" not in options:
        limits = replace(limits, save_seconds=every or math.inf)
    return Options(
        limits=limits,
        allow_errors=bool(options.get("allow_errors")),
        stdout=options.get("stdout_file"),
        stderr=options.get("stderr_file"),
        kernel_output=_to_stderr,
        overflow=_overflow_log(target, output_path),
    )


def _overflow_log(target: Path | None, output_path: str | None) -> OverflowLog:
    """Return the log of what is too long for the notebook: next to it, or here where it goes to another back end.

    That of an earlier execution is removed; a file of that name that is another user's is left alone.
    """
    stem = (output_path or "notebook").rstrip("/").rpartition("/")[2].removesuffix(".ipynb") or "notebook"
    folder = target.parent if target is not None else Path.cwd()
    for ending in itertools.chain([""], (f".{number}" for number in itertools.count(2))):
        path = folder / f"{stem}.output{ending}.log"
        if OverflowLog.made(path):
            path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            break
    return OverflowLog(path, path.name)


def _to_stderr(text: str) -> None:
    with contextlib.suppress(OSError):  # it may be a file, and its disk full
        sys.stderr.write(text)
        sys.stderr.flush()


def _log(output: dict[str, Any]) -> None:
    """Log an output as papermill does."""
    from papermill.log import logger

    if output["output_type"] == "stream":
        (logger.info if output["name"] == "stdout" else logger.warning)(output["text"])
    elif "text/plain" in output.get("data", {}):
        logger.info("".join(output["data"]["text/plain"]))


def _translated(aborted: Aborted) -> BaseException:
    """Return the exception that papermill's users expect."""
    if aborted.number == signal.SIGINT:
        return KeyboardInterrupt(str(aborted))
    if aborted.number:
        return SystemExit(128 + aborted.number)
    return CellTimeoutError(str(aborted)) if aborted.status == "timeout" else KernelDied(str(aborted))
