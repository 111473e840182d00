"""Packages of a user's own: real installations over an interpreter of a lab, by uv and by pip."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pip_environments
import pytest
from own_packages import Add, by_uv_and_pip, has, offer

from rocmlab.base.errors import RocmlabError
from rocmlab.packages import building, companions, installing, inventory, overlays, report, requested
from rocmlab.packages.overlays import Place
from rocmlab.packages.requested import Requirement

pytestmark = pytest.mark.slow


def python_says(place: Place, code: str) -> str:
    """Return what code prints in the interpreter that the kernel has now."""
    prefix = place.current()
    python = prefix / "bin/python" if prefix else place.python
    return subprocess.run([python, "-c", code], cwd="/", capture_output=True, text=True, check=True).stdout.strip()


def snapshot(python: str) -> list[str]:
    """Return every file of the lab's environment but compiled ones; a folder's size changes as one comes below it."""
    found = (each for each in Path(python).parents[1].rglob("*") if "__pycache__" not in each.parts)
    return sorted(f"{each} {each.lstat().st_size}" for each in found if each.is_symlink() or not each.is_dir())


def refusal(add: Add, *names: str, options: tuple[str, ...] = ()) -> str:
    """Return why packages are not installed."""
    with pytest.raises(RocmlabError) as err:
        add(*names, options=options)
    return err.value.problem.why


@by_uv_and_pip
def test_new_packages_come_over_the_labs(place: Place, add: Add) -> None:
    """Both can be imported; the lab's own environment is as before, and stubs of its packages do not stay."""
    before = snapshot(place.python)

    outcome = add("trains")

    assert outcome.changed == {"trains": "1.0", "helper": "1.0"}
    assert has(place) == outcome.changed
    code = "import trains, torch; from importlib.metadata import distribution as of; print(torch.version)"
    assert python_says(place, f"{code}; print(of('torch').locate_file('torch/__init__.py').exists())").split() == [
        "2.13.0+rocm7.2",
        "True",
    ]
    assert snapshot(place.python) == before
    assert [each.text for each in requested.read(place.share, "torch")] == ["trains"]


@pytest.mark.long
@by_uv_and_pip
def test_a_framework_is_not_replaced(place: Place, add: Add) -> None:
    """Neither by name, nor by what another package requires, nor without dependencies; what was there stays."""
    add("harmless==1.0")
    prefix = place.current()

    refusals = [refusal(add, "torch==9.9"), refusal(add, "wants-torch")]
    refusals += [refusal(add, "torch==9.9", options=("--no-deps",))]

    assert all("torch" in each for each in refusals)
    assert place.current() == prefix
    assert has(place) == {"harmless": "1.0"}
    assert [each.text for each in requested.read(place.share, "torch")] == ["harmless==1.0"]
    assert sorted(each.name for each in place.own.iterdir()) == sorted(["current", str(prefix and prefix.name)])


@pytest.mark.long
def test_tensorflow_is_protected_under_every_name(place: Place, add: Add) -> None:
    """The lab's is `tensorflow-rocm`: `tensorflow` counts as installed, and another build of it is rejected."""
    add("wants-tensorflow")

    assert has(place) == {"wants-tensorflow": "1.0"}
    assert "tensorflow" in refusal(add, "tensorflow-cpu")
    assert "tensorflow" in refusal(add, "tensorflow==9.9")


def test_an_older_version_hides_the_labs_and_what_that_breaks_is_named(place: Place, add: Add) -> None:
    """Only for this kernel, which then has another numpy than its jax requires."""
    outcome = add("numpy==1.26.4")

    assert outcome.hides == {"numpy": ("2.4.0", "1.26.4")}
    assert len(outcome.breaks) == 1
    assert "jax" in outcome.breaks[0]
    assert "numpy" in outcome.breaks[0]
    assert python_says(place, "import numpy; print(numpy.version)") == "1.26.4"


@pytest.mark.long
@by_uv_and_pip
def test_an_upgrade_concerns_what_is_named(place: Place, add: Add) -> None:
    """`--upgrade` takes the newest of these; the lab's packages do not move with them."""
    add("harmless==1.0")

    outcome = add("harmless", options=("--upgrade",))

    assert outcome.changed == {"harmless": "2.0"}


@pytest.mark.long
def test_another_kernels_framework_comes_only_by_name(place: Place, tmp_path: Path, add: Add, wheels: Path) -> None:
    """A package that requires JAX's library, which this lab lacks, would bring a build for other hardware."""
    offer(wheels, "jaxlib", "0.10.0")
    offer(wheels, "wants-jaxlib", "1.0", ["jaxlib"])

    assert "jaxlib" in refusal(add, "wants-jaxlib")
    assert add("wants-jaxlib", "jaxlib").changed == {"jaxlib": "0.10.0", "wants-jaxlib": "1.0"}


class TestCompanions:
    """What is compiled for one build of a framework."""

    @pytest.mark.long
    def test_the_build_for_other_hardware_is_rejected(self, place: Place, add: Add) -> None:
        """By name, and where another package brings it."""
        assert "torchvision: 0.28.0 is built for other hardware" in refusal(add, "torchvision")
        assert "torchvision: 0.28.0 is built for other hardware" in refusal(add, "sees")
        assert place.current() is None

    @pytest.mark.long
    @by_uv_and_pip
    def test_the_index_of_the_frameworks_build_has_the_right_one(
        self, place: Place, add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is taken from there, whatever other index had one."""
        monkeypatch.delenv("PIP_NO_INDEX")
        folder = tmp_path / "index/torchvision"
        folder.mkdir(parents=True)
        file = offer(folder, "torchvision", "0.28.0+rocm7.2", ["torch"])
        (folder / "index.html").write_text(f'<a href="{file.name}">{file.name}</a>')
        monkeypatch.delenv("PIP_FIND_LINKS")
        note = Path(place.python).parents[1] / companions.INDEX
        note.write_text(f"file://{tmp_path}/index\n")
        offers = ("--no-index", "--find-links", str(tmp_path / "wheels"))

        try:
            outcome = installing.add(place, [Requirement("sees", offers)], print)
        finally:
            note.unlink()

        assert outcome.changed == {"sees": "1.0", "torchvision": "0.28.0+rocm7.2"}

    def test_one_that_cannot_be_imported_is_rejected(self, place: Place, add: Add, wheels: Path) -> None:
        """Its version may look right."""
        wheels.joinpath("torchvision-0.28.0-py3-none-any.whl").unlink()
        from wheel_files import wheel

        wheel(wheels, "torchvision", "0.28.0+rocm7.2", {"torchvision/__init__.py": "raise RuntimeError('no nms')\n"})

        assert "no nms" in refusal(add, "torchvision")


class TestWhatTheKernelNeeds:
    """Packages that a kernel imports before the first cell; the lab is this interpreter, which has a real ipykernel."""

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("name", "version", "why"),
        [("comm", "9.9", "comm.base_comm"), ("tornado", "4.5.3", "ipykernel .*require.* tornado")],
        ids=["its import fails", "ipykernel declares that it does not work"],
    )
    def test_a_version_with_which_it_does_not_start_is_rejected(
        self, place: Place, wheels: Path, name: str, version: str, why: str
    ) -> None:
        """Also where another package brings it: the error names what changed, and kernels start as before."""
        lab = Place(place.share, "torch", sys.executable)
        offer(wheels, name, version)
        offer(wheels, "brings", "1.0", [f"{name}=={version}"])
        installing.add(lab, [Requirement("harmless")], print)
        prefix = lab.current()

        with pytest.raises(RocmlabError) as err:
            installing.add(lab, [Requirement("brings")], print)

        assert f"{name} {version}" in err.value.problem.why
        assert re.search(why, err.value.problem.why)
        assert lab.current() == prefix
        assert python_says(lab, "import harmless, ipykernel.kernelapp; print(harmless.version)") == "2.0"


class TestRemoving:
    """What `rocmlab packages remove` does."""

    @pytest.mark.long
    def test_it_goes_with_what_nothing_else_needs(self, place: Place, add: Add) -> None:
        """Other packages keep their versions, even where newer ones are offered."""
        add("harmless==1.0")
        add("trains")

        installing.remove(place, ["Trains"], print)

        assert has(place) == {"harmless": "1.0"}
        assert [each.text for each in requested.read(place.share, "torch")] == ["harmless==1.0"]

    def test_without_packages_the_kernel_has_the_labs_interpreter(self, place: Place, add: Add) -> None:
        """As before the first one came."""
        add("harmless")

        installing.remove(place, ["harmless"], print)

        assert place.current() is None
        assert inventory.state(place).is_synchronised

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("name", "why"), [("helper", "needs it"), ("numpy", "belongs to the lab"), ("absent", "not in the list")]
    )
    def test_what_the_user_did_not_add_is_not_removed(self, place: Place, add: Add, name: str, why: str) -> None:
        """The error says whose it is."""
        add("trains")

        with pytest.raises(RocmlabError, match=why):
            installing.remove(place, [name], print)
        assert has(place) == {"trains": "1.0", "helper": "1.0"}


@pytest.mark.long("options of pip, packages by their paths")
class TestOptions:
    """What is said with one package."""

    def test_they_hold_for_its_command_alone(self, place: Place, add: Add, tmp_path: Path) -> None:
        """One without dependencies, or from a place of its own, leaves the dependencies and places of others alone."""
        offer(tmp_path, "elsewhere", "1.0")
        add("harmless")
        apart = [Requirement("wants-torch", ("--no-deps",))]
        installing.add(place, apart, print)
        installing.add(place, [Requirement("elsewhere", ("--no-index", "--find-links", str(tmp_path)))], print)
        add("trains")
        everything = has(place)

        installing.sync(place, print)
        assert has(place) == everything
        assert everything["helper"] == "1.0"
        installing.remove(place, ["harmless"], print)

        assert has(place) == {name: version for name, version in everything.items() if name != "harmless"}

    def test_a_version_of_the_list_holds_for_the_next(self, place: Place, add: Add, wheels: Path) -> None:
        """A package that requires another one is an error that names both; named itself, it is replaced."""
        offer(wheels, "wants-newer", "1.0", ["harmless>=2"])
        add("harmless[extra]==1.0")

        assert "harmless" in refusal(add, "wants-newer")
        assert has(place) == {"harmless": "1.0"}

        assert add("wants-newer", "harmless").changed == {"harmless": "2.0", "wants-newer": "1.0"}


@pytest.mark.long("options of pip, packages by their paths")
class TestPaths:
    """What is named by its path or address has the name of its package."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A package's source, which builds without another package."""
        made = tmp_path / "sources/of-mine"
        made.mkdir(parents=True)
        (made / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n'
            '[project]\nname = "Of.Mine"\nversion = "1.5"\n'
        )
        wheel = offer(tmp_path, "of_mine", "1.5").read_bytes()
        code = "def build_wheel(folder, *_):\n    name = 'of_mine-1.5-py3-none-any.whl'\n"
        code += f"    open(folder + '/' + name, 'wb').write({wheel!r})\n    return name\n"
        (made / "build.py").write_text(code + "build_editable = build_wheel\n")
        return made

    @pytest.mark.parametrize("form", [pytest.param("{}", marks=pytest.mark.long), "-e {}", "of-mine @ file://{}"])
    def test_a_folder_is_listed_and_removed_by_its_packages_name(
        self, place: Place, add: Add, folder: Path, form: str
    ) -> None:
        """Its path does not have it, and adding another version by name replaces it in the list."""
        add("harmless", form.format(folder))

        listed = requested.read(place.share, "torch")
        assert [(each.name, each.text) for each in listed][1] == ("of-mine", form.format(folder))
        installing.sync(place, print)
        assert has(place) == {"harmless": "2.0", "of-mine": "1.5"}
        add(form.format(folder))
        assert [each.name for each in requested.read(place.share, "torch")] == ["harmless", "of-mine"]
        installing.remove(place, ["Of_Mine"], print)
        assert has(place) == {"harmless": "2.0"}

    @pytest.mark.skipif(not shutil.which("git"), reason="needs git")
    def test_so_is_a_repository(self, place: Place, add: Add, folder: Path) -> None:
        """With the branch that it was taken from."""
        who = ("-c", "user.name=me", "-c", "user.email=me@one")
        for command in (["init", "-q", "-b", "main"], ["add", "."], [*who, "commit", "-qm", "one"]):
            subprocess.run(["git", *command], cwd=folder, check=True, capture_output=True)
        text = f"git+file://{folder}@main"

        add(text, "harmless")

        assert requested.read(place.share, "torch")[0] == Requirement(text, (), "of-mine")
        installing.remove(place, ["of-mine"], print)
        assert has(place) == {"harmless": "2.0"}

    def test_a_wheel_and_a_file_of_requirements_can_be_removed(
        self, place: Place, add: Add, wheels: Path, tmp_path: Path
    ) -> None:
        """The wheel by its package's name or its path, the file as it is listed, since it may have many."""
        (tmp_path / "all.txt").write_text("--no-index\nhelper\n")
        wheel = str(wheels / "harmless-1.0-py3-none-any.whl")

        for name in ("harmless", wheel):
            add(wheel, "numpy==1.26.4")
            installing.remove(place, [name], print)
            assert has(place) == {"numpy": "1.26.4"}
        add(f"-r {tmp_path}/all.txt")
        installing.remove(place, [f"-r {tmp_path}/all.txt"], print)

        assert has(place) == {"numpy": "1.26.4"}


@pytest.mark.long("packages of another image")
class TestAnotherImage:
    """The lab's packages have changed."""

    @pytest.fixture
    def newer(self, place: Place, tmp_path: Path) -> Place:
        """The place over an interpreter with other packages, which has the same list."""
        pip_environments.create(tmp_path / "newer")
        site = next((tmp_path / "newer").glob("lib/python3*/site-packages"))
        file = offer(tmp_path, "torch", "2.14.0+rocm7.2")
        with zipfile.ZipFile(file) as archive:
            archive.extractall(site)
        return Place(place.share, place.kernel, str(tmp_path / "newer/bin/python"))

    def test_the_list_is_installed_again(self, place: Place, add: Add, newer: Place) -> None:
        """Until then kernels have the lab's packages alone, and that is known; the earlier overlay stays."""
        add("trains")
        assert inventory.state(newer) == inventory.State(
            "torch", ("trains",), ("trains",), ("trains not installed for this image",)
        )
        assert newer.current() is None

        outcome = installing.sync(newer, print)

        assert outcome.changed == {"trains": "1.0", "helper": "1.0"}
        assert inventory.state(newer).is_synchronised
        assert python_says(newer, "import trains, torch; print(torch.version)") == "2.14.0+rocm7.2"
        assert python_says(place, "import trains, torch; print(torch.version)") == "2.13.0+rocm7.2"

    def test_what_does_not_fit_is_listed_and_the_rest_is_installed(
        self, place: Place, add: Add, newer: Place, wheels: Path
    ) -> None:
        """It stays in the list."""
        offer(wheels, "fits", "1.0", ["torch<2.14"])
        add("fits")
        add("harmless")

        outcome = installing.sync(newer, print)

        assert list(outcome.failed) == ["fits"]
        assert "torch" in outcome.failed["fits"]
        assert has(newer) == {"harmless": "2.0"}
        assert [each.text for each in requested.read(place.share, "torch")] == ["fits", "harmless"]
        assert inventory.state(newer).missing == ("fits",)
        assert not inventory.state(newer).is_synchronised
        assert inventory.state(place).is_synchronised

    def test_what_does_not_fit_does_not_hinder_others(self, place: Place, add: Add, newer: Place, wheels: Path) -> None:
        """Packages come and go next to it, and it stays known as missing until it is removed from the list."""
        offer(wheels, "fits", "1.0", ["torch<2.14"])
        add("fits")
        add("harmless")
        installing.sync(newer, print)

        installing.add(newer, [Requirement("trains")], print)
        assert inventory.state(newer).missing == ("fits",)
        installing.remove(newer, ["harmless"], print)
        assert has(newer) == {"trains": "1.0", "helper": "1.0"}
        assert inventory.state(newer).missing == ("fits",)
        assert list(installing.sync(newer, print).failed) == ["fits"]
        installing.remove(newer, ["fits"], print)

        assert inventory.state(newer).is_synchronised

    def test_one_with_less_does_not_replace_one_that_works(self, place: Place, add: Add, wheels: Path) -> None:
        """A `sync` that fails for what is installed, because its wheel is gone or an index is down, changes nothing."""
        add("harmless")
        add("helper")
        prefix = place.current()
        wheels.joinpath("helper-1.0-py3-none-any.whl").rename(wheels / "gone")
        shutil.rmtree(place.share / "cache/packages/wheels", ignore_errors=True)

        with pytest.raises(RocmlabError, match="helper") as err:
            installing.sync(place, print)

        assert "stay" in err.value.problem.fix
        assert place.current() == prefix
        assert inventory.state(place).is_synchronised
        assert has(place) == {"harmless": "2.0", "helper": "1.0"}

    def test_one_with_nothing_is_not_made(self, place: Place, add: Add, newer: Place, wheels: Path) -> None:
        """Where everything fails, kernels keep what they have, and what is missing stays known."""
        add("harmless")
        add("helper")
        for each in wheels.iterdir():
            each.unlink()
        shutil.rmtree(place.share / "cache/packages/wheels", ignore_errors=True)

        with pytest.raises(RocmlabError, match="harmless"):
            installing.sync(newer, print)

        assert newer.current() is None
        assert inventory.state(newer).missing == ("harmless", "helper")

    def test_one_can_be_removed_before(self, place: Place, add: Add, newer: Place) -> None:
        """It may be the one that does not fit; the report says what is left to do."""
        add("harmless")
        add("helper")

        outcome = installing.remove(newer, ["harmless"], print)

        assert report.lines(outcome, newer) == [
            "removed from the list of the kernel torch; not installed for this image: helper",
            "  fix: rocmlab packages sync --kernel torch",
        ]
        assert report.lines(installing.remove(newer, ["helper"], print), newer) == [
            "the kernel torch has no packages of its own any more"
        ]

    def test_nothing_is_added_before(self, place: Place, add: Add, newer: Place) -> None:
        """Else kernels would have the new package and silently none of the others."""
        add("harmless")

        with pytest.raises(RocmlabError, match="rocmlab packages sync"):
            installing.add(newer, [Requirement("trains")], print)

    def test_nothing_is_added_to_what_was_made_from_an_earlier_list(self, place: Place, add: Add, newer: Place) -> None:
        """Back at an image that had packages before: what was added meanwhile is installed first."""
        add("harmless")
        installing.sync(newer, print)
        installing.add(newer, [Requirement("helper")], print)

        with pytest.raises(RocmlabError, match="rocmlab packages sync") as err:
            add("numpy==1.26.4")

        assert "helper" in err.value.problem.why
        assert inventory.state(place).missing == ("harmless", "helper")
        installing.sync(place, print)
        add("numpy==1.26.4")
        assert has(place) == {"harmless": "2.0", "helper": "1.0", "numpy": "1.26.4"}

    def test_a_new_version_of_rocmlab_is_no_other_image(self, place: Place, tmp_path: Path) -> None:
        """Nor is a change of the time of a file."""
        before = overlays.key(place.python)
        folder = next(Path(place.python).parents[1].glob("lib/python3*/site-packages")) / "rocmlab-9.dist-info"
        folder.mkdir()
        try:
            assert overlays.key(place.python) == before
        finally:
            folder.rmdir()


class TestUse:
    """Overlays that kernels run from."""

    def test_one_in_use_stays(self, place: Place, add: Add) -> None:
        """Its modules may be imported later; when its kernel has ended, the next installation removes it."""
        add("harmless==1.0")
        first = place.current()
        assert first is not None
        with (first / overlays.IN_USE).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            for name in ("helper", "trains", "wants-tensorflow"):
                add(name)
            assert first.exists()

        add("numpy==1.26.4")

        assert not first.exists()
        assert len([each for each in place.own.iterdir() if not each.is_symlink()]) == 2  # and the one before

    @pytest.mark.long
    def test_what_was_interrupted_is_removed_by_the_next(self, place: Place, add: Add) -> None:
        """No kernel has ever seen it."""
        add("harmless")
        left = place.own / "2000-01-01T000000.000000Z"
        left.mkdir()

        add("helper")

        assert not left.exists()


def test_passwords_are_not_kept(place: Place, wheels: Path) -> None:
    """The list is in backups; the address without them is."""
    secret = Requirement("harmless", ("--extra-index-url", "https://me:word@127.0.0.1:9/simple", "--no-index"))

    installing.add(place, [secret], print)

    text = requested.path_of(place.share, "torch").read_text()
    assert "word" not in text
    assert "https://127.0.0.1:9/simple" in text


def test_a_damaged_list_is_not_replaced(place: Place, add: Add) -> None:
    """What a user wrote there is still to be read."""
    path = requested.path_of(place.share, "torch")
    path.parent.mkdir(parents=True)
    path.write_text("{")

    with pytest.raises(RocmlabError, match="cannot be read"):
        add("harmless")
    assert path.read_text() == "{"


def test_a_share_that_cannot_be_written_is_an_error(place: Place, add: Add) -> None:
    """With what it is, and what to do."""
    place.share.write_text("not a folder")

    with pytest.raises(RocmlabError, match="packages cannot be installed below"):
        add("harmless")


def test_no_overlay_without_a_package(place: Place) -> None:
    """Who adds none has no folder, and a look costs one `stat`."""
    assert place.current() is None
    assert not place.share.exists()
    assert building.record_of(place.share) == {}
    assert os.path.basename(place.python) == "python"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_an_overlay_of_another_user_is_not_used(place: Place, add: Add) -> None:
    """On a common share it would run another user's programs as this one; nor is one that everyone can write."""
    add("harmless")
    prefix = place.current()
    assert prefix is not None

    os.chown(prefix, 4242, 4242)
    assert place.current() is None
    os.chown(prefix, 0, 0)
    assert place.current() == prefix
    prefix.chmod(0o777)
    assert place.current() is None
    prefix.chmod(0o755)
    (place.own / overlays.CURRENT).unlink()
    (place.own / overlays.CURRENT).symlink_to("../../../../../usr")
    assert place.current() is None
