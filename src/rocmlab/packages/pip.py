"""What pip starts in our kernel in the place of its interpreter: it brings `%pip install` to the overlay.

A kernel's environment has PIP_PYTHON, pip's own setting for "work in that environment": pip starts this program with
the path of its runner and its arguments. So `%pip`, `!pip`, `python -m pip` and what a program starts have one way.

pip of another environment, such as one that a notebook has made, continues as if nothing was set.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import installing, overlays, report, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

COMMANDS = {"install", "uninstall", "download", "freeze", "inspect", "list", "show", "check", "config", "search"} | {
    *("cache", "index", "wheel", "hash", "completion", "debug", "help", "lock")
}
ELSEWHERE = ("--target", "-t", "--prefix", "--root", "--dry-run", "--help", "-h", "--python")
PLACES = {"index_url": "--index-url", "extra_index_url": "--extra-index-url", "find_links": "--find-links"}
REACH = {"trusted_host": "PIP_TRUSTED_HOST", "cert": "PIP_CERT", "proxy": "PIP_PROXY", "timeout": "PIP_TIMEOUT"}
VALUELESS = (  # options of pip that change nothing here
    *("--quiet", "-q", "--verbose", "-v", "--no-input", "--disable-pip-version-check", "--user"),
    *("--no-cache-dir", "--break-system-packages", "--no-warn-script-location", "--no-warn-conflicts", "--no-color"),
    *("--prefer-binary", "--no-compile", "--compile", "--require-virtualenv", "--no-user"),
)


@dataclass
class Request:
    """What `pip install` is to do."""

    wanted: list[Requirement] = field(default_factory=list)
    options: list[str] = field(default_factory=list)  # for this installation alone
    variables: dict[str, str] = field(default_factory=dict)  # settings of pip that say how to reach an index


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _not_ours(message)


def _not_ours(why: str) -> RocmlabError:
    """Return the error for what pip itself would do to the lab's packages, or to an overlay that kernels run from."""
    what = "this call of pip does not go with packages of your own"
    return RocmlabError(what, why, "omit this, or use an environment that you make yourself: python -m venv")


def parse(arguments: Sequence[str]) -> Request | None:
    """Return what `pip install` with these arguments adds to the overlay; None: it is for another place, or a question.

    Raises:
        RocmlabError: it has an option that is not known here.
    """
    if any(each.partition("=")[0] in ELSEWHERE for each in arguments):
        return None
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("packages", nargs="*")
    parser.add_argument("-e", "--editable", action="append", default=[])
    parser.add_argument("-r", "--requirement", action="append", default=[])
    parser.add_argument("-i", "--index-url", "--pypi-url")
    parser.add_argument("-f", "--find-links", action="append", default=[])
    parser.add_argument("--extra-index-url", action="append", default=[])
    for name in ("--no-index", "--no-deps", "--pre", "--no-build-isolation"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("-U", "--upgrade", action="store_true")
    parser.add_argument("--force-reinstall", "-I", "--ignore-installed", action="store_true")
    for name in ("--no-binary", "--only-binary", "-c/--constraint"):
        parser.add_argument(*name.split("/"), action="append", default=[])
    for name in (*REACH, "retries", "progress_bar", "upgrade_strategy", "root_user_action", "log", "cache_dir"):
        parser.add_argument("--" + name.replace("_", "-"))
    words = [word for each in arguments for word in _apart(each)]
    return _request(parser.parse_intermixed_args([each for each in words if each not in VALUELESS]))


def _apart(word: str) -> list[str]:
    """Return the options of one word, as pip takes them: `-Uq` is `-U -q`."""
    flags = re.match(r"-([qvUI]+)(?=[A-Za-z]|$)", word)
    if word.startswith("--") or flags is None or len(word) == 2:
        return [word]
    rest = word[flags.end() :]
    return [*(f"-{each}" for each in flags[1]), *([f"-{rest}"] if rest else [])]


def _request(found: argparse.Namespace) -> Request:
    kept: list[str] = []  # needed again by `sync`
    for name, option in PLACES.items():
        values = getattr(found, name) or []
        for value in [values] if isinstance(values, str) else values:
            kept += [option, value if "://" in value else os.path.abspath(value)]
    kept += [f"--{name.replace('_', '-')}" for name in ("no_index", "no_deps", "pre") if getattr(found, name)]
    kept += [word for name in ("no_binary", "only_binary") for value in getattr(found, name) for word in (name, value)]
    kept = [f"--{each.replace('_', '-')}" if each in ("no_binary", "only_binary") else each for each in kept]
    texts = [requested.absolute(each) for each in found.packages]
    texts += [requested.editable(each) for each in found.editable]
    texts += [text for each in found.requirement for text in requested.of_file(each)]
    options = [word for value in found.constraint for word in ("--constraint", value)]
    names = ("upgrade", "force_reinstall", "no_build_isolation")
    options += [f"--{name.replace('_', '-')}" for name in names if getattr(found, name)]
    reach = {variable: value for name, variable in REACH.items() if (value := getattr(found, name))}
    return Request([Requirement(each, tuple(kept)) for each in texts], options, reach)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what pip was called for, and return the exit code."""
    runner, *words = sys.argv[1:] if arguments is None else arguments
    place = overlays.of_environment(os.environ)
    caller = _caller(runner)
    if place is None or not _is_ours(caller, place):
        return _pip(caller, runner, words)
    command = next((each for each in words if each in COMMANDS), "")
    start = words.index(command) if command else len(words)
    before, rest = words[:start], words[start + 1 :]
    try:
        if command == "install" and (request := parse([*before, *rest])) and request.wanted:
            os.environ.update(request.variables)
            report.show(installing.add(place, request.wanted, _say, request.options), place)
            return 0
        names = [each for each in rest if not each.startswith("-")]
        if command == "uninstall" and any(re.match(r"-r|--requirement", each) for each in rest):
            raise _not_ours("a file of what to uninstall; name the packages instead")
        if command == "uninstall" and names and not {"-h", "--help"} & set(rest):
            report.show(installing.remove(place, names, _say), place)
            return 0
    except RocmlabError as err:
        sys.stderr.write(f"ERROR: {err}\n")
        return err.exit_code
    prefix = place.current()
    return _pip(str(prefix / "bin/python") if prefix else place.python, runner, words)


def _caller(runner: str) -> str:
    """Return the interpreter of the pip that started this. Source: /proc; else where that pip is."""
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return str(Path(runner).parents[4] / "bin/python3")
    name = os.fsdecode(words[0])
    return name if "/" in name else shutil.which(name) or name


def _is_ours(python: str, place: Place) -> bool:
    """Return whether an interpreter is the lab's for this kernel, or one of its overlays."""
    prefix = Path(os.path.abspath(python)).parent.parent
    own = os.path.realpath(place.folder)
    is_base = os.path.realpath(prefix) == os.path.realpath(Path(place.python).parent.parent)
    return is_base or os.path.realpath(prefix).startswith(own + os.sep)


def _pip(python: str, runner: str, words: Sequence[str]) -> int:
    """Have an interpreter's own pip do it."""
    environment: Mapping[str, str] = {name: text for name, text in os.environ.items() if name != "PIP_PYTHON"}
    return subprocess.run([python, runner, *words], env=environment, check=False).returncode


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    raise SystemExit(main())
