"""The setting EXTRAS: what JupyterLab gets beside what every lab has, each from requirements/extras-NAME.txt."""

from __future__ import annotations

from rocmlab.base.errors import RocmlabError

SETTING = "EXTRAS"
VARIABLE = "ROCMLAB_EXTRAS"  # of the lab: what it was made with
NAMES = ("git", "hub", "lsp", "proxy", "tensorboard")  # `hub`: what `rocmlab hub` needs in a lab
PROXIED = {"proxy", "tensorboard"}  # both are jupyter-server-proxy, so they have one lock


def parse(text: str) -> tuple[str, ...]:
    """Return the extras that a setting names, sorted and once each.

    Raises:
        RocmlabError: there is none of that name.
    """
    found = {part.strip().lower() for part in text.split(",")} - {""}
    if unknown := sorted(found - set(NAMES)):
        names = ", ".join(NAMES)
        fix = f"make up {SETTING}={','.join(sorted(found & set(NAMES))) or 'git,tensorboard'}"
        raise RocmlabError(f"{SETTING}={text}: there is no extra called {unknown[0]}", f"the extras are {names}", fix)
    return tuple(sorted(found))
