"""Install packages with uv, which is many times as fast as pip, from where the user's pip would take them.

Usage: PYTHON install.py ARGUMENTS..., those of `pip install`, run by the interpreter of the environment. uv reads none
of pip's settings, so they are translated here. pip itself installs where uv is not there, where a setting has no
equivalent in uv, and where uv fails: its error is the one shown.

Two arguments are ours. `--hashes PATTERN` names locks: the first that has all named packages in these versions is used
in their place, with its hashes and without what they require. With `--no-other-index` packages come from the index and
the folders among the arguments alone: pip takes the highest version that any place has, so another index of its
settings could replace a framework's build.
"""

from __future__ import annotations

import ast
import glob
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

UV = Path(os.environ.get("ROCMLAB_UV") or "/opt/uv", "bin/uv")
BUILDS_PIP = Path("/build/pip")  # in an image's build: with its certificates and configuration
COMPILED_PIP = UV.parents[1] / "pip"  # of the Python that installed uv, in an image's build
PIP = [str(BUILDS_PIP), sys.executable] if BUILDS_PIP.exists() else [sys.executable, "-m", "pip"]
SYSTEM_CERTIFICATES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/etc/ssl/cert.pem",  # macOS, Alpine
)
SECTIONS = ("global", "install", ":env:")  # the later wins, as with pip
# Settings of pip that change nothing about which files are installed.
WITHOUT_EFFECT = {
    "break-system-packages",  # always: the environment is ours, or the image's
    "cert",  # see `translated`
    "compile",  # see `compiles`
    "config-file",
    "debug",
    "disable-pip-version-check",
    "exists-action",
    "log",
    "no-color",
    "no-index",  # see `with_uv`
    "no-compile",
    "no-input",
    "no-python-version-warning",
    "no-warn-conflicts",
    "no-warn-script-location",
    "prefer-binary",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "require-virtual-env",
    "root-user-action",
    "use-feature",
    "verbose",
}
VARIABLES = {
    "client-cert": "SSL_CLIENT_CERT",
    "constraint": "UV_CONSTRAINT",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "retries": "UV_HTTP_RETRIES",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}
PLACES = {"index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS"}
SWITCHES = {
    "pre": {"UV_PRERELEASE": "allow"},
    "require-hashes": {"UV_REQUIRE_HASHES": "1"},
}
PIPS_OWN = ("--disable-pip-version-check", "--no-compile", "--no-input")
NAMED = {  # uv's are for all packages, and would replace what is there; pip's are for those that are named
    "--upgrade": "--upgrade-package",
    "-U": "--upgrade-package",
    "--force-reinstall": "--reinstall-package",
}
WITH_VALUE = ("--constraint", "-c", "--requirement", "-r", "--editable", "-e", "--no-binary", "--only-binary")
ALONE, HASHES = "--no-other-index", "--hashes"
PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)
NAME = re.compile(r"[A-Za-z0-9][\w.-]*(?=\s*([\[<>=!~;]|$))")
OFFLINE = "ROCMLAB_OFFLINE"  # from uv's cache alone, or not at all
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Untranslatable(Exception):
    """A setting of pip's that uv has no equivalent of."""


def settings(listing: str) -> dict[str, str]:
    """Return pip's effective settings from what `pip config list` prints, `{"index-url": "…"}`."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in found and (text := str(ast.literal_eval(value))):  # pip continues where one is empty
            found[section][name.lower().replace("_", "-")] = text
    return {name: value for section in SECTIONS for name, value in found[section].items()}


def canonical(name: str) -> str:
    """Spell a distribution's name as package indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def is_true(value: str) -> bool:
    """Return whether a switch of pip's is on."""
    return value.strip().lower() in ("1", "y", "yes", "t", "true", "on")


def compiles(found: Mapping[str, str], arguments: list[str]) -> bool:
    """Return whether pip would compile; as settings both names mean whether it does. Source: pip's "Configuration"."""
    return "--no-compile" not in arguments and all(is_true(found.get(name, "1")) for name in ("compile", "no-compile"))


def translated(found: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have uv act as pip does with these settings; `no-index` is an option of uv's only.

    Args:
        found: pip's effective settings, see `settings`.
        environment: the caller's variables, which pip and uv read as well.

    Raises:
        Untranslatable: a setting has no equivalent; pip has to install.
    """
    made: dict[str, str] = {}
    for name, value in found.items():
        if name not in WITHOUT_EFFECT:
            made |= _variables(name, value)
    given = found.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    if given:
        given = os.path.expanduser(given)
        made["SSL_CERT_DIR" if os.path.isdir(given) else "SSL_CERT_FILE"] = given
    elif not {"SSL_CERT_FILE", "SSL_CERT_DIR"} & set(environment) and any(map(os.path.isfile, SYSTEM_CERTIFICATES)):
        made["UV_SYSTEM_CERTS"] = "1"  # uv's own list lacks a company's authority; pip trusts the system's
    return made


def is_there(place: str) -> bool:
    """Return whether an index or folder of wheels is on another machine, or here."""
    return bool(re.match(r"(?!file:)\w+:", place)) or os.path.exists(place.removeprefix("file://"))


def _variables(name: str, value: str) -> dict[str, str]:
    """Return one setting of pip's as variables of uv's."""
    items = [os.path.expanduser(each) for each in value.split()]
    if name in PLACES:
        return _places(name, items)
    if name in VARIABLES:
        return {VARIABLES[name]: " ".join(items)}
    if name == "proxy":
        return dict.fromkeys(PROXIES, value if "://" in value else f"http://{value}")
    if name == "cache-dir":
        return {"UV_CACHE_DIR": os.path.join(os.path.expanduser(value), "uv")}
    if name == "no-cache-dir":  # any value counts, `off` included
        return {"UV_NO_CACHE": "1"}
    if name in SWITCHES:
        return SWITCHES[name] if is_true(value) else {}
    if name == "keyring-provider" and value in ("auto", "disabled"):  # without questions `auto` is `disabled`
        return {}
    raise Untranslatable(name)


def _places(name: str, items: list[str]) -> dict[str, str]:
    """Return the setting of an index, of more of them, or of folders and pages with links to wheels."""
    if name != "index-url":  # pip continues without a folder that is not there, uv does not
        items = [each for each in items if is_there(each)]
    if any(each.startswith("http://") or ("," in each and name == "find-links") for each in items):
        raise Untranslatable(name)  # pip takes nothing from such an address unless its host is trusted, uv does
    if not items:
        return {}
    if name == "extra-index-url":  # pip takes the best version of all indices, uv by default the first index's
        return {PLACES[name]: " ".join(items), "UV_INDEX_STRATEGY": "unsafe-best-match"}
    return {PLACES[name]: ("," if name == "find-links" else " ").join(items)}


def split(arguments: list[str]) -> tuple[list[str], dict[str, str], dict[str, list[str]]]:
    """Return the arguments that uv takes, those in the place of pip's settings, and those that come beside them."""
    rest: list[str] = []
    found: dict[str, str] = {}
    added: dict[str, list[str]] = {"find-links": [], "constraint": []}
    remaining = iter(arguments)
    for each in remaining:
        name = each.removeprefix("--")
        if each in ("--index-url", "--retries"):
            found[name] = next(remaining)
        elif each in ("--find-links", "--constraint"):
            added[name].append(next(remaining))
        else:
            rest.append(each)
    return rest, found, added


def named(rest: list[str]) -> list[str]:
    """Return the arguments with those of pip that concern only the named packages as uv has them.

    Raises:
        Untranslatable: the packages are named in a file, or by an address.
    """
    wanted = [each for each in rest if each in NAMED]
    if not wanted:
        return rest
    before = ["", *rest]
    requirements = [
        each for each, last in zip(rest, before, strict=False) if each[:1] != "-" and last not in WITH_VALUE
    ]
    names = [NAME.match(each) for each in requirements]
    if not names or not all(names) or any(each in WITH_VALUE[2:6] for each in rest):
        raise Untranslatable(wanted[0].lstrip("-"))
    options = [word for each in wanted for name in names if name for word in (NAMED[each], name[0])]
    return [*options, *(each for each in rest if each not in NAMED)]


def joined(added: Mapping[str, list[str]], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of what is given by arguments beside pip's settings, those included.

    Raises:
        Untranslatable: a path has the sign that separates it from the next one.
    """
    made: dict[str, str] = {}
    for name, variable, separator in (("find-links", "UV_FIND_LINKS", ","), ("constraint", "UV_CONSTRAINT", " ")):
        if any(separator in each or each.startswith("http://") for each in added[name]):
            raise Untranslatable(name)
        if added[name]:
            made[variable] = separator.join([*filter(None, [environment.get(variable)]), *added[name]])
    return made


def concerning(constraints: str, arguments: list[str]) -> str:
    """Return the files of constraints that name a package of the locks among the arguments, or may name one.

    Beside hashes uv takes no constraint that allows several versions, not even of a package that is not installed.
    """
    locks = [each for last, each in zip(["", *arguments], arguments, strict=False) if last in ("--requirement", "-r")]
    installed = {name for lock in locks for name in _names_in(lock)}
    if "" in installed:
        return constraints
    return " ".join(each for each in constraints.split() if {"", *installed} & set(_names_in(each)))


def _names_in(file: str) -> list[str]:
    """Return the canonical names of the packages that a file of requirements has; "" for what is something else."""
    try:
        with open(file, encoding="utf-8") as opened:
            lines = [line.partition("#")[0].strip() for line in opened.read().replace("\\\n", " ").splitlines()]
    except (OSError, ValueError):
        return [""]
    found = [NAME.match(line) for line in lines if line]
    return [canonical(name[0]) if name else "" for name in found]


def by_hashes(arguments: list[str]) -> list[str]:
    """Return the arguments with a lock in place of the packages that it has in these versions, if there is one.

    `torch==2.13.0` means the lock's `torch==2.13.0+rocm7.2` as well: an index has one build. A build that is named,
    as in `torch==2.13.0+own`, is that one alone.
    """
    if HASHES not in arguments:
        return arguments
    start = arguments.index(HASHES)
    rest = arguments[:start] + arguments[start + 2 :]
    valued = (*WITH_VALUE, "--find-links", "--index-url", "--retries")
    wanted = [each for last, each in zip(["", *rest], rest, strict=False) if each[:1] != "-" and last not in valued]
    pins = [PINNED.fullmatch(each) for each in wanted]
    for lock in sorted(glob.glob(arguments[start + 1])):
        with open(lock, encoding="utf-8") as file:
            found = dict(PINNED.findall(file.read()))
        if pins and all(each and each[2] in _names_of(found.get(each[1], "")) for each in pins):
            sys.stderr.write(f"{' '.join(wanted)}: by the hashes of {os.path.basename(lock)}\n")
            return [each for each in rest if each not in wanted] + [
                "--no-deps",
                "--require-hashes",
                "--requirement",
                lock,
            ]
    return rest


def _names_of(version: str) -> tuple[str, str]:
    """Return what may name a version: itself, and the same without its build."""
    return version, version.partition("+")[0]


def effective(arguments: list[str]) -> dict[str, str]:
    """Return pip's settings that hold beside these arguments.

    Raises:
        ValueError: they cannot be read.
    """
    listing = _config_list({"PYTHONPATH": str(COMPILED_PIP)} if COMPILED_PIP.exists() else {})
    if listing.returncode and COMPILED_PIP.exists():  # it may be too old for this Python
        listing = _config_list({})
    if listing.returncode:
        raise ValueError(listing.stderr)
    try:
        found = settings(listing.stdout)
    except SyntaxError as err:
        raise ValueError(str(err)) from err
    return {name: value for name, value in found.items() if ALONE not in arguments or name not in PLACES}


def _config_list(environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [*PIP, "config", "list"]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)


def with_uv(arguments: list[str]) -> str:
    """Install with uv; return why it did not, empty where it did."""
    if not os.access(UV, os.X_OK):
        return "it is not there"
    rest, given, added = split([each for each in arguments if each != ALONE])
    # uv's own variables could name another index: only pip's settings say where packages come from.
    own = {name: value for name, value in os.environ.items() if not name.startswith("UV_") or name == "UV_CACHE_DIR"}
    try:
        found = effective(arguments) | given
        environment = own | translated(found, own)
        environment |= joined(added, environment)
        if "--require-hashes" in rest or environment.get("UV_REQUIRE_HASHES"):
            constraints = concerning(environment.pop("UV_CONSTRAINT", ""), rest)
            environment |= {"UV_CONSTRAINT": constraints} if constraints else {}
        rest = named(rest)
    except Untranslatable as err:
        return f"it has no equivalent of pip's setting {err}"
    except ValueError:
        return "the settings of pip cannot be read"
    options = ["--no-config", "--no-python-downloads", "--python", sys.executable, "--break-system-packages"]
    options += ["--no-index"] if is_true(found.get("no-index", "")) and "--no-index" not in rest else []
    options += ["--link-mode", "copy"] if BUILDS_PIP.exists() else []  # the build's cache is on another file system
    options += ["--offline"] if os.environ.get(OFFLINE) else []
    options += ["--compile-bytecode"] if compiles(found, rest) else []
    command = [str(UV), "pip", "install", *options, *(each for each in rest if each not in PIPS_OWN)]
    try:
        code = subprocess.run(command, env=environment, check=False, close_fds=False).returncode  # keeps a lock
    finally:
        for lock in (Path(sys.prefix, ".lock"), *(Path("/tmp").glob("uv-*.lock") if BUILDS_PIP.exists() else ())):
            lock.unlink(missing_ok=True)  # uv's, open for every user to write
    if not code and BUILDS_PIP.exists():
        forget_times(Path(sysconfig.get_path("purelib")))
    return f"it ended with exit code {code}" if code else ""


def forget_times(packages: Path) -> None:
    """Remove uv's notes of when local wheels were made, in which two builds of one image would differ.

    uv reads them to install such a wheel again when it has changed; in an image nothing does.
    """
    for note in packages.glob("*.dist-info/uv_cache.json"):
        record = note.with_name("RECORD")
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(each for each in lines if f"/{note.name}," not in each), encoding="utf-8")
        note.unlink()


def with_pip(arguments: list[str]) -> int:
    """Install with pip; return its exit code."""
    if ALONE not in arguments:
        return subprocess.run([*PIP, "install", *arguments], check=False, close_fds=False).returncode
    try:
        found = effective(arguments)
    except ValueError as err:
        sys.stderr.write(f"ERROR: the settings of pip cannot be read: {err}\n")
        return 2
    # No argument takes an index of a configuration file back, so the other settings are given in that file's place.
    own = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    own |= {f"PIP_{name.upper().replace('-', '_')}": value for name, value in found.items()}
    command = [sys.executable, "-m", "pip", "install", *(each for each in arguments if each != ALONE)]
    environment = {**own, "PIP_CONFIG_FILE": os.devnull}
    return subprocess.run(command, env=environment, check=False, close_fds=False).returncode


def main(arguments: list[str]) -> int:
    """Install with uv, else with pip; return the exit code."""
    if BUILDS_PIP.exists():
        os.umask(0o002)  # files in the cache that all steps share keep the mode they got first
    arguments = by_hashes(arguments)
    why = with_uv(arguments)
    if not why or os.environ.get(OFFLINE):
        return 1 if why else 0
    sys.stderr.write(f"pip installs, not uv: {why}\n")
    sys.stderr.flush()
    return with_pip(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
