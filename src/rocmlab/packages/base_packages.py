"""The packages of the lab's interpreter, and stubs of them, with which uv sees that they are there.

uv looks neither at `.pth` files nor at the packages of a base. So before it installs into an overlay, each package of
the base gets a folder there with its metadata and no code, which is removed afterwards: left in, `importlib.metadata`
would find files that do not exist.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import protection
from rocmlab.packages.requested import normal, origin

INSTALLER = "rocmlab-base"  # in INSTALLER of a stub
SECONDS = 60.0
WHEEL = "Wheel-Version: 1.0\nGenerator: rocmlab\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
VERSION = re.compile(r"\d[0-9A-Za-z.!+_-]*")
PROGRAM = """
import importlib.metadata, json, os, site, sys
sites = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
sites = [each for each in (*sites, *site.getsitepackages()) if os.path.isdir(each)]
sites += [each for each in sys.path if os.path.isdir(each) and each.endswith("-packages") and each not in sites]
found = {}
for each in importlib.metadata.distributions(path=[one for one in sys.path if one in sites]):
    name, text = each.metadata["Name"], each.read_text("METADATA") or each.read_text("PKG-INFO") or ""
    if name and name not in found:
        found[name] = (each.version, text.replace("\\r\\n", "\\n").split("\\n\\n", 1)[0])
print(json.dumps({"sites": sites, "packages": found}))
"""


@dataclass(frozen=True)
class Base:
    """What the lab's interpreter has."""

    python: str
    sites: tuple[str, ...]  # the first is the first on its path
    packages: Mapping[str, tuple[str, str]]  # by normalized name: version and metadata

    @property
    def versions(self) -> dict[str, str]:
        """By normalized name."""
        return {name: version for name, (version, _) in self.packages.items()}


def read(python: str) -> Base:
    """Return what an interpreter has.

    Raises:
        RocmlabError: it does not start.
    """
    environment = {name: text for name, text in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        done = subprocess.run(
            [python, "-c", PROGRAM],
            cwd="/",  # what is in the current folder must not be imported
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
        found = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as err:
        why = (getattr(err, "stderr", "") or str(err)).strip()[-300:]
        raise RocmlabError(f"{python} cannot list its packages", why, "make up      # repairs the lab") from err
    packages = {normal(name): (version, text) for name, (version, text) in found["packages"].items()}
    return Base(python, tuple(found["sites"]), {k: v for k, v in packages.items() if VERSION.fullmatch(v[0])})


def write_stubs(base: Base, site: Path, own: Collection[str]) -> None:
    """Show uv the packages of the base, except those that the overlay has itself."""
    shown = dict(base.packages)
    for name, version in protection.aliases(base.versions).items():
        shown[name] = (version, f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}")
    for name, (version, metadata) in shown.items():
        if name not in own:
            _write_stub(site / f"{name.replace('-', '_')}-{version}.dist-info", metadata)


def _write_stub(folder: Path, metadata: str) -> None:
    folder.mkdir(exist_ok=True)
    texts = {"METADATA": metadata + "\n", "WHEEL": WHEEL, "INSTALLER": INSTALLER + "\n"}
    texts["RECORD"] = "".join(f"{folder.name}/{each},,\n" for each in (*texts, "RECORD"))
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")


def remove_stubs(site: Path) -> None:
    """Remove what `write_stubs` wrote."""
    for folder in site.glob("*.dist-info"):
        if is_stub(folder):
            shutil.rmtree(folder)


def is_stub(information: Path) -> bool:
    """Return whether a `.dist-info` is one of a package that is not there."""
    try:
        return (information / "INSTALLER").read_text(encoding="utf-8").strip() == INSTALLER
    except OSError:
        return False


def installed(site: Path) -> dict[str, str]:
    """Return the versions of what an overlay has itself, by normalized name."""
    found = {}
    for folder in site.glob("*.dist-info"):
        if not is_stub(folder):
            name, _, version = folder.name.removesuffix(".dist-info").partition("-")
            found[normal(name)] = version
    return found


def by_origin(site: Path) -> dict[str, str]:
    """Return the packages of an overlay that did not come from an index, by address. Source: PEP 610."""
    found = {}
    for file in site.glob("*.dist-info/direct_url.json"):
        try:
            address = str(json.loads(file.read_text(encoding="utf-8"))["url"])
        except (OSError, ValueError, LookupError, TypeError):
            continue  # another program wrote it
        found[origin(address)] = normal(file.parent.name.partition("-")[0])
    return found
