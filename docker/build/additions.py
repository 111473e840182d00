"""Add to an environment what it lacks of a list of requirements, and prove that nothing else changed.

Usage: PYTHON additions.py REQUIREMENTS [CONSTRAINTS], run by the interpreter of the environment. With CONSTRAINTS it is
the one that has TensorFlow, which a kernel's needs are added to: the versions found are written there, and pip reads
them in every later installation, so that none can replace this TensorFlow.
"""

from __future__ import annotations

import glob
import importlib
import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

USERS_GID = 100  # docker-stacks' group of the lab user


def canonical(name: str) -> str:
    """Spell a distribution's name as package indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Return the version of every distribution of this interpreter; the first on the path is the one imported."""
    importlib.invalidate_caches()
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.metadata["Name"]:
            versions.setdefault(canonical(distribution.metadata["Name"]), distribution.version)
    return versions


def missing(lock: str, present: dict[str, str]) -> str:
    """Return the lock without the distributions that are present; an entry is a line and its indented hashes."""
    entries = re.findall(r"^[A-Za-z0-9].*(?:\n[ \t].*)*", lock, flags=re.MULTILINE)
    wanted = "\n".join(entry for entry in entries if canonical(entry.split("==")[0]) not in present) + "\n"
    # 3.11.0rc1, which is Ubuntu 22.04's python3.11, is neither < 3.11 nor >= 3.11 as a full version.
    return wanted.replace("python_full_version", "python_version")


def constraints(present: dict[str, str]) -> str:
    """Return what pip must keep as it is."""
    valid = re.compile(r"\d[0-9A-Za-z.]*(\+[0-9A-Za-z.]+)?")  # pip refuses a file with one version it cannot read
    lines = [f"{name}=={version}" for name, version in sorted(present.items()) if valid.fullmatch(version)]
    if "tensorflow" not in present:
        # TensorFlow comes from another distribution (tensorflow-rocm, tensorflow-cpu): whatever asks for
        # `tensorflow` would overwrite it with the wheel for other hardware.
        lines.append("tensorflow<0")
    return "\n".join(lines) + "\n"


def bootstrap() -> None:
    """Give this interpreter pip where it has none, from the wheel that Debian's python3-venv keeps."""
    if importlib.util.find_spec("pip") is None:
        wheel = sorted(glob.glob("/usr/share/python-wheels/pip-*.whl"))[-1]
        subprocess.run([sys.executable, f"{wheel}/pip", "install", "--quiet", "--no-deps", wheel], check=True)


def conflicts() -> set[str]:
    """Return what `pip check` complains about, one sentence each."""
    check = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    return set(check.stdout.splitlines()) if check.returncode else set()


def open_to_users() -> None:
    """Let group users add packages to a virtual environment of the base; only the folders change, no file in them.

    Beside a Debian Python this is not needed: pip falls back to the home folder there.
    """
    if sys.prefix != sys.base_prefix:
        for folder in {sysconfig.get_path(name) for name in ("purelib", "platlib", "scripts")}:
            os.chown(folder, 0, USERS_GID)
            os.chmod(folder, 0o2775)


def add(requirements: Path) -> tuple[int, int]:
    """Install what is missing, then compare; return how many distributions there were and how many came.

    Raises:
        SystemExit: a distribution changed, or does not go with the others.
    """
    before, conflicts_before = installed(), conflicts()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as rest:
        rest.write(missing(requirements.read_text(), before))
        rest.flush()
        options = ["--quiet", "--no-deps", "--require-hashes", "--requirement", rest.name]
        subprocess.run([sys.executable, str(Path(__file__).with_name("install.py")), *options], check=True)

    after = installed()
    for name, version in before.items():
        if after.get(name) != version:
            sys.exit(f"error: the build changed {name} {version} of {sys.prefix} to {after.get(name)}: report this")
    if added := conflicts() - conflicts_before:
        sys.exit(
            f"error: the packages of {sys.prefix} do not go with the lab's ({'; '.join(sorted(added))}): choose a "
            f"newer BASE_IMAGE, or loosen {requirements.with_suffix('.in').name} in requirements and run scripts/lock"
        )
    return len(before), len(after) - len(before)


def main(requirements: Path, constraint: Path | None = None) -> None:
    """Add the requirements; where constraints are asked for, to a kernel that came with the base image."""
    bootstrap()
    if constraint:
        constraint.write_text(constraints(installed()))
    kept, added = add(requirements)
    if constraint:
        finish_kernel(requirements)
    sys.stderr.write(f"{sys.executable}: {kept} distributions kept, {added} added\n")


def finish_kernel(requirements: Path) -> None:
    """Make sure that there is a kernel now, under our name only, and that users may add to it."""
    after = installed()
    if not {"ipykernel", "matplotlib", "numpy"} <= set(after):
        sys.exit(f"error: {requirements} has no kernel for {sys.executable} ({sys.version}): choose another BASE_IMAGE")
    # ipykernel installs a kernel named python3 beside the interpreter; the lab offers `tensorflow` instead.
    for prefix in {sys.prefix, "/usr/local"}:
        for file in Path(prefix, "share/jupyter/kernels/python3").glob("*"):
            file.unlink()
    open_to_users()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
