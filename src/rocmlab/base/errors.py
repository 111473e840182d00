"""One shape for every error and every finding: what is wrong, why, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from typing import Any


@dataclass(frozen=True)
class Problem:
    """What is wrong, why it is so, and the command or edit that fixes it."""

    what: str  # one line with the offending value
    why: str  # the cause as far as it is known
    fix: str  # a command or an edit that can be pasted

    def as_dict(self) -> dict[str, str]:
        """Return it ready for JSON."""
        return {"what": self.what, "why": self.why, "fix": self.fix}

    def __str__(self) -> str:
        lines = [self.what]
        for label, text in (("why", self.why), ("fix", self.fix)):
            if text:
                lines.append(f"  {label}: " + text.replace("\n", "\n       "))
        return "\n".join(lines)


class RocmlabError(Exception):
    """The only exception rocmlab raises on purpose; it carries a `Problem` and the exit code of its kind."""

    def __init__(self, what: str, why: str = "", fix: str = "", *, exit_code: int = 2) -> None:
        self.problem = Problem(what, why, fix)
        self.exit_code = exit_code  # 1 the work failed, 2 usage or environment
        super().__init__(str(self.problem))

    @classmethod
    def of(cls, problem: Problem, *, exit_code: int = 2) -> RocmlabError:
        """Return the error that reports a problem."""
        return cls(problem.what, problem.why, problem.fix, exit_code=exit_code)

    def arguments(self) -> dict[str, Any]:
        """Return what makes this error again, in another process: `RocmlabError(**arguments)`."""
        return {**self.problem.as_dict(), "exit_code": self.exit_code}
