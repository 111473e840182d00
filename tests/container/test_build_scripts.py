"""What the build scripts decide, without a build."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import py_compile
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pip_environments
import pytest
from wheel_files import wheel

REPOSITORY = Path(__file__).parents[2]
LARGE = "text = 'Many letters'\n" * 2000
LOCK = """\
# made by scripts/lock
contourpy==1.3.2 ; python_full_version < '3.11' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
jupyter-client==8.10.0 \\
    --hash=sha256:cc
numpy==2.4.6 ; python_full_version >= '3.11' \\
    --hash=sha256:dd
"""


@pytest.fixture(scope="module")
def additions() -> ModuleType:
    """docker/build/additions.py as a module."""
    spec = importlib.util.spec_from_file_location("additions", REPOSITORY / "docker/build/additions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(REPOSITORY / "docker/build")  # as where it runs: what it imports is next to it
        spec.loader.exec_module(module)
    return module


def test_only_what_is_missing_is_installed(additions: ModuleType) -> None:
    """An entry goes with its hashes, whatever the version of the distribution that is there."""
    wanted = additions.missing(LOCK, {"jupyter-client": "7.0", "contourpy": "1.0"})

    assert wanted == "numpy==2.4.6 ; python_version >= '3.11' \\\n    --hash=sha256:dd\n"


def test_markers_hold_for_a_release_candidate(additions: ModuleType) -> None:
    """Ubuntu 22.04's python3.11 is 3.11.0rc1, which as a full version is neither < 3.11 nor >= 3.11."""
    assert "python_full_version" not in additions.missing(LOCK, {})


@pytest.mark.parametrize("provider", ["tensorflow-rocm", "tensorflow-cpu", "tf-nightly-rocm"])
def test_constraints_forbid_another_tensorflow(additions: ModuleType, provider: str) -> None:
    """Where TensorFlow comes from another distribution, `tensorflow` itself may never be installed over it."""
    lines = additions.constraints({provider: "2.20.0.dev0+selfbuilt", "numpy": "2.2.6"}).splitlines()

    assert lines == [*sorted(["numpy==2.2.6", f"{provider}==2.20.0.dev0+selfbuilt"]), "tensorflow<0"]


def test_constraints_keep_tensorflow_itself(additions: ModuleType) -> None:
    """Where the base has `tensorflow`, it keeps its version."""
    assert additions.constraints({"tensorflow": "2.17.0"}) == "tensorflow==2.17.0\n"


def test_constraints_leave_out_what_pip_cannot_read(additions: ModuleType) -> None:
    """One version that pip cannot read would make it refuse the whole file."""
    assert "odd" not in additions.constraints({"odd": "custom build", "tensorflow": "2.17.0"})


def installed(wheels: Path, prefix: Path, name: str, version: str, files: dict[str, str]) -> Path:
    """Unpack a wheel into an environment, as an installer does; return the folder of its packages."""
    site = prefix / "lib/python3.12/site-packages"
    with zipfile.ZipFile(wheel(wheels, name, version, files)) as archive:
        archive.extractall(site)
    return site


def test_what_two_environments_have_of_one_wheel_is_on_the_disk_once(tmp_path: Path) -> None:
    """The same large files of the same version, and nothing else; to replace one in either leaves the other's."""
    torch, tensorflow = tmp_path / "torch", tmp_path / "tensorflow"
    for prefix in (torch, tensorflow):
        files = {"same/__init__.py": LARGE, "same/data.txt": LARGE, "same/small.py": "x = 1\n"}
        site = installed(tmp_path, prefix, "same", "1.0", files)
        installed(tmp_path, prefix, "other", f"{len(prefix.name)}", {"other.py": f"{LARGE}# {prefix.name}\n"})
        (site / "same/late.pyc").write_text(LARGE)
    mine, theirs = (prefix / "lib/python3.12/site-packages" for prefix in (torch, tensorflow))
    (theirs / "same/data.txt").write_text(LARGE.swapcase())
    before = {path.relative_to(theirs): path.read_bytes() for path in theirs.rglob("*") if path.is_file()}

    command = [sys.executable, str(REPOSITORY / "docker/build/link.py"), str(torch), str(tensorflow)]
    subprocess.run(command, check=True, capture_output=True)

    linked = {str(path) for path in before if (mine / path).exists() and (mine / path).samefile(theirs / path)}
    assert linked == {"same/__init__.py"}
    assert {path.relative_to(theirs): path.read_bytes() for path in theirs.rglob("*") if path.is_file()} == before
    (mine / "same/__init__.py").unlink()
    assert (theirs / "same/__init__.py").read_text() == LARGE


def test_what_one_environment_has_compiled_the_other_does_not_compile_again(tmp_path: Path) -> None:
    """Python takes what is compiled for the other name of the file as well, and names the file by its own path."""
    text = "number = {}\n\ndef where():\n    return where.__code__.co_filename\n"
    torch, tensorflow = tmp_path / "torch", tmp_path / "tensorflow"
    mine, theirs = (
        installed(tmp_path, prefix, "same", "1.0", {"same/small.py": text.format(1), "same/other.py": ""})
        for prefix in (torch, tensorflow)
    )
    # Compiled with another number, so that it shows which was used.
    (mine / "same/small.py").write_text(text.format(2))
    py_compile.compile(str(mine / "same/small.py"))
    made = (mine / "same/small.py").stat()
    (mine / "same/small.py").write_text(text.format(1))
    os.utime(mine / "same/small.py", ns=(made.st_atime_ns, made.st_mtime_ns))

    command = [sys.executable, str(REPOSITORY / "docker/build/link.py"), str(torch), str(tensorflow)]
    subprocess.run(command, check=True, capture_output=True, umask=0o022)

    look = [sys.executable, "-S", "-B", "-c", "from same import small; print(small.number, small.where())"]
    found = subprocess.check_output(look, env={**os.environ, "PYTHONPATH": str(theirs)}, text=True)
    assert found.split() == ["2", str(theirs / "same/small.py")]
    assert (theirs / "same/__pycache__").stat().st_mode & 0o777 == 0o775, "users may have Python add to it"
    assert not (mine / "same/other.py").samefile(theirs / "same/other.py"), "small, and not compiled"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "fails"),
    [("needs", "imports.py"), ("torch", "imports.py"), ("torch", "verify.py"), ("tensorflow", "imports.py")],
)
def test_a_check_of_a_framework_that_fails_at_once_fails_the_build(tmp_path: Path, kernel: str, fails: str) -> None:
    """Also where it has ended before the script waits for it, and the other check of the step succeeds."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$1" in *{fails}) exit 3 ;; esac\n')
    python.chmod(0o755)
    script = (REPOSITORY / "docker/build/compile").read_text()
    for name in ("torch", "tensorflow"):
        script = script.replace(f"/opt/{name}/bin/python", str(python))

    # Every line slower than what it has started.
    done = subprocess.run(["bash", "-c", f"trap 'sleep 0.05' DEBUG\n{script}", "compile", "cpu", kernel], check=False)

    assert done.returncode == 3


def test_tensorflow_is_installed_after_what_it_needs() -> None:
    """Both parts together are the lock, each package with its hashes."""
    script = (REPOSITORY / "docker/build/tensorflow").read_text()
    program = re.search(r"awk -v wanted=\"\$1\" '(.+)' /requirements", script)
    assert program
    lock = REPOSITORY / "requirements/tensorflow-cpu.txt"

    needs, itself = (
        subprocess.check_output(["awk", "-v", f"wanted={number}", program[1], lock], text=True) for number in (0, 1)
    )

    names = re.findall(r"^([a-z0-9-]+)==", itself, flags=re.MULTILINE)
    assert names == ["tensorflow", "tensorflow-cpu"], "for each platform, one"
    assert itself.count("--hash=") > 10
    assert sorted((needs + itself).splitlines()) == sorted(lock.read_text().splitlines())
    assert needs.splitlines() == [line for line in lock.read_text().splitlines() if line not in itself.splitlines()]


def test_an_environment_that_is_not_there_has_nothing_to_link(tmp_path: Path) -> None:
    """A base brings its TensorFlow elsewhere, and a slim image has none."""
    site = installed(tmp_path, tmp_path / "torch", "same", "1.0", {"same.py": LARGE})

    command = [sys.executable, str(REPOSITORY / "docker/build/link.py"), f"{tmp_path}/torch", f"{tmp_path}/tensorflow"]
    subprocess.run(command, check=True, capture_output=True)

    assert (site / "same.py").stat().st_nlink == 1
    assert not (tmp_path / "tensorflow").exists()


@pytest.mark.long
@pytest.mark.slow
def test_what_does_not_go_with_the_base_is_omitted(tmp_path: Path) -> None:
    """Of what is optional the environment gets what its own packages allow, and these stay as they are."""
    pip_environments.create(tmp_path / "base")
    python, wheels = tmp_path / "base/bin/python", tmp_path / "wheels"
    wheels.mkdir()
    own = wheel(wheels, "framework", "1.0", {"framework.py": ""})
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", own], check=True)
    wheel(wheels, "framework", "2.0", {"framework.py": ""})
    wanted = [
        wheel(wheels, "table", "3.0", {"table.py": ""}, ["framework>=1"]),
        wheel(wheels, "learner", "3.0", {"learner.py": ""}, ["framework>=2"]),
        wheel(wheels, "plots", "3.0", {"plots.py": ""}, ["learner"]),
    ]
    names = [path.name.split("-")[0] for path in wanted]
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in wanted]
    lock = "".join(f"{name}==3.0 \\\n    --hash=sha256:{each}\n" for name, each in zip(names, hashes, strict=True))
    (tmp_path / "optional.txt").write_text(lock)
    program = (
        "import additions, json, pathlib, sys\n"
        "additions.add_what_fits(pathlib.Path(sys.argv[1]))\n"
        "print(json.dumps(additions.installed()))"
    )
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PYTHONPATH": str(REPOSITORY / "docker/build")}

    done = subprocess.run(
        [python, "-c", program, str(tmp_path / "optional.txt")],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["framework"], found["table"]) == ("1.0", "3.0")
    assert not {"learner", "plots"} & set(found)
    assert "learner 3.0 has requirement framework>=2" in done.stderr
    assert "table added" in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_packages_of_another_environment_are_shared(additions: ModuleType, tmp_path: Path) -> None:
    """What is missing is found through links, last on the path; what is there stays first, and removing ends a link."""
    wheels, lender, base = tmp_path / "wheels", tmp_path / "lender", tmp_path / "base"
    wheels.mkdir()
    for folder in (lender, base):
        pip_environments.create(folder)
    made = {name: wheel(wheels, name, "3.0", {f"{name}.py": "which = 'shared'"}) for name in ("table", "learner")}
    older = wheel(wheels, "numbers2", "1.0", {"numbers2/__init__.py": "which = 'own'"})
    newer = wheel(wheels, "numbers2", "2.0", {"numbers2/__init__.py": "which = 'shared'"})
    for folder, chosen in ((lender, [*made.values(), newer]), (base, [older])):
        command = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", *chosen]
        subprocess.run(command, check=True)
    (site,) = lender.glob("lib/python3*/site-packages")
    (purelib,) = base.glob("lib/python3*/site-packages")
    shared = tmp_path / "shared/site-packages"
    lock = "".join(f"{name} \\\n    --hash=sha256:aa\n" for name in ("table==3.0", "learner==2.0", "numbers2==2.0"))
    look = "import table, numbers2; print(table.which, numbers2.which)"

    linked = additions.share(lock, {"numbers2": "1.0"}, site, shared)
    additions.put_on_path(purelib, shared)
    first = subprocess.run([base / "bin/python", "-c", look], capture_output=True, text=True, check=True)
    checked = subprocess.run([base / "bin/python", "-m", "pip", "check"], capture_output=True, text=True, check=False)
    replaced = wheel(wheels, "table", "4.0", {"table.py": "which = 'upgraded'"})
    upgrade = [base / "bin/python", "-m", "pip", "install", "--quiet", "--no-index", "--upgrade", replaced]
    subprocess.run(upgrade, check=True, capture_output=True)
    second = subprocess.run([base / "bin/python", "-c", look], capture_output=True, text=True, check=True)

    assert linked == {"table": "3.0"}, "another version, or what the base has, is not shared"
    assert (first.stdout.split(), second.stdout.split()) == (["shared", "own"], ["upgraded", "own"])
    assert checked.returncode == 0, checked.stdout
    assert (site / "table.py").read_text() == "which = 'shared'", "an upgrade changes nothing in the other environment"
    additions.remove({"table"}, shared)
    assert {path.name for path in shared.iterdir()} <= {"__pycache__"}


TORCH = """\
__version__ = "2.13.0"
class version:
    hip = cuda = None
"""


def imported(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run docker/build/imports.py with a PyTorch for the CPU, pandas, peft, and a SciPy that cannot be imported."""
    for name, text in (("torch", TORCH), ("pandas", ""), ("peft", ""), ("scipy", "raise ImportError('no BLAS')")):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-S", REPOSITORY / "docker/build/imports.py", *arguments],
        env={**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_people_import_first_is_compiled(tmp_path: Path) -> None:
    """First what PyTorch needs, then PyTorch and, in another process, what builds on it."""
    found = []
    for arguments in (("cpu", "needs"), ("cpu", "torch", "")):
        done = imported(tmp_path, *arguments)
        assert done.returncode == 0, done.stderr
        found.append({path.parts[-3] for path in tmp_path.glob("*/__pycache__/*.pyc")})

    assert found == [{"pandas", "scipy"}, {"pandas", "scipy", "torch", "peft"}]


def test_what_cannot_be_imported_is_named(tmp_path: Path) -> None:
    """It is no error of the build: the framework's own check decides."""
    done = imported(tmp_path, "cpu", "needs")

    assert done.returncode == 0, done.stderr
    assert "scipy.stats is not compiled, it cannot be imported here: ImportError('no BLAS')" in done.stderr


def test_a_framework_for_other_hardware_stops_the_build(tmp_path: Path) -> None:
    """The check is made where the framework has been imported."""
    done = imported(tmp_path, "rocm", "torch", "")

    assert done.returncode == 1
    assert "error: PyTorch 2.13.0 is not built for rocm" in done.stderr


def test_versions_are_those_of_pip_freeze(additions: ModuleType) -> None:
    """What it names holds PyTorch's needs in place while PyTorch is installed."""
    printed = [
        subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True).stdout.splitlines()
        for arguments in ([str(REPOSITORY / "docker/build/freeze.py")], ["-m", "pip", "freeze", "--all"])
    ]
    ours, pips = (
        {(additions.canonical(name), version) for name, version in (line.split("==") for line in lines if "==" in line)}
        for lines in printed
    )

    assert len(pips) > 20
    assert pips <= ours
