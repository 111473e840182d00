"""Keras' backend is chosen before Keras is imported, and never claimed against what Keras says itself."""

from __future__ import annotations

import importlib
import os
import sys

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.training import backends

KERAS = """
import os
__version__ = "3.15.1"
NAME = os.environ.get("KERAS_BACKEND", "tensorflow")
class backend:
    backend = staticmethod(lambda: NAME)
"""


@pytest.fixture(autouse=True)
def no_frameworks(monkeypatch, tmp_path):
    """Begin without a backend, without a framework imported, and with nothing of them installed."""
    monkeypatch.setenv("KERAS_BACKEND", "none yet")
    monkeypatch.delenv("KERAS_BACKEND")
    for name in backends.QUIET:
        monkeypatch.setenv(name, "none yet")
        monkeypatch.delenv(name)
    for name in ("keras", *backends.TITLES, "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    standard = [folder for folder in sys.path if "-packages" not in folder]
    monkeypatch.setattr(sys, "path", [str(tmp_path), *standard])


@pytest.fixture
def install(tmp_path):
    """Return a function that installs packages of these names; `keras` reads KERAS_BACKEND as Keras does."""

    def install(*names):
        for name in names:
            (tmp_path / name).mkdir()
            text = KERAS if name == "keras" else '__version__ = "1.0"'
            (tmp_path / name / "__init__.py").write_text(text)
        importlib.invalidate_caches()

    return install


def test_the_backend_that_was_asked_for_is_what_keras_gets(install):
    """A name goes into the variable that Keras reads, whatever the kernel has set."""
    install("keras", "torch", "jax")
    os.environ["KERAS_BACKEND"] = "torch"

    assert backends.use("jax") == "jax"
    assert importlib.import_module("keras").backend.backend() == "jax"


def test_auto_is_the_kernels_own(install):
    """`auto` keeps what the kernelspec says."""
    install("keras", "torch", "jax")
    os.environ["KERAS_BACKEND"] = "torch"

    assert backends.use() == "torch"


def test_auto_without_a_word_from_the_kernel_takes_what_is_installed(install):
    """In a kernel that is not the lab's, the first framework that is there is taken, and passed to Keras."""
    install("keras", "torch", "jax")

    assert backends.use("auto") == "jax"
    assert os.environ["KERAS_BACKEND"] == "jax"


def test_auto_of_a_warm_kernel_is_what_keras_was_imported_with(install):
    """What an imported Keras computes with counts, not what the variable says by now."""
    install("keras", "tensorflow", "torch")
    importlib.import_module("keras")
    os.environ["KERAS_BACKEND"] = "torch"

    assert backends.use("auto") == "tensorflow"
    assert backends.use("tensorflow") == "tensorflow"
    assert os.environ["KERAS_BACKEND"] == "tensorflow"


def test_an_imported_keras_cannot_change(install):
    """Asking for another backend than an imported Keras has is an error that names the kernel to choose."""
    install("keras", "tensorflow", "jax")
    importlib.import_module("keras")

    with pytest.raises(RocmlabError, match="cannot change") as caught:
        backends.use("jax")

    assert "fork server" in str(caught.value)
    assert "--kernel torch -p backend=jax" in str(caught.value)
    assert "KERAS_BACKEND" not in os.environ


@pytest.mark.parametrize(
    ("backend", "kernel", "title"),
    [("tensorflow", "tensorflow", "TensorFlow"), ("jax", "torch", "JAX"), ("torch", "torch", "PyTorch")],
)
def test_a_backend_that_is_not_installed_names_the_kernel_that_has_it(install, backend, kernel, title):
    """The error says where the framework is, and how a headless run gets there."""
    install("keras")

    with pytest.raises(RocmlabError, match=f"{title} is not installed") as caught:
        backends.use(backend)

    assert f"choose the kernel `{kernel}`" in str(caught.value)


def test_a_kernel_without_keras_says_so(install):
    """The framework alone is not enough."""
    install("torch")

    with pytest.raises(RocmlabError, match="Keras is not installed"):
        backends.use("torch")


def test_a_kernel_without_any_framework_says_so():
    """Nothing to choose from is an error with the lab's kernels in it."""
    with pytest.raises(RocmlabError, match="has no backend here"):
        backends.use()


def test_a_backend_that_cannot_train_is_rejected(install):
    """Keras' numpy backend has no gradients."""
    install("keras")
    os.environ["KERAS_BACKEND"] = "numpy"

    with pytest.raises(RocmlabError, match="'numpy' cannot train"):
        backends.use("auto")


def test_an_unknown_word_is_rejected():
    """A wrong word is answered with the right ones."""
    with pytest.raises(RocmlabError, match="auto, tensorflow, jax, torch"):
        backends.use("mxnet")


def test_versions_are_those_that_were_imported(install):
    """Keras and the framework that computes, and no other."""
    install("keras", "jax")
    backends.use("jax")
    importlib.import_module("jax")

    assert backends.versions() == {"keras": "3.15.1", "jax": "1.0"}


def test_frameworks_print_errors_only_and_share_the_gpu(install, monkeypatch):
    """What frameworks read at their import is set outside the lab's kernels as well; a value of the user stays."""
    install("keras", "tensorflow")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")

    backends.use("tensorflow")

    assert os.environ["TF_CPP_MIN_LOG_LEVEL"] == "0"
    assert os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def test_facts_of_a_record_are_those_of_what_was_imported(install):
    """Framework and versions come from the modules, device and `simulated` from the device that was used."""
    install("keras", "jax")
    os.environ["KERAS_BACKEND"] = backends.use("jax")
    for name in ("keras", "jax"):
        importlib.import_module(name)
    used = {"backend": "cpu", "name": "a CPU", "index": 0, "pci": None, "simulated": True}

    found = backends.facts(used)

    versions = {"keras": "3.15.1", "jax": "1.0"}
    assert found == {"framework": "jax", "versions": versions, "device": used, "simulated": True}
