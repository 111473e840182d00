"""An extension of IPython, in our kernels: `%%gpu` and `%gpu` measure a cell or a line. Elsewhere: `%load_ext rocmlab`.

A measured cell is run as any other: its first line is emptied, and the measurement begins and ends with the cell. So
errors, line numbers, `await` and what the last line returns are as without it. Each kernel loads this at its start, so
what measures is imported when it is used first.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any

    from rocmlab.telemetry.measurement import Measurement

AFTER = 2  # transformations of IPython's own: they remove empty lines at the top, and indentation


def load_ipython_extension(shell: Any) -> None:  # noqa: ANN401  IPython has no types for mypy
    """Add the magics."""
    cells = Cells(shell)
    shell.input_transformer_manager.cleanup_transforms.insert(AFTER, cells.transform)
    shell.events.register("pre_run_cell", cells.begin)
    shell.events.register("post_run_cell", cells.end)
    shell.register_magic_function(cells.gpu, "line_cell", "gpu")


class Cells:
    """The cells that run in one shell, and the measurements of some."""

    def __init__(self, shell: Any) -> None:  # noqa: ANN401
        self._shell = shell
        self._running: list[tuple[Any, Measurement | None]] = []  # with IPython's description of the cell

    def transform(self, lines: list[str]) -> list[str]:
        """Empty the first line of a cell to be measured, but not of what a magic runs within a cell."""
        if self._running or not lines or not _is_marked(lines[0]):
            return lines
        is_magic = len(lines) > 1 and lines[1].startswith("%%")  # which has to be the first line
        return lines[1:] if is_magic else ["\n", *lines[1:]]

    def begin(self, info: Any) -> None:  # noqa: ANN401
        """Begin to measure, if that is wanted."""
        is_measured = not self._running and _is_marked(info.raw_cell)
        self._running.append((info, _measure().__enter__() if is_measured else None))

    def end(self, result: Any) -> None:  # noqa: ANN401  None where the cell was cancelled
        """Show what the cell cost, whatever ended it."""
        for at, (info, measurement) in enumerate(self._running):
            if result is None or info is result.info:
                del self._running[at]
                if measurement is not None:
                    measurement.__exit__()
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

    def _run_line(self, code: str) -> object:
        try:
            compiled = compile(code, "<%gpu>", "eval")
        except SyntaxError:
            compiled = compile(code, "<%gpu>", "exec")
        with _measure():
            return eval(compiled, self._shell.user_ns)  # the user's own line


def _is_marked(text: str) -> bool:
    return text.lstrip().partition("\n")[0].rstrip() == "%%gpu"


def _measure() -> Measurement:
    from rocmlab.telemetry.measurement import measure

    return measure()
