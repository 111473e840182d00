"""What the file system of a file can do."""

from __future__ import annotations

import os
from pathlib import Path

# They show every file with one owner and mode, usually writable for everybody: shared folders of virtual machines, too.
NO_MODES = frozenset(
    (
        "9p",
        "drvfs",
        "vfat",
        "msdos",
        "exfat",
        "ntfs",
        "ntfs3",
        "fuseblk",
        "cifs",
        "smb3",
        "vboxsf",
        "fuse.vmhgfs-fuse",
        "prl_fs",
    )
)


def keeps_modes(device: int) -> bool:
    """Return whether a file system keeps modes; where it does not, they say nothing. Source: /proc/self/mountinfo."""
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    kinds = [line.partition(" - ")[2].split(" ")[0] for line in lines if line.split(" ")[2:3] == [number]]
    return not any(kind in NO_MODES for kind in kinds)
