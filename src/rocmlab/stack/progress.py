"""What a build or a pull prints, reduced to a few useful lines."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from rocmlab.base.formatting import amount


class BuildProgress:
    """Shows the steps of a BuildKit build by the comments that explain them in the Dockerfile.

    A step is shown with its first output, so that steps found in the cache are not listed.
    """

    STEP = re.compile(r"^#(\d+) \[(?:\S+ )?\s*\d+/\d+\] (.+)$")
    OUTPUT = re.compile(r"^#(\d+) [\d.]+ ")
    DONE = re.compile(r"^#(\d+) DONE ([\d.]+)s$")
    NOISE = re.compile(r"is ignored: it is neither|Running pip as the 'root' user|notice\]")

    def __init__(self, dockerfile: str = "") -> None:
        self.comments = explained(dockerfile)
        self.steps: dict[str, str] = {}
        self.shown: set[str] = set()

    def __call__(self, line: str) -> str | None:
        """Return what to show of a line, if anything: the start of a step, and how long it took if it took long."""
        if (step := self.STEP.match(line)) and step[1] not in self.steps:
            self.steps[step[1]] = self.title(step[2])
        elif (printed := self.OUTPUT.match(line)) and printed[1] in self.steps and printed[1] not in self.shown:
            self.shown.add(printed[1])
            return f"  {self.steps[printed[1]]}"
        elif (done := self.DONE.match(line)) and float(done[2]) >= 10 and done[1] in self.steps:
            return f"    {float(done[2]):.0f} s: {self.steps[done[1]][:60]}"
        return None

    def title(self, instruction: str) -> str:
        """Return the comment that explains an instruction, else the instruction without its mounts."""
        instruction = " ".join(instruction.split())
        plain = re.sub(r"--mount=\S+ ", "", instruction)
        found = next((text for shape, text in self.comments if shape.fullmatch(instruction)), plain)
        return re.split(r"[:;] ", found)[0]

    def printed(self, last: list[str]) -> list[str]:
        """Return what the steps themselves printed."""
        return [re.sub(r"^#\d+ [\d.]+ ", "", line) for line in last if re.match(r"^#\d+ [\d.]+ ", line)]

    def error(self, last: list[str]) -> str:
        """Return the lines that explain a failed build."""
        printed = [line for line in self.printed(last) if line.strip() and not self.NOISE.search(line)]
        return "\n".join(printed[-8:]) or "\n".join(last[-4:])


class PodmanProgress(BuildProgress):
    """Shows the steps of a build by Podman, which prints `STEP 3/20: RUN …` and `--> Using cache` for a cached step."""

    STEP = re.compile(r"^(?:\[\d+/\d+\] )?STEP \d+/\d+: (RUN .+)$")
    OWN = re.compile(r"^(-->|STEP |\[\d+/\d+\] |COMMIT |Error: |\[Warning\])")

    def __init__(self, dockerfile: str = "") -> None:
        super().__init__(dockerfile)
        self.waiting = ""  # the step without output so far

    def __call__(self, line: str) -> str | None:
        """Return what to show of a line, if anything: a step at its first output."""
        if step := self.STEP.match(line):
            self.waiting = self.title(step[1])
        elif self.OWN.match(line):
            self.waiting = ""
        elif self.waiting:
            shown, self.waiting = f"  {self.waiting}", ""
            return shown
        return None

    def printed(self, last: list[str]) -> list[str]:
        """Return what the steps themselves printed."""
        return [line for line in last if not self.OWN.match(line)]


def explained(dockerfile: str) -> list[tuple[re.Pattern[str], str]]:
    """Return each instruction, as a pattern in which any value may stand for a variable, and the comment above it."""
    found: list[tuple[re.Pattern[str], str]] = []
    comment: list[str] = []
    joined = re.sub(r"\\\n", " ", dockerfile)
    for line in joined.splitlines():
        if line.startswith("#"):
            comment.append(line.lstrip("# "))
        elif line.strip() and not line.startswith("FROM "):  # a stage's comment is about its first step
            if comment:
                literal = re.split(r"\$\{?[A-Z_]+\}?", " ".join(line.split()))
                shape = re.compile(".*".join(map(re.escape, literal)))
                found.append((shape, " ".join(comment).rstrip(".")))
            comment = []
    return found


class PullProgress:
    """Shows a pull: how much has arrived where the sizes (bytes, by digest) are known, and how many layers are done."""

    def __init__(self, sizes: Mapping[str, int] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.layers: dict[str, str] = {}
        self.sizes = {digest.partition(":")[2][:12]: size for digest, size in (sizes or {}).items()}
        self.clock = clock
        self.began = clock()

    def __call__(self, line: str) -> str | None:
        """Return what to show of a line, if anything."""
        found = re.match(r"^([0-9a-f]{12}): (.+)$", line)
        if not found:
            return None
        before = self._count("Pull complete"), self._arrived()
        self.layers[found[1]] = found[2]
        if self._count("Pull complete") != before[0]:
            return f"  {self._count('Pull complete')} of {len(self.layers)} layers"
        return self._bytes() if self._arrived() != before[1] else None

    def _count(self, state: str) -> int:
        return sum(each == state for each in self.layers.values())

    def _arrived(self) -> int:
        done = ("Download complete", "Extracting", "Pull complete")
        return sum(self.sizes.get(layer, 0) for layer, state in self.layers.items() if state.startswith(done))

    def _bytes(self) -> str:
        here = [layer for layer, state in self.layers.items() if state == "Already exists"]  # nothing to download
        arrived, total = self._arrived(), sum(size for layer, size in self.sizes.items() if layer not in here)
        shown = f"  {amount(arrived)} of {amount(total)}"
        if arrived >= total:
            return f"{shown}: unpacking"
        left = (self.clock() - self.began) * (total - arrived) / arrived
        return f"{shown}, about {left / 60:.0f} min left" if left > 90 else f"{shown}, about {left:.0f} s left"
