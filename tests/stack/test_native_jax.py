"""JAX's plugin for a GPU: where it is installed, and that a build without it is no build for that GPU.

A stand-in plays JAX and its plugins; what examines them is the program that image and environment run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from clones import NEEDS_NATIVE_PYTHON

from rocmlab.stack import requirements
from rocmlab.stack.environment import Environment, check_python

PLUGIN = "jax-rocm7-plugin==0.10.2"


def make_jax(folder: Path, *plugins: str, broken: bool = False) -> Path:
    """Write a JAX that registers plugins by these names, as the real ones do: by entry points."""
    (folder / "jax").mkdir(parents=True)
    (folder / "jax/__init__.py").write_text("__version__ = '0.10.2'\n")
    for name in plugins:
        (folder / f"plugin_{name}.py").write_text("raise ImportError('libamdhip64.so')\n" if broken else "")
        record = folder / f"plugin_{name}-1.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1\n")
        (record / "entry_points.txt").write_text(f"[jax_plugins]\n{name} = plugin_{name}\n")
    return folder


def verify(repository: Path, folder: Path, backend: str, packages: str) -> subprocess.CompletedProcess[str]:
    """Run the examination with that JAX first on the path."""
    command = [sys.executable, str(repository / "docker/build/verify.py"), backend, "jax", packages]
    return subprocess.run(command, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("backend", "plugin"), [("rocm", "xla_rocm7"), ("cuda", "xla_cuda13")])
def test_a_registered_plugin_passes(repository: Path, tmp_path: Path, backend: str, plugin: str) -> None:
    """JAX will find the plugin for this backend, and it can be imported."""
    done = verify(repository, make_jax(tmp_path / "site", plugin), backend, "some==1")

    assert done.returncode == 0, done.stderr
    assert plugin in done.stderr


def test_without_packages_jax_on_the_cpu_passes(repository: Path, tmp_path: Path) -> None:
    """No one requested a plugin: JAX computes on the CPU of a machine with GPUs, by default."""
    assert verify(repository, make_jax(tmp_path / "site"), "rocm", "").returncode == 0


@pytest.mark.parametrize(("backend", "plugins"), [("rocm", ()), ("rocm", ("xla_cuda13",)), ("cpu", ("xla_cuda13",))])
def test_packages_without_the_backends_plugin_stop_the_build(
    repository: Path, tmp_path: Path, backend: str, plugins: tuple[str, ...]
) -> None:
    """What was requested would silently compute on the CPU."""
    done = verify(repository, make_jax(tmp_path / "site", *plugins), backend, "some==1")

    assert done.returncode != 0
    assert f"has no plugin for {backend}" in done.stderr
    assert "JAX_PACKAGES=" in done.stderr


def test_a_plugin_that_cannot_be_imported_stops_the_build(repository: Path, tmp_path: Path) -> None:
    """The reason is the plugin's own."""
    done = verify(repository, make_jax(tmp_path / "site", "xla_rocm7", broken=True), "rocm", "some==1")

    assert done.returncode != 0
    assert "libamdhip64.so" in done.stderr


def test_the_plugin_comes_last_under_constraints(tmp_path: Path) -> None:
    """After PyTorch, whose version it may not change, nor that of anything locked; by pip's own words."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / ".venv").mkdir()
    (tmp_path / "requirements/native-cuda.txt").write_text(
        "jax==0.10.2 ; python_full_version >= '3.11' \\\n    --hash=sha256:0\n"
    )
    given = Environment(
        tmp_path, "cuda", "python3", "https://index", wheels="/wheels", jax_packages=f"{PLUGIN} other==1"
    )

    titles = [step.title for step in requirements.steps(given)]
    step = next(step for step in requirements.steps(given) if step.title.startswith("JAX"))
    arguments = list(step.arguments)
    constraints = Path(arguments[arguments.index("--constraint") + 1]).read_text()

    assert titles.index(step.title) > next(n for n, title in enumerate(titles) if title.startswith("PyTorch"))
    assert arguments[-2:] == [PLUGIN, "other==1"]
    assert arguments[arguments.index("--find-links") + 1] == "/wheels"
    assert constraints == "jax==0.10.2 ; python_full_version >= '3.11'\ntorch==2.13.0\n"
    plain = requirements.steps(Environment(tmp_path, "cuda", "python3", ""))
    assert not [step for step in plain if step.title.startswith("JAX")]


def test_pins_are_a_lock_without_hashes() -> None:
    """Markers stay; comments and hashes go, which pip refuses in constraints next to packages without any."""
    lock = "# made\na==1 \\\n    --hash=x\nb==2 ; sys_platform == 'linux' \\\n    --hash=y\nc==3\n"

    assert requirements.pins(lock) == "a==1\nb==2 ; sys_platform == 'linux'\nc==3\n"


@NEEDS_NATIVE_PYTHON
def test_another_plugin_gets_a_new_environment(tmp_path: Path) -> None:
    """Pip would leave a plugin behind that was taken back, and JAX would still find it."""
    version = check_python(sys.executable)
    plain, with_plugin = (Environment(tmp_path, "cpu", sys.executable, "", jax_packages=it) for it in ("", PLUGIN))
    plain.interpreter.parent.mkdir(parents=True)
    plain.interpreter.symlink_to(sys.executable)

    for made, other in ((plain, with_plugin), (with_plugin, plain)):
        made.marker.write_text(json.dumps(made.record_of(version)))
        assert made.matches(made.record_of(version), made.folder)
        assert not other.matches(other.record_of(version), other.folder)
