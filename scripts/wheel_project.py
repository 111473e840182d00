"""Hatchling's hook: put the files of a project folder, which are not part of the package, into the wheel.

`rocmlab up` of an installed package makes a folder of them, see `rocmlab.stack.packaged`. The image's own wheel needs
none, and is built with HATCH_BUILD_NO_HOOKS=1.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CONTENT = (
    *(".dockerignore", ".gitignore", "CHANGELOG.md", "LICENSE", "Makefile", "README.md", "compose.yaml"),
    *("pyproject.toml", "deploy", "docker", "docs", "notebooks", "requirements", "scripts"),
)


class ProjectHook(BuildHookInterface):
    """Adds `rocmlab/project` to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name each file and its place; an editable installation has the folder itself."""
        if version != "editable":
            found = files(Path(self.root))
            build_data["force_include"].update(
                {str(Path(self.root, name)): f"rocmlab/project/{name}" for name in found}
            )


def files(root: Path) -> list[str]:
    """Return what git tracks of CONTENT; in an unpacked source distribution, which has no more, all of it."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "-z", "--", *CONTENT]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip("\0").split("\0")
    paths = [path for name in CONTENT for path in (root / name, *(root / name).rglob("*"))]
    return [str(path.relative_to(root)) for path in paths if path.is_file() and "__pycache__" not in path.parts]
