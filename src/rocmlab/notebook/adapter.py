"""The engine behind papermill's interface: `papermill --engine rocmlab`, or `engine_name="rocmlab"`.

papermill loads this module with itself, so it imports no more than papermill has imported already.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path
from typing import Any

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from papermill.engines import Engine
from papermill.iorw import LocalHandler, papermill_io, write_ipynb
from papermill.log import logger

from rocmlab.base import files

LIMITS = (
    "cell_seconds",
    "notebook_seconds",
    "idle_seconds",
    "silent_seconds",
    "start_seconds",
    "output_bytes",
    "save_seconds",
)


class KernelDied(DeadKernelError):  # type: ignore[misc]
    """The kernel ended, stopped or hung while the notebook needed it."""


_unsaved: set[Path] = set()  # outputs of ours that papermill saves once more, after the engine has returned


class RocmlabEngine(Engine):  # type: ignore[misc]
    """Runs a notebook for papermill."""

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
            autosave_cell_every: taken for papermill's sake; see `save_seconds`.
            options: `stdout_file`, `stderr_file`, `start_timeout`, `execution_timeout`, `allow_errors`, and the limits
                by their names.

        Raises:
            DeadKernelError: the kernel died, stopped or hung.
            CellTimeoutError: a limit was reached.
            KeyboardInterrupt: SIGINT came; SystemExit: SIGTERM.
        """
        import nbformat

        from rocmlab.base import job_tokens
        from rocmlab.kernels import kernel
        from rocmlab.notebook.ends import Cut
        from rocmlab.notebook.execution import Execution

        target = _local(output_path)
        stage = _stage(nb, options, log_output, target, output_path)
        bar = _Bar(len(nb.cells), progress_bar)
        stage.see = bar.see
        mark = os.environ.get(job_tokens.NAME) or job_tokens.new()
        environment = {**os.environ, job_tokens.NAME: mark}
        running = kernel.start(kernel_name, os.getcwd(), environment)
        try:
            Execution(nb, running, stage, lambda: _save(nb, output_path, target)).run()
            _save_atomically(output_path, target)
        except Cut as cut:
            if job_tokens.NAME not in os.environ:  # else whoever has set it ends what is left
                job_tokens.end(mark, grace_seconds=0.5)
            raise _translated(cut) from cut
        finally:
            bar.close()
        return nbformat.from_dict(nb)


class _Bar:
    """papermill's progress bar."""

    def __init__(self, total: int, wanted: bool | dict[str, Any]) -> None:
        self.bar: Any = None
        if wanted:
            from tqdm.auto import tqdm  # type: ignore[import-untyped]

            options = {"unit": "cell", "desc": "Executing", **(wanted if isinstance(wanted, dict) else {})}
            self.bar = tqdm(total=total, **options)

    def see(self, event: str, **facts: object) -> None:
        """Move on when a cell has ended, and pass warnings on."""
        if event == "warning":
            logger.warning(facts["message"])
        if self.bar is not None and event in ("cell done", "text done"):
            self.bar.update(1)

    def close(self) -> None:
        """Leave it as it is."""
        if self.bar is not None:
            self.bar.close()


def _local(path: str | None) -> Path | None:
    """Return the file that papermill would write; None where another back end is in charge.

    papermill notes the working directory of each call in its handler, and changes it for the notebook alone (`cwd=`).
    """
    handler = papermill_io.get_handler(path) if path else None
    return _target(handler, str(path)) if isinstance(handler, LocalHandler) else None


def _target(handler: Any, path: str) -> Path:  # noqa: ANN401  a LocalHandler
    return Path(os.path.abspath(os.path.join(getattr(handler, "_cwd", None) or os.getcwd(), path)))


def _save_atomically(path: str | None, target: Path | None) -> None:
    """Let papermill's own last save of this output be atomic: a reader may come at any time.

    The handler of local files is one for the process. Its `write` is replaced once; it asks for the file at each call,
    and leaves every file alone that is not an output of this engine.
    """
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

        write_ipynb(nbformat.from_dict(nb), path)


def _stage(
    nb: Any,  # noqa: ANN401
    options: dict[str, Any],
    log_output: bool,
    target: Path | None,
    output_path: str | None,
) -> Any:  # noqa: ANN401  a Stage
    from rocmlab.notebook.limits import Limits
    from rocmlab.notebook.stage import Stage

    given = {name: options.pop(name) for name in LIMITS if name in options}
    given.setdefault("start_seconds", options.pop("start_timeout", None))
    timeout = options.pop("execution_timeout", None) or options.pop("timeout", None)
    given.setdefault("cell_seconds", timeout if timeout and timeout > 0 else None)
    stage = Stage(
        limits=Limits().with_metadata(nb.metadata, given),
        allow_errors=bool(options.pop("allow_errors", False)),
        stdout=options.pop("stdout_file", None),
        stderr=options.pop("stderr_file", None),
        kernel_output=_to_stderr,
        show=_log if log_output else None,
        side=_side_log(target, output_path),
    )
    options.pop("input_path", None)
    options.pop("timeout", None)
    for name in options:
        logger.warning(f"the engine rocmlab does not know the option {name}; it is ignored")
    return stage


def _side_log(target: Path | None, output_path: str | None) -> Any:  # noqa: ANN401  a SideLog
    """Return the log of what is too long for the notebook: beside it, or here where it goes to another back end.

    That of an earlier execution is removed; a file of that name that is somebody else's is left alone.
    """
    from rocmlab.notebook.outputs import SideLog

    stem = (output_path or "notebook").rstrip("/").rpartition("/")[2].removesuffix(".ipynb") or "notebook"
    folder = target.parent if target is not None else Path.cwd()
    for ending in itertools.chain([""], (f".{number}" for number in itertools.count(2))):
        path = folder / f"{stem}.output{ending}.log"
        if SideLog.made(path):
            path.unlink(missing_ok=True)
        if not os.path.lexists(path):
            break
    return SideLog(path, path.name)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def _log(output: dict[str, Any]) -> None:
    """Log an output as papermill does."""
    if output["output_type"] == "stream":
        (logger.info if output["name"] == "stdout" else logger.warning)(output["text"])
    elif "text/plain" in output.get("data", {}):
        logger.info("".join(output["data"]["text/plain"]))


def _translated(cut: Any) -> BaseException:  # noqa: ANN401  a Cut
    """Return the exception that papermill's users expect."""
    if cut.number == signal.SIGINT:
        return KeyboardInterrupt(str(cut))
    if cut.number:
        return SystemExit(128 + cut.number)
    return CellTimeoutError(str(cut)) if cut.status == "timeout" else KernelDied(str(cut))
