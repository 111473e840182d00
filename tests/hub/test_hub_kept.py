"""What the hub keeps in small files, after a full disk or a power cut has left one empty or damaged."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tornado import web

from rocmlab.base.errors import RocmlabError
from rocmlab.hub import authenticators, commands, configuration, kept
from rocmlab.hub.administration import Administration
from rocmlab.hub.configuration import Access, Configuration
from rocmlab.hub.uids import FIRST, Uids

SECRETS = [(authenticators.setup_password, authenticators.SETUP), (commands.token, commands.FILE)]


@pytest.mark.parametrize("left", ["", "{", "[]", '{"ada": null}', "\0" * 8])
def test_a_damaged_file_of_uids_gives_no_number_again(tmp_path: Path, left: str) -> None:
    """It is an error, which names the file; bob would else get ada's uid. No file has no ids, and is none."""
    uids = Uids(tmp_path / "uids.json", has_accounts=False, subordinate=tmp_path / "none")
    assert [uids.of("ada"), uids.of("eve")] == [FIRST, FIRST + 1]
    (tmp_path / "uids.json").write_text(left)

    for ask in (uids.of, uids.known):
        with pytest.raises(RocmlabError, match=r"uids\.json is damaged") as raised:
            ask("bob")
        assert "docs/hub.md" in raised.value.problem.fix
    assert (tmp_path / "uids.json").read_text() == left


def test_the_uids_are_checked_before_the_hub_starts(tmp_path: Path) -> None:
    """With what `make hub-up` calls."""
    access = Access("oauth", ("chief",), (), is_open=True)
    Uids.of_hub(tmp_path, access).check()
    (tmp_path / "uids.json").touch()

    with pytest.raises(RocmlabError, match="is damaged"):
        Uids.of_hub(tmp_path, access).check()


def test_the_administrators_page_says_that_the_uids_are_damaged(tmp_path: Path) -> None:
    """It shows whose lab has which GPU by uids; the error has its fix, and is no traceback."""
    (tmp_path / "uids.json").touch()
    uids = Uids(tmp_path / "uids.json", has_accounts=False)

    class Lab:
        @property
        def uid(self) -> int | None:
            return uids.known("ada")

    class Pages(Administration):
        def spawners(self) -> list[Any]:
            return [Lab()]

    with pytest.raises(web.HTTPError, match=r"docs/hub\.md"):
        asyncio.run(Pages().look())


@pytest.mark.parametrize(("secret", "name"), SECRETS)
@pytest.mark.parametrize("left", [None, b"", b"\n", b"\0" * 64])
def test_a_secret_is_made_once_also_where_its_file_was_left_empty(
    tmp_path: Path, secret: Callable[[Path], str], name: str, left: bytes | None
) -> None:
    """An empty password would be printed, and no one could sign up with it; the file is private, and no draft stays."""
    if left is not None:
        (tmp_path / name).write_bytes(left)

    found = secret(tmp_path)

    assert len(found) >= 24
    assert found.isprintable()
    assert secret(tmp_path) == found
    assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_secret_that_another_process_makes_meanwhile_counts(tmp_path: Path) -> None:
    """The hub and a command may both find none; both have the same one then."""

    def make() -> str:
        (tmp_path / "secret").write_text("the other's")
        return "ours"

    assert kept.secret(tmp_path / "secret", make) == "the other's"


def test_a_secret_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    """The error is reported, and the next try makes it."""

    def fail() -> str:
        raise OSError("No space left on device")

    with pytest.raises(RocmlabError, match="No space left on device"):
        kept.secret(tmp_path / "secret", fail)

    assert list(tmp_path.iterdir()) == []
    assert kept.secret(tmp_path / "secret", lambda: "made") == "made"


@pytest.mark.parametrize("left", ["", "{}", json.dumps([])])
def test_a_damaged_configuration_is_an_error_with_a_fix(tmp_path: Path, left: str) -> None:
    """It has the ports that labs know."""
    path = tmp_path / configuration.FILE
    path.write_text(left)

    with pytest.raises(RocmlabError, match="is damaged") as raised:
        Configuration.read(path)
    assert raised.value.problem.fix == f"rm {path}; make hub-up"
