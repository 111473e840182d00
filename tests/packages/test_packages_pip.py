"""Arguments of pip, names that are protected, and lists: functions of text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import building, overlays, pip, protection, report, requested
from rocmlab.packages.installing import Outcome, reason
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement


class TestArguments:
    """`pip install …`."""

    def test_where_packages_are_is_kept_for_the_next_image(self) -> None:
        """What holds for this installation alone is not."""
        words = ["-U", "--quiet", "--index-url=https://one/simple", "-f", "wheels", "a", "--pre", "b>=1"]

        found = pip.parse(words)

        assert found is not None
        kept = ("--index-url", "https://one/simple", "--find-links", os.path.abspath("wheels"), "--pre")
        assert found.wanted == [Requirement("a", kept), Requirement("b>=1", kept)]
        assert found.options == ["--upgrade"]

    def test_paths_do_not_depend_on_the_current_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """They are used again, by another command."""
        monkeypatch.chdir(tmp_path)
        (tmp_path / "a-1-py3-none-any.whl").touch()

        found = pip.parse(
            ["a-1-py3-none-any.whl", "./b", "-e", "c", "-r", "d.txt", "git+https://e/f", "g @ https://h/i"]
        )

        assert found is not None
        paths = [f"{tmp_path}/a-1-py3-none-any.whl", f"{tmp_path}/b"]
        more = [f"-e {tmp_path}/c", f"-r {tmp_path}/d.txt"]
        assert [each.text for each in found.wanted] == [*paths, "git+https://e/f", "g @ https://h/i", *more]

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("# mine\na>=1  # why\n\nb[extra]\n", ["a>=1", "b[extra]"]),
            ("./b\nc/d.whl\n-e ./e\n/f/g.whl\n", ["{}/b", "{}/c/d.whl", "-e {}/e", "/f/g.whl"]),
            ("a==1 --hash=sha256:0\n", None),
            ("a @ https://${TOKEN}@one/a.whl\n", None),
            ("-i https://one/simple\na\n", None),
        ],
    )
    def test_a_file_of_requirements_is_each_of_them(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: list[str] | None
    ) -> None:
        """So that each can be removed; one with hashes, options or variables is kept as it is.

        Paths in it are relative to the current folder, as pip 23.2 and uv 0.13 have it.
        """
        path = tmp_path / "lists/list.txt"
        path.parent.mkdir()
        path.write_text(text)
        monkeypatch.chdir(tmp_path)

        found = pip.parse(["-r", str(path)])

        assert found is not None
        assert [each.text for each in found.wanted] == [each.format(tmp_path) for each in expected or [f"-r {path}"]]

    @pytest.mark.parametrize("words", [["-Uq", "a"], ["-qU", "a"], ["-qqq", "-U", "a"], ["-Uvvvi", "https://b", "a"]])
    def test_short_options_may_be_in_one_word(self, words: list[str]) -> None:
        """As pip takes them: such a command would otherwise be pip's own, around the list and the checks."""
        found = pip.parse(words)

        assert found is not None
        assert [each.text for each in found.wanted] == ["a"]
        assert found.options == ["--upgrade"]

    @pytest.mark.parametrize("words", [["--target", "x", "a"], ["--prefix=x", "a"], ["--dry-run", "--new", "a"]])
    def test_another_place_and_a_question_are_left_to_pip(self, words: list[str]) -> None:
        """Nothing of the lab's or of the overlay changes."""
        assert pip.parse(words) is None

    def test_an_option_that_is_not_known_is_an_error(self) -> None:
        """Otherwise pip would install into the lab's environment, around the list and the checks."""
        with pytest.raises(RocmlabError, match="--new"):
            pip.parse(["--new", "a"])


class TestProtection:
    """By name."""

    @pytest.mark.parametrize("name", ["torch", "tensorflow-rocm", "jaxlib", "nvidia-cublas-cu12", "triton", "xformers"])
    def test_frameworks_and_what_is_compiled_for_them_are_pinned(self, name: str) -> None:
        """Where the lab has them."""
        pins = protection.pins({name: "1.0", "pandas": "3.0"})

        assert f"{name}==1.0" in pins
        assert not any("pandas" in each for each in pins)

    @pytest.mark.parametrize(
        "name", ["numpy", "torchmetrics", "nvidia-ml-py", "tensorflow-datasets", "keras", "jaxtyping"]
    )
    def test_others_are_not(self, name: str) -> None:
        """Someone may need another version."""
        assert protection.pins({name: "1.0"}) == []

    def test_the_builds_of_tensorflow_are_one(self) -> None:
        """Whichever the lab has protects the name that others require."""
        lab = {"tensorflow-cpu": "2.21.0"}

        assert protection.pins(lab) == ["tensorflow==2.21.0", "tensorflow-cpu==2.21.0"]
        assert protection.replaced(["tensorflow", "tensorflow-rocm", "tensorflow-datasets"], lab) == [
            "tensorflow",
            "tensorflow-rocm",
        ]

    @pytest.mark.parametrize("name", ["triton-rocm", "pytorch-triton-rocm"])
    def test_the_builds_of_triton_are_one(self, name: str) -> None:
        """PyPI's is for CUDA, and would hide that of the lab."""
        lab = {name: "3.7.0"}

        assert set(protection.pins(lab)) == {f"{name}==3.7.0", "triton==3.7.0"}
        assert protection.replaced(["triton", "numpy"], lab) == ["triton"]

    def test_one_that_is_not_there_comes_only_by_name(self) -> None:
        """Else it would be a build for other hardware, which nothing asked for."""
        assert protection.second(["torch", "numpy"], {"accelerate"}, {}) == ["torch"]
        assert protection.second(["torch", "numpy"], {"torch"}, {}) == []
        assert protection.second(["torch"], set(), {"torch": "1"}) == []


class TestUnused:
    """What an installation removes before it begins."""

    def test_only_overlays_are_removed(self, tmp_path: Path) -> None:
        """A folder that something else made stays, and so does all that a link leads to."""
        place = Place(tmp_path / "share", "torch", "/opt/torch/bin/python")
        own = place.folder / "python3.11-0123456789ab"
        left = own / "2026-11-25T042801.281224Z"
        left.mkdir(parents=True)
        mine = tmp_path / "mine"
        for name in ("2026-11-25T042801.281225Z", "thesis"):
            (mine / name).mkdir(parents=True)
        (place.folder / "link").symlink_to(mine)
        (own / "notes").mkdir()
        (place.folder / "file").touch()
        (own / ".current.0123abcd").symlink_to(left.name)

        building.remove_unused(place)

        assert [each.name for each in own.iterdir()] == ["notes"]
        assert len(list(mine.iterdir())) == 2

    @pytest.mark.parametrize("name", [".", "..", "other"])
    def test_only_an_overlay_is_current(self, tmp_path: Path, name: str) -> None:
        """A link to the folder above could make what another user put there the kernel's interpreter."""
        for folder in (tmp_path / "own/bin", tmp_path / "bin", tmp_path / "own/other/bin"):
            folder.mkdir(parents=True)
            (folder / "python").touch()
        (tmp_path / "own/current").symlink_to(name)

        assert overlays.current_in(tmp_path / "own") is None

    def test_a_share_that_cannot_be_read_costs_no_kernel(self, tmp_path: Path) -> None:
        """It starts without the overlay."""
        (tmp_path / "cache").write_text("a file where a folder is expected")
        place = Place(tmp_path, "torch", str(tmp_path / "absent/bin/python"))
        loop = Place(tmp_path / "loop", "torch", place.python)
        (tmp_path / "loop").symlink_to("loop")

        assert (place.current(), loop.current()) == (None, None)


class TestLists:
    """What a user requested."""

    def test_another_requirement_of_a_package_replaces_the_earlier(self) -> None:
        """However its name is written."""
        listed = [Requirement("My_Package>=1"), Requirement("b")]

        assert requested.with_added(listed, [Requirement("my.package[extra]==2")]) == (
            Requirement("b"),
            Requirement("my.package[extra]==2"),
        )

    def test_what_is_written_is_read(self, tmp_path: Path) -> None:
        """With options."""
        listed = (Requirement("a", ("--index-url", "https://one/simple")), Requirement("-e /b"))

        requested.write(tmp_path, "torch", listed)

        assert requested.read(tmp_path, "torch") == listed
        assert listed[1].arguments == ("-e", "/b")

    def test_addresses_are_kept_without_passwords(self) -> None:
        """Also those of the framework's index."""
        secret = "https://me:word@one/simple"

        assert requested.without_secrets(Requirement(f"a @ {secret}", (secret,))) == Requirement(
            "a @ https://one/simple", ("https://one/simple",)
        )
        assert requested.without_password(secret) == "https://one/simple"
        assert requested.without_password("https://me:p@ss@one/simple/a@1") == "https://one/simple/a@1"


@pytest.mark.parametrize(
    ("address", "kept"),
    [
        ("git+ssh://git@one/me/a.git", "git+ssh://git@one/me/a.git"),
        ("a @ git+ssh://git@one:22/me/a@v1", "a @ git+ssh://git@one:22/me/a@v1"),
        ("git+ssh://me:word@one/a", "git+ssh://me@one/a"),
        ("git+ssh://me:p@ss@one/a", "git+ssh://me@one/a"),
        ("SSH://me:word@one/a", "SSH://me@one/a"),
        ("git+https://token@one/a", "git+https://one/a"),
        ("git+https://me:word@one/a", "git+https://one/a"),
        ("https://one/a@1", "https://one/a@1"),
        ("git+ssh://git@one/a https://me:word@two/b", "git+ssh://git@one/a https://two/b"),
    ],
)
def test_ssh_keeps_its_user_and_no_password(address: str, kept: str) -> None:
    """Whom ssh logs in as is part of the address, `git` mostly; in others the user alone may be a token."""
    assert requested.without_secrets(Requirement(address)).text == kept


@pytest.mark.parametrize(
    ("text", "recorded"),
    [
        ("git+ssh://git@one/a.git@v1", "ssh://git@one/a.git"),
        ("-e git+https://token@one/a@feature/x#egg=b", "https://one/a"),
        ("https://me:word@one/a+b.tar.gz#sha256=0", "https://one/a+b.tar.gz"),
        ("/a/b c[extra]", "file:///a/b%20c"),
    ],
)
def test_an_address_is_found_again_as_installers_record_it(text: str, recorded: str) -> None:
    """Without the user, revision and fragment that only the requirement has."""
    assert Requirement(text).origin == requested.origin(recorded)


def test_the_report_names_what_is_hidden_and_broken(tmp_path: Path) -> None:
    """And how to go back."""
    outcome = Outcome(tmp_path, {"numpy": "1.26.4"}, {"numpy": ("2.4.0", "1.26.4")}, ["jax requires numpy>=2"], {})

    lines = report.lines(outcome, Place(tmp_path, "torch", "python"))

    assert lines == [
        "the kernel torch has now: numpy 1.26.4",
        "note: numpy 1.26.4 hides the lab's 2.4.0, for this kernel",
        "WARNING: jax requires numpy>=2",
        "  fix: rocmlab packages remove NAME --kernel torch, or another version of it",
    ]


def test_the_reason_is_the_conflict() -> None:
    """Not what pip advises in general, and not that pip installs where uv cannot."""
    output = """Looking in links: /wheels
ERROR: Cannot install fits==1.0 because these package versions have conflicting dependencies.

The conflict is caused by:
    fits 1.0 depends on torch<2.14
    The user requested (constraint) torch==2.14.0

To fix this you could try to:
1. loosen the range of package versions you've specified
ERROR: ResolutionImpossible: for help visit the documentation
"""

    assert reason(output).splitlines() == [
        "ERROR: Cannot install fits==1.0 because these package versions have conflicting dependencies.",
        "The conflict is caused by:",
        "    fits 1.0 depends on torch<2.14",
        "    The user requested (constraint) torch==2.14.0",
    ]
