"""PULL=on: which image, signed by whom, and what cosign's answer means; with the real cosign in tests/container."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import released, settings
from rocmlab.stack.released import NotUsed, Release
from rocmlab.stack.settings import Settings

WORKFLOW = f"/.github/workflows/release.yml@refs/tags/v{__version__}"
DIGEST = f"sha256:{'a' * 64}"


def clone(folder: Path, origin: str = "", **chosen: str) -> Settings:
    """Return the settings of a clone of this address."""
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    if origin:
        subprocess.run(["git", "-C", folder, "remote", "add", "origin", origin], check=True)
    return settings.load(folder, chosen)


def cosign(folder: Path, output: object, code: int = 0, errors: str = "") -> dict[str, str]:
    """Write a program in cosign's place, and return the environment in which it is found."""
    program = folder / "bin/cosign"
    program.parent.mkdir()
    (folder / "output").write_text(output if isinstance(output, str) else json.dumps(output))
    (folder / "errors").write_text(errors)
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >{folder}/words\ncat {folder}/output\ncat {folder}/errors >&2\nexit {code}\n'
    )
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:/usr/bin:/bin"}


def signature(digest: str = DIGEST, **annotations: str) -> dict[str, object]:
    """Return one entry of what `cosign verify --output json` prints."""
    return {"critical": {"image": {"docker-manifest-digest": digest}}, "optional": annotations or None}


@pytest.mark.parametrize(
    ("origin", "repository"),
    [
        ("https://github.com/Someone/rocmlab", "Someone/rocmlab"),
        ("https://github.com/Someone/rocmlab.git", "Someone/rocmlab"),
        ("git@github.com:Someone/rocmlab.git", "Someone/rocmlab"),
        ("ssh://git@github.com/Someone/rocmlab/", "Someone/rocmlab"),
    ],
)
def test_the_workflow_of_the_repository_that_was_cloned_must_have_signed(
    tmp_path: Path, origin: str, repository: str
) -> None:
    """For this very version, and no other workflow, branch or repository."""
    found = released.of(clone(tmp_path, origin), "slim")

    assert found.image.endswith(f"/{repository.lower()}/rocm-slim:{__version__}")
    assert found.signer[-1] == f"https://github.com/{repository}{WORKFLOW}"
    assert found.signer[-2] == "--certificate-identity"  # as it is, not a pattern
    assert found.signer[:2] == ("--certificate-oidc-issuer", "https://token.actions.githubusercontent.com")


@pytest.mark.parametrize(
    "origin", ["", "https://github.com.evil.example/a/b", "/srv/git/a", "https://github.com/a/b/c"]
)
def test_a_clone_of_elsewhere_has_no_releases(tmp_path: Path, origin: str) -> None:
    """Until the repository is named, which then must have signed."""
    with pytest.raises(NotUsed, match="PULL_FROM names none"):
        released.of(clone(tmp_path, origin), "cpu")

    named = released.of(settings.load(tmp_path, {"PULL_FROM": "Someone/rocmlab"}), "cpu")
    assert named.signer[-1] == f"https://github.com/Someone/rocmlab{WORKFLOW}"


@pytest.mark.parametrize(
    ("chosen", "what"),
    [
        ({"PULL_FROM": "registry.example/a/b"}, "invalid PULL_FROM=registry.example/a/b"),
        ({"PULL_KEY": "none.pub", "PULL_FROM": "registry.example/a"}, "PULL_KEY=none.pub is not a file"),
        ({"PULL_KEY": "none.pub"}, "PULL_FROM is not set"),
    ],
)
def test_a_wrong_setting_is_an_error(tmp_path: Path, chosen: dict[str, str], what: str) -> None:
    """It is not taken for a reason to build: the user meant to pull."""
    with pytest.raises(RocmlabError) as caught:
        released.of(clone(tmp_path, "https://github.com/a/b", **chosen), "cpu")

    assert caught.value.problem.what == what


def test_on_and_off_are_all_there_is(tmp_path: Path) -> None:
    """Off by default."""
    assert not released.is_chosen(settings.load(tmp_path, {}))
    assert released.is_chosen(settings.load(tmp_path, {"PULL": "on"}))
    with pytest.raises(RocmlabError, match="invalid PULL=yes"):
        released.is_chosen(settings.load(tmp_path, {"PULL": "yes"}))


RELEASE = Release("registry.example:5000/a/cpu:1", ("--key", "k"), "the key k")


def test_the_digest_that_was_verified_is_pulled(tmp_path: Path) -> None:
    """Not the tag, which may be moved meanwhile; of several signatures the one with these inputs."""
    answer = [signature(f"sha256:{'b' * 64}", **{"rocmlab.inputs": "other"}), signature(**{"rocmlab.inputs": "mine"})]
    environment = cosign(tmp_path, answer)

    assert RELEASE.verified("mine", environment) == f"registry.example:5000/a/cpu@{DIGEST}"
    words = (tmp_path / "words").read_text().split()
    assert words == ["verify", "--output", "json", "--key", "k", "registry.example:5000/a/cpu:1"]


@pytest.mark.parametrize(
    "answer",
    [
        [signature(**{"rocmlab.inputs": "other"})],
        [signature()],
        [signature("sha256:short", **{"rocmlab.inputs": "mine"})],
        [{}, 1],
        "no JSON",
        {"critical": {}},
    ],
)
def test_what_was_made_from_something_else_is_not_used(tmp_path: Path, answer: object) -> None:
    """Nor an answer that cannot be read."""
    with pytest.raises(NotUsed, match="made from other files or settings"):
        RELEASE.verified("mine", cosign(tmp_path, answer))


def test_what_cosign_rejects_is_not_used(tmp_path: Path) -> None:
    """Whatever it prints beside; its error is the reason."""
    answer = [signature(**{"rocmlab.inputs": "mine"})]
    environment = cosign(tmp_path, answer, code=1, errors="WARNING: a\nError: no matching signatures\n")

    with pytest.raises(NotUsed, match="not verified as signed by the key k: no matching signatures"):
        RELEASE.verified("mine", environment)


def test_without_cosign_the_line_says_what_to_install(tmp_path: Path) -> None:
    """An image is never used unverified."""
    with pytest.raises(NotUsed, match="cosign, which verifies it, is missing: install it"):
        RELEASE.verified("mine", {"PATH": str(tmp_path)})
