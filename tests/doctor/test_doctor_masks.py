"""Variables that hide GPUs or rename them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from hosts import Gpu
from situations import Looker, fires, host, silent, skipped

from rocmlab.doctor.model import BLOCKS, WARNS

MIXED = (Gpu(1, 0x0300, 128), Gpu(2, 0x0600, 129, gfx_target_version=100302))


@pytest.mark.parametrize(
    ("masks", "status"),
    [
        ({"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}, BLOCKS),
        ({"HIP_VISIBLE_DEVICES": "0, 1"}, WARNS),
        ({"HIP_VISIBLE_DEVICES": "0,9"}, WARNS),
    ],
)
def test_masks_that_contradict_each_other(inside: Looker, masks: dict[str, str], status: str) -> None:
    """No GPU left stops the lab, fewer than meant is a warning; the values are shown."""
    inside.environment = masks

    found = fires(inside(), "env.conflict", status)

    assert {f"environment: {name}={value}" for name, value in masks.items()} <= set(found.evidence)


def test_hidden_on_purpose_is_no_block(inside: Looker) -> None:
    """`-1` is how one asks for the CPU: never more than a warning."""
    inside.environment = {"HIP_VISIBLE_DEVICES": "-1"}

    from rocmlab.doctor import checks

    assert {one.status for one in checks.BY_ID["env.conflict"].run(inside())} <= {"ok", WARNS}


def test_one_clean_mask_is_fine(inside: Looker) -> None:
    """The fix: HIP_VISIBLE_DEVICES alone."""
    inside.environment = {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}

    silent(inside(), "env.conflict")


def test_on_the_way_into_a_container_only_the_env_file_counts(look: Looker) -> None:
    """A mask of this terminal does not reach the lab; one in `.env` does."""
    look.environment = {"HIP_VISIBLE_DEVICES": "1", "ROCR_VISIBLE_DEVICES": "1"}
    silent(look(), "env.conflict")

    look.env_file(HIP_VISIBLE_DEVICES="1", ROCR_VISIBLE_DEVICES="1")
    found = fires(look(), "env.conflict", BLOCKS)
    assert ".env: ROCR_VISIBLE_DEVICES=1" in found.evidence
    script = found.problem.fix.removesuffix("\nmake up")

    subprocess.run(["sh", "-ec", script], cwd=look.folder, check=True)

    assert (look.folder / ".env").read_text() == "HIP_VISIBLE_DEVICES=1\n"
    silent(look(), "env.conflict")


def test_an_override_that_is_no_version(inside: Looker) -> None:
    """HIP ends at its start on it."""
    inside.environment = {"HSA_OVERRIDE_GFX_VERSION": "gfx1100"}

    found = fires(inside(), "env.override", BLOCKS)
    assert found.problem.fix == "sed -i -E '/^(HSA_OVERRIDE_GFX_VERSION)=/d' .env\nmake up"
    assert found.about == "host"

    inside.environment = {}
    silent(inside(), "env.override")


def test_an_override_for_another_generation(tmp_path: Path) -> None:
    """11.0.0 for all breaks an RDNA2 card next to the RDNA3; for one node alone it does not."""
    look = Looker(host(tmp_path / "host", *MIXED), tmp_path / "project", side="container")
    look.environment = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}

    found = fires(look(), "env.override", WARNS)
    assert "different kinds" in found.problem.what

    look.environment = {"HSA_OVERRIDE_GFX_VERSION_2": "10.3.0"}
    silent(look(), "env.override")


def test_masks_and_overrides_are_read_together(tmp_path: Path) -> None:
    """An override for the one GPU that is not hidden breaks no other; without the mask it does."""
    gpus = (Gpu(1, 0x0300, 128, gfx_target_version=110002), Gpu(2, 0x0600, 129, gfx_target_version=100302))
    look = Looker(host(tmp_path / "host", *gpus), tmp_path / "project", side="container")
    look.environment = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0", "HIP_VISIBLE_DEVICES": "0"}
    silent(look(), "env.override")
    silent(look(), "env.conflict")

    del look.environment["HIP_VISIBLE_DEVICES"]
    assert "different kinds" in fires(look(), "env.override", WARNS).problem.what
    silent(look(), "env.conflict")

    look.side = "host"  # where `.env` has both
    look.env_file(HSA_OVERRIDE_GFX_VERSION="11.0.0", HIP_VISIBLE_DEVICES="0")
    silent(look(), "env.override")
    look.env_file(HSA_OVERRIDE_GFX_VERSION="11.0.0", HIP_VISIBLE_DEVICES="1")
    assert "another generation than gfx1032" in fires(look(), "env.override", BLOCKS).problem.what


@pytest.mark.parametrize("node", ["x", "-1", "7", "1.0"])
def test_an_override_for_a_node_that_is_none(inside: Looker, node: str) -> None:
    """Whatever stands behind the underscore."""
    inside.environment = {f"HSA_OVERRIDE_GFX_VERSION_{node}": "11.0.0"}

    assert "does not match any GPU" in fires(inside(), "env.override", WARNS).problem.what


def test_each_check_says_its_own_problems(inside: Looker) -> None:
    """A bad mask is not a bad override, and the other way round."""
    inside.environment = {"HIP_VISIBLE_DEVICES": "0, 1"}
    silent(inside(), "env.override")
    fires(inside(), "env.conflict", WARNS)

    inside.environment = {"HSA_OVERRIDE_GFX_VERSION": "x"}
    silent(inside(), "env.conflict")
    fires(inside(), "env.override", BLOCKS)


def test_the_container_toolkits_variable_hides_nothing_here(inside: Looker) -> None:
    """It is a warning, and taking it out is the fix."""
    inside.environment = {"AMD_VISIBLE_DEVICES": "0"}

    found = fires(inside(), "env.conflict", WARNS)
    assert "only AMD's container toolkit reads it" in found.problem.why
    assert "/^(AMD_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES)=/d" in found.problem.fix

    inside.environment = {}
    silent(inside(), "env.conflict")


def test_an_override_for_no_gpu_of_the_lab(inside: Looker) -> None:
    """10.3.0 on an RX 7900 stops it; without the line it is silent."""
    inside.environment = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}

    assert "another generation than gfx1100" in fires(inside(), "env.override", BLOCKS).problem.what

    inside.environment = {}
    silent(inside(), "env.override")


def test_an_override_that_nobody_needs(inside: Looker) -> None:
    """It makes a supported GPU run another's kernels; without it the check is silent."""
    inside.environment = {"HSA_OVERRIDE_GFX_VERSION": "11.0.0"}

    assert "gfx1100 needs none" in fires(inside(), "env.override", WARNS).problem.what

    inside.environment = {}
    silent(inside(), "env.override")


def test_an_override_that_is_needed_is_fine(tmp_path: Path) -> None:
    """10.3.0 on an RX 6600."""
    look = Looker(host(tmp_path / "host", MIXED[1]), tmp_path / "project", side="container")
    look.environment = {"HSA_OVERRIDE_GFX_VERSION": "10.3.0"}

    silent(look(), "env.override")


def kernelspec(folder: Path, name: str, **env: str) -> Path:
    """Write a kernelspec as this lab's JupyterLab finds it."""
    path = folder / "kernels" / name / "kernel.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"argv": ["python"], "env": env}))
    return path


def test_a_kernelspec_with_a_mask_of_its_own(inside: Looker, tmp_path: Path) -> None:
    """Its kernel sees other GPUs than the lab; without the variable, or with the lab's own value, it does not."""
    path = kernelspec(tmp_path / "jupyter", "mine", HIP_VISIBLE_DEVICES="1")
    inside.environment = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "JUPYTER_DATA_DIR": str(tmp_path / "none")}

    found = fires(inside(), "jupyter.env", WARNS)
    assert str(path) in found.problem.what
    assert "HIP_VISIBLE_DEVICES=1" in " ".join(found.evidence)

    inside.environment["HIP_VISIBLE_DEVICES"] = "1"
    silent(inside(), "jupyter.env")
    del inside.environment["HIP_VISIBLE_DEVICES"]
    kernelspec(tmp_path / "jupyter", "mine", KERAS_BACKEND="torch")
    silent(inside(), "jupyter.env")


def test_damaged_kernelspecs_are_passed_over(inside: Looker, tmp_path: Path) -> None:
    """Not JSON, not an object, no `env`: no crash."""
    for name, text in {"a": "{", "b": "[]", "c": '{"env": 3}'}.items():
        kernelspec(tmp_path / "jupyter", name).write_text(text)
    inside.environment = {"JUPYTER_PATH": str(tmp_path / "jupyter"), "JUPYTER_DATA_DIR": str(tmp_path / "none")}

    silent(inside(), "jupyter.env")


def test_masks_do_not_apply_without_gpus(tmp_path: Path) -> None:
    """On a host without AMD GPUs no one asks."""
    root = tmp_path / "host"
    root.mkdir()
    look = Looker(root, tmp_path / "project", backend="cpu", environment={"HIP_VISIBLE_DEVICES": ""})

    assert skipped(look(), "env.conflict") == "no AMD GPU was found"
