"""An extension of IPython, in our kernels: `%%gpu`, `%gpu` and `%%profile_gpu`. Elsewhere: `%load_ext rocmlab`.

A cell that is measured or profiled is run as any other: its first line is emptied, and the measurement begins and ends
with the cell. So errors, line numbers, `await` and what the last line returns are as without it. Each kernel loads this
at its start, so what measures is imported when it is used first.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import Any

    from rocmlab.telemetry.measurement import Measurement
    from rocmlab.telemetry.profiling import Profiling

AFTER = 2  # transformations of IPython's own: they remove empty lines at the top, and indentation


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401  IPython has no types for mypy
    """Add the magics."""
    cells = Cells(shell)
    shell.input_transformer_manager.cleanup_transforms.insert(AFTER, cells.transform)
    shell.events.register("pre_run_cell", cells.begin)
    shell.events.register("post_run_cell", cells.end)
    shell.register_magic_function(cells.gpu, "line_cell", "gpu")
    shell.register_magic_function(cells.profile_gpu, "cell", "profile_gpu")


class Cells:
    """The cells that run in one shell, and the measurements of some."""

    def __init__(self, shell: Any) -> None:  # noqa: ANN401
        self._shell = shell
        self._running: list[tuple[Any, AbstractContextManager[object] | None]] = []  # with IPython's `info` of the cell

    def transform(self, lines: list[str]) -> list[str]:
        """Empty the first line of a cell to be measured, but not of what a magic runs within a cell.

        A line that asks for a profiler that there is not is left to the magic, which says why.
        """
        if self._running or not lines or not _is_possible("".join(lines)):
            return lines
        is_magic = len(lines) > 1 and lines[1].startswith("%%")  # which has to be the first line
        return lines[1:] if is_magic else ["\n", *lines[1:]]

    def begin(self, info: Any) -> None:  # noqa: ANN401
        """Begin to measure, if that is wanted."""
        is_wanted = not self._running and _is_possible(info.raw_cell)
        self._running.append((info, None))  # also if what measures does not start
        if is_wanted and (context := _started(info.raw_cell)):
            self._running[-1] = (info, context)

    def end(self, result: Any) -> None:  # noqa: ANN401  None where the cell was cancelled
        """Show what the cell cost, whatever ended it."""
        for at, (info, context) in enumerate(self._running):
            if result is None or info is result.info:
                del self._running[at]
                if context is not None:
                    context.__exit__(None, None, None)
                return

    def gpu(self, line: str, cell: str | None = None) -> object:
        """Show what a cell or a line costs: `%%gpu` as the first line of a cell, or `%gpu model.fit(x, y)`."""
        from IPython.core.error import UsageError

        if cell is None and not line.strip():
            raise UsageError("%gpu is followed by what is to be measured: %gpu model.fit(x, y)")
        if cell is None:
            return self._run_line(self._shell.transform_cell(line).strip())
        if line.strip():
            raise UsageError("%%gpu is a line of its own, and the cell follows below it")
        with _measure():
            self._shell.run_cell(cell).raise_error()
        return None

    def profile_gpu(self, line: str, cell: str) -> None:
        """Show which kernels took the time of a cell: `%%profile_gpu` as its first line, or `%%profile_gpu jax`.

        `%%profile_gpu rocprofv3` runs the cell as a script of its own.
        """
        from IPython.core.error import UsageError

        from rocmlab.base.errors import RocmlabError

        try:
            if line.strip() == "rocprofv3":
                _show_script(cell)
                return
            profiling = _profiling(line.strip(), cell).__enter__()
        except RocmlabError as err:
            raise UsageError(str(err)) from None
        try:
            self._shell.run_cell(cell).raise_error()
        finally:
            profiling.__exit__()

    def _run_line(self, code: str) -> object:
        try:
            compiled = compile(code, "<%gpu>", "eval")
        except SyntaxError:
            compiled = compile(code, "<%gpu>", "exec")
        with _measure():
            return eval(compiled, self._shell.user_ns)  # the user's own line


def _mark(text: str) -> tuple[str, str]:
    """Return the first line of a cell, if it is one of ours: the magic, and what follows it."""
    name, _, rest = text.lstrip().partition("\n")[0].strip().partition(" ")
    return (name, rest.strip()) if name in ("%%gpu", "%%profile_gpu") else ("", "")


def _is_possible(text: str) -> bool:
    name, rest = _mark(text)
    if name != "%%profile_gpu":
        return bool(name) and not rest
    from rocmlab.base.errors import RocmlabError

    try:
        _profiling(rest, text)
    except RocmlabError:
        return False
    return True


def _started(text: str) -> AbstractContextManager[object] | None:
    """Return what measures the cell; None, and why on stderr, if its profiler does not start: the cell runs."""
    name, rest = _mark(text)
    if name != "%%profile_gpu":
        return _measure().__enter__()
    import sys

    try:
        return _profiling(rest, text).__enter__()
    except Exception as err:
        sys.stderr.write(f"The cell is not profiled: {err}\n")
        return None


def _show_script(cell: str) -> None:
    from IPython.display import display

    from rocmlab.telemetry import rocprof

    display(rocprof.run(cell))  # type: ignore[no-untyped-call]


def _measure() -> Measurement:
    from rocmlab.telemetry.measurement import measure

    return measure()


def _profiling(word: str, cell: str) -> Profiling:
    from rocmlab.telemetry import profiling

    return profiling.Profiling(profiling.choose(word, cell))
