"""What JupyterLab is given: kernels and defaults."""

from __future__ import annotations

import json
from pathlib import Path

from rocmlab.kernels import kernelspec
from rocmlab.lab import install


def spec(prefix: Path, name: str) -> dict:
    """Return a kernel's kernel.json."""
    return json.loads((prefix / f"share/jupyter/kernels/{name}/kernel.json").read_text())


def test_each_framework_has_a_kernel_with_its_own_interpreter(tmp_path: Path) -> None:
    """Keras uses the backend of the kernel that runs it."""
    install.main(["--prefix", str(tmp_path), "--tensorflow", "/usr/bin/python3", "--torch", "/opt/torch/bin/python"])

    assert spec(tmp_path, "tensorflow")["argv"][0] == "/usr/bin/python3"
    assert spec(tmp_path, "torch")["argv"][0] == "/opt/torch/bin/python"
    assert {"tensorflow", "torch"} == {spec(tmp_path, name)["env"]["KERAS_BACKEND"] for name in ("tensorflow", "torch")}


def test_only_the_bases_interpreter_is_constrained(tmp_path: Path) -> None:
    """`%pip install` may not replace the base's TensorFlow; PyTorch's environment is the user's."""
    words = ["--prefix", str(tmp_path), "--tensorflow", "a", "--torch", "b", "--constraints", "/etc/constraints.txt"]
    install.main(words)

    assert spec(tmp_path, "tensorflow")["env"]["PIP_CONSTRAINT"] == "/etc/constraints.txt"
    assert "PIP_CONSTRAINT" not in spec(tmp_path, "torch")["env"]


def test_a_slim_image_explains_the_framework_that_it_lacks(tmp_path: Path) -> None:
    """The launcher has an entry whose cells are answered by how to get it; no framework is started for it."""
    install.main(["--prefix", str(tmp_path), "--torch", "b", "--tensorflow", "", "--is-slim"])

    found = spec(tmp_path, "tensorflow")
    assert found["display_name"] == "TensorFlow (not in this image)"
    assert "rocmlab.lab.refusal" in found["argv"]
    assert "make up IMAGE=full" in json.loads(found["env"]["ROCMLAB_REFUSAL"])["fix"]
    assert kernelspec.absence(found) == "this image has no TensorFlow"
    assert kernelspec.absence(spec(tmp_path, "torch")) is None


def test_ipykernels_own_kernel_goes(tmp_path: Path) -> None:
    """The environment of JupyterLab has no framework, so its interpreter is not offered."""
    own = tmp_path / "share/jupyter/kernels/python3"
    own.mkdir(parents=True)

    install.main(["--prefix", str(tmp_path), "--torch", "b"])

    assert not own.exists()
    assert not (tmp_path / "share/jupyter/kernels/tensorflow").exists()


def test_nobody_is_asked_about_news(tmp_path: Path) -> None:
    """JupyterLab's question at the first start is answered in its defaults."""
    install.main(["--prefix", str(tmp_path)])

    overrides = json.loads((tmp_path / "share/jupyter/lab/settings/overrides.json").read_text())
    assert overrides["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
