"""Copies of virtual environments, whose scripts name the interpreter next to them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

MAX_SCRIPT_BYTES = 1_000_000


def copy(source: Path, target: Path) -> None:
    """Copy an environment so that neither changes with the other; scripts name their own interpreter.

    Packages are hard links where the file system has them: pip removes a file and writes another, not into one.
    """
    real = source.resolve()

    def link_or_copy(name: str, other: str) -> None:
        if "site-packages" in Path(name).relative_to(real).parts:
            with suppress(OSError):  # a file system without hard links
                os.link(name, other, follow_symlinks=False)
                return
        shutil.copy2(name, other, follow_symlinks=False)

    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(real, target, symlinks=True, copy_function=link_or_copy)
    for script in (target / "bin").iterdir():
        if script.is_file() and not script.is_symlink() and script.stat().st_size < MAX_SCRIPT_BYTES:
            text = script.read_bytes()
            changed = text.replace(os.fsencode(real), os.fsencode(target)).replace(
                os.fsencode(source.absolute()), os.fsencode(target)
            )
            if changed != text:
                script.write_bytes(changed)
