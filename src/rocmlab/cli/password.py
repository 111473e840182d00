"""`rocmlab password`: Jupyter's login by password, next to the token."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import command_parser

MIN_CHARACTERS = 10


def main(command: str, arguments: Sequence[str], ask: Callable[[str], str] = getpass.getpass) -> int:
    """Set or remove the password; a running lab takes it within seconds."""
    chosen = build_parser(command).parse_args(arguments)
    if "ROCMLAB_RUNTIME" not in os.environ:
        from rocmlab.stack import project as projects

        lab = projects.reopen(projects.find()).lab
        if lab.inside() is None:
            raise RocmlabError("the lab is not running", "its Jupyter hashes the password", "make up")
        return lab.run([command, *arguments])
    from jupyter_core.paths import jupyter_config_dir
    from jupyter_server.auth.security import persist_config, set_password

    file = Path(jupyter_config_dir()) / "jupyter_server_config.json"
    before = os.umask(0o077)  # Jupyter sets the mode of what it has written
    try:
        if not chosen.remove:
            set_password(_asked(ask), str(file))  # type: ignore[no-untyped-call]
        elif file.exists():
            with persist_config(str(file)) as found:
                found.get("IdentityProvider", {}).pop("hashed_password", None)
    except EOFError:  # Ctrl-D
        raise KeyboardInterrupt from None
    finally:
        os.umask(before)
    print("the password was removed; the token still logs in" if chosen.remove else "the password is set")
    print("a running lab takes it in a few seconds; browsers log in again")
    return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab password`."""
    epilog = "It is asked for twice and kept as Jupyter's hash (argon2) on the share."
    parser = command_parser(command, example="--remove", epilog=epilog)
    parser.add_argument("--remove", action="store_true", help="log in by the token alone again")
    return parser


def _asked(ask: Callable[[str], str]) -> str:
    """Return the password that was typed twice."""
    if ask is getpass.getpass and not sys.stdin.isatty():
        raise RocmlabError("there is no terminal", "a password is typed, and never an argument", "run it in a terminal")
    first = ask("Password: ")
    if len(first) < MIN_CHARACTERS:
        why = "other machines may try it"
        raise RocmlabError(f"the password has fewer than {MIN_CHARACTERS} characters", why, "choose a longer one")
    if ask("Again: ") != first:
        raise RocmlabError("the passwords differ", "nothing was changed", "rocmlab password")
    return first
