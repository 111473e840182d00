"""Add to an environment what it lacks of a list of requirements, and prove that nothing else changed.

Usage: PYTHON additions.py REQUIREMENTS [CONSTRAINTS [OPTIONAL]], run by the interpreter of the environment. With
CONSTRAINTS it is the one that has TensorFlow, which a kernel's needs are added to: the versions found are written
there, and pip reads them in every later installation, so that none can replace this TensorFlow. Of OPTIONAL it gets
what goes with the packages that it has. What /opt/torch has in the same version is not installed a second time: links
to it are put on the path.
"""

from __future__ import annotations

import csv
import functools
import glob
import hashlib
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

from install import canonical

USERS_GID = 100  # docker-stacks' group of the lab user
TAG = f"python{sys.version_info.major}.{sys.version_info.minor}"
LENDER = Path("/opt/torch/lib", TAG, "site-packages")  # of the same Python, else there is no such folder
# Links to its packages, last on the path: what the base has or gets is found first, and pip changes nothing in here.
SHARED = Path("/opt/shared/lib", TAG, "site-packages")
PATH_FILE = "shared_packages.pth"


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


def share(lock: str, present: dict[str, str], lender: Path = LENDER, shared: Path = SHARED) -> dict[str, str]:
    """Link what is missing of a lock and is in another environment of the same Python; return the versions by name.

    Programs (`bin`) and data outside of the packages are not linked.
    """
    wanted = re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", missing(lock, present), flags=re.MULTILINE)
    locked = {(canonical(name), version) for name, version in wanted}
    names = dict(locked)
    linked = {}
    for information in lender.glob("*.dist-info"):
        name = canonical(information.name.split("-")[0])
        if name not in names:  # as PyTorch, which may not be all there yet
            continue
        distribution = importlib.metadata.PathDistribution(information)
        version = distribution.version
        if (name, version) not in locked or not (tops := _tops(distribution)):
            continue
        shared.mkdir(parents=True, exist_ok=True)
        for top in tops:
            if not (shared / top).is_symlink():
                (shared / top).symlink_to(lender / top)
        linked[name] = version
    return linked


def put_on_path(purelib: Path, shared: Path = SHARED) -> None:
    """Have this interpreter find the links, by a file next to its packages."""
    purelib.mkdir(parents=True, exist_ok=True)
    (purelib / PATH_FILE).write_text(f"{shared}\n")
    if str(shared) not in sys.path:
        sys.path.append(str(shared))


def name_links(purelib: Path, shared: Path = SHARED) -> None:
    """Describe the links as a distribution, so that what depends on the names of all packages notices other links."""
    found = sorted(path.name for path in shared.glob("*.dist-info"))
    version = f"1+{hashlib.sha256(repr(found).encode()).hexdigest()[:12]}"
    information = purelib / f"shared_packages-{version}.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: shared-packages\nVersion: {version}\n"
        f"Summary: Packages that this interpreter shares with {LENDER.parents[2]}.\n"
    )
    (information / "INSTALLER").write_text("rocmlab\n")
    (information / "RECORD").write_text(f"{PATH_FILE},,\n{information.name}/RECORD,,\n")


def bootstrap() -> None:
    """Give this interpreter pip where it has none, from the wheel that Debian's python3-venv keeps."""
    if importlib.util.find_spec("pip") is None:
        wheel = sorted(glob.glob("/usr/share/python-wheels/pip-*.whl"))[-1]
        subprocess.run([sys.executable, f"{wheel}/pip", "install", "--quiet", "--no-deps", wheel], check=True)


def conflicts() -> set[str]:
    """Return what `pip check` complains about, one sentence each."""
    return _conflicts(frozenset(installed().items()))


@functools.cache
def _conflicts(_: frozenset[tuple[str, str]]) -> set[str]:
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


def install(requirements: Path, before: dict[str, str], *, is_base: bool) -> dict[str, str]:
    """Share or install what is missing of a list, without changing anything else; return the versions of what came.

    Raises:
        SystemExit: a distribution changed.
    """
    lock = requirements.read_text()
    if shared := share(lock, before) if is_base else {}:
        put_on_path(Path(sysconfig.get_path("purelib")))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as rest:
        rest.write(missing(lock, {**before, **shared}))
        rest.flush()
        options = ["--quiet", "--no-deps", "--require-hashes", "--requirement", rest.name]
        subprocess.run([sys.executable, str(Path(__file__).with_name("install.py")), *options], check=True)
    after = installed()
    for name, version in before.items():
        if after.get(name) != version:
            sys.exit(f"error: the build changed {name} {version} of {sys.prefix} to {after.get(name)}: report this")
    return {name: version for name, version in after.items() if name not in before}


def add(requirements: Path, *, is_base: bool = False) -> tuple[int, int]:
    """Install what is missing, then compare; return how many distributions there were and how many came.

    Raises:
        SystemExit: a distribution changed, or does not go with the others.
    """
    before, conflicts_before = installed(), conflicts()
    came = install(requirements, before, is_base=is_base)
    if added := conflicts() - conflicts_before:
        sys.exit(
            f"error: the packages of {sys.prefix} do not go with the lab's ({'; '.join(sorted(added))}): choose a "
            f"newer BASE_IMAGE, or loosen {requirements.with_suffix('.in').name} in requirements and run scripts/lock"
        )
    return len(before), len(came)


def remove(names: set[str], shared: Path = SHARED) -> None:
    """Remove distributions that came: those that are links, and by pip the others."""
    tops = {each.name: _tops(importlib.metadata.PathDistribution(each)) for each in shared.glob("*.dist-info")}
    linked = {each: canonical(each.split("-")[0]) for each in tops}
    kept = {top for each, name in linked.items() if name not in names for top in tops[each]}
    for top in {top for each, name in linked.items() if name in names for top in tops[each]} - kept:
        (shared / top).unlink()
    if rest := names - set(linked.values()):
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *sorted(rest)], check=True)


def _tops(distribution: importlib.metadata.Distribution) -> set[str]:
    """Return the folders and files of a distribution directly in `site-packages`, its `.dist-info` among them."""
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    return {Path(path).parts[0] for path, *_ in rows if path} - {"..", "__pycache__"}


def add_what_fits(requirements: Path) -> None:
    """Install what is missing, and remove again what does not go with the packages that are there; report both.

    Raises:
        SystemExit: a distribution changed, or something that was there does not go with what came.
    """
    before, conflicts_before = installed(), conflicts()
    came = install(requirements, before, is_base=True)
    reasons: list[str] = []
    while added := conflicts() - conflicts_before:
        names = {canonical(sentence.split()[0]) for sentence in added} & set(came)
        if not names:
            sys.exit(f"error: {'; '.join(sorted(added))}: remove {requirements.name}'s package from that list")
        remove(names)
        came = {name: version for name, version in came.items() if name not in names}
        reasons += sorted(added)
    if reasons:
        sys.stderr.write(f"{sys.executable}: some packages are omitted: {'; '.join(reasons)}\n")
    sys.stderr.write(f"{sys.executable}: {', '.join(sorted(came)) or 'nothing'} added\n")


def main(requirements: Path, constraint: Path | None = None, optional: Path | None = None) -> None:
    """Add the requirements; where constraints are requested, to a kernel that came with the base image."""
    bootstrap()
    if constraint:
        constraint.write_text(constraints(installed()))
    kept, added = add(requirements, is_base=constraint is not None)
    if optional:
        add_what_fits(optional)
    if constraint:
        if SHARED.exists():
            name_links(Path(sysconfig.get_path("purelib")))
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
