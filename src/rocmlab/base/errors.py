"""One shape for every error and every finding: what is wrong, why, and how to fix it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """What is wrong, why it is so, and the command or edit that fixes it."""

    what: str  # one line with the offending value
    why: str  # the cause as far as it is known
    fix: str  # a command or an edit that can be pasted

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
