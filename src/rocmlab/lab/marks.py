"""Which kernels cannot be used yet: the launcher shows it in their titles while their frameworks are being installed.

Run as `python -m rocmlab.lab.marks ENVIRONMENT`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rocmlab.base import files, installation
from rocmlab.lab import offers

PLAIN = "title"  # in our metadata: the title without the mark


def refresh(prefix: Path) -> None:
    """Have each of our kernelspecs below an environment show how far its installation is."""
    folder = prefix / "share/jupyter/kernels"
    while True:
        state = installation.state(prefix)
        for path, spec in offers.listed([folder]).values():
            if "added" in spec["metadata"]["rocmlab"]:
                continue  # its packages are there
            text = json.dumps(marked(spec, state), indent=1) + "\n"
            if text != path.read_text(encoding="utf-8"):
                files.write_text(path, text)
        if installation.state(prefix) == state:  # else it was finished meanwhile, and its own marks were overwritten
            return


def marked(spec: offers.Spec, state: str) -> offers.Spec:
    """Return a kernelspec whose title shows a state of `installation`, or nothing where that is READY."""
    ours = dict(spec["metadata"]["rocmlab"])
    title = str(ours.pop(PLAIN, spec["display_name"]))
    shown = title
    if state:
        ours[PLAIN] = title
        shown = f"{title[:-1]}, {state})" if title.endswith(")") else f"{title} ({state})"
    return {**spec, "display_name": shown, "metadata": {**spec["metadata"], "rocmlab": ours}}


if __name__ == "__main__":
    refresh(Path(sys.argv[1]))
