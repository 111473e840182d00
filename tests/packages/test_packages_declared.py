"""Requirements declared next to the notebooks: which are read, for which kernels, and what `sync` makes of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from own_packages import has, rocmlab

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import declared, installing, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement


def texts(notebooks: Path) -> list[str]:
    """Return what a folder declares."""
    return [each.text for each in declared.read(notebooks)]


class TestFiles:
    """The places and precedence are repo2docker's."""

    def test_requirements_before_a_project(self, tmp_path: Path) -> None:
        """Comments do not count, and relative paths start at the file."""
        assert texts(tmp_path) == []
        (tmp_path / "pyproject.toml").write_text('[project]\nname = "a"\ndependencies = ["pandas<3", "rich"]\n')
        assert texts(tmp_path) == ["pandas<3", "rich"]
        (tmp_path / "requirements.txt").write_text("# mine\nseaborn  # plots\n\n-e ./lib\n")
        assert texts(tmp_path) == ["seaborn", f"-e {tmp_path}/lib"]

    @pytest.mark.parametrize("name", ["binder", ".binder"])
    def test_a_folder_of_binder_has_them_all(self, tmp_path: Path, name: str) -> None:
        """Then what is next to it is not read."""
        (tmp_path / "requirements.txt").write_text("seaborn\n")
        (tmp_path / name).mkdir()
        assert texts(tmp_path) == []
        (tmp_path / name / "requirements.txt").write_text("rich\n")
        assert texts(tmp_path) == ["rich"]

    @pytest.mark.parametrize(
        "content",
        [
            *("dependencies = [", "[project]\ndependencies = 1\n", "project = 1\n"),
            '[project]\ndependencies = ["--index-url=http://a.test"]\n',
        ],
    )
    def test_what_cannot_be_read_is_an_error(self, tmp_path: Path, content: str) -> None:
        """It names the file."""
        (tmp_path / "pyproject.toml").write_text(content)
        with pytest.raises(RocmlabError, match=r"pyproject\.toml cannot be read"):
            declared.read(tmp_path)

    @pytest.mark.parametrize("content", [b"rich  # f\xfcr alle\n", "rich\n".encode("utf-16"), b"#" * 5_000_000])
    def test_a_file_that_is_not_a_small_text_is_an_error(self, tmp_path: Path, content: bytes) -> None:
        """Such as one in Latin-1, or UTF-16 of a Windows shell: no installer gets it to read it in another way."""
        (tmp_path / "requirements.txt").write_bytes(content)
        with pytest.raises(RocmlabError, match=r"requirements\.txt cannot be read"):
            declared.read(tmp_path)

    def test_a_file_with_hashes_is_its_content(self, tmp_path: Path) -> None:
        """It is installed whole, so a change inside is a change of the declaration."""
        path = tmp_path / "requirements.txt"
        path.write_text("a==1 --hash=sha256:00\n")
        (before,) = declared.read(tmp_path)
        path.write_text("a==2 --hash=sha256:00\n")

        assert (before.text, before.file) == (f"-r {path}", "requirements.txt")
        assert declared.difference([before], declared.read(tmp_path)).new


def test_a_list_that_others_may_write_is_not_installed(tmp_path: Path) -> None:
    """On a common share another user would choose what runs in this one's kernels."""
    requested.write(tmp_path, "torch", [Requirement("rich")])
    path = requested.path_of(tmp_path, "torch")
    path.chmod(0o664)
    assert requested.read(tmp_path, "torch") == (Requirement("rich"),)
    path.chmod(0o666)
    with pytest.raises(RocmlabError, match="0666"):
        requested.read(tmp_path, "torch")


def test_frameworks_are_for_the_kernels_that_have_them(tmp_path: Path) -> None:
    """What is built for them as well; a framework that no kernel has is left to all, where it is an error or not."""
    places = {}
    for name, has_it in (("torch", "torch-2.13.0+rocm7.2"), ("tensorflow", "tensorflow_rocm-2.20.0")):
        site = tmp_path / name / "lib/python3.12/site-packages"
        (site / f"{has_it}.dist-info").mkdir(parents=True)
        places[name] = Place(tmp_path, name, str(tmp_path / name / "bin/python"))
    (tmp_path / "requirements.txt").write_text("torch\ntensorflow\ntorchvision\nseaborn\njax\n")

    found = {name: [each.text for each in those] for name, those in declared.by_kernel(places, tmp_path).items()}
    everyone = ["seaborn", "jax"]
    assert found == {"torch": ["torch", "torchvision", *everyone], "tensorflow": ["tensorflow", *everyone]}


def test_what_the_user_added_counts_for_a_declaration() -> None:
    """A password in an address is not kept, and makes no difference."""
    secret = Requirement("b @ https://me:word@host/b.whl", declared_in="requirements.txt")
    listed = (Requirement("a==1"), requested.without_secrets(secret), Requirement("c", declared_in="requirements.txt"))

    found = declared.difference(listed, [Requirement("A>=2", declared_in="requirements.txt"), secret])
    assert found.reasons == ["c no longer declared in requirements.txt"]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("place", ["uv"], indirect=True)
def test_one_command_installs_what_is_declared(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is reported before, cannot be removed alone, and is removed once it is no longer declared."""
    notebooks = tmp_path / "notebooks"
    notebooks.mkdir()
    monkeypatch.setenv("ROCMLAB_NOTEBOOKS", str(notebooks))
    file = notebooks / "requirements.txt"
    installing.add(place, [Requirement("trains")], print)
    file.write_text("harmless<2\ntorch\n")

    assert "harmless<2, torch declared in requirements.txt, not installed" in rocmlab(place, "list")
    rocmlab(place, "sync")
    assert has(place) == {"trains": "1.0", "helper": "1.0", "harmless": "1.0"}
    assert "requirements.txt declares it" in rocmlab(place, "remove", "harmless", code=1)

    file.write_text("harmless\nwants-torch\n")
    assert "torch no longer declared" in rocmlab(place, "list")
    assert "NOT installed: wants-torch" in rocmlab(place, "sync", code=1)
    assert has(place) == {"trains": "1.0", "helper": "1.0", "harmless": "2.0"}

    file.write_text("[\n")
    os.replace(file, notebooks / "pyproject.toml")
    assert "pyproject.toml cannot be read" in rocmlab(place, "list")
    assert "pyproject.toml cannot be read" in rocmlab(place, "sync", code=2)
    assert has(place)["harmless"] == "2.0"
