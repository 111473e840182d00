"""The values for Zero to JupyterHub, as far as that is possible without the chart (see `docs/verification.md`)."""

from __future__ import annotations

import re
from typing import Any

import yaml
from kernel_hosts import REPOSITORY

VALUES = REPOSITORY / "deploy/jupyterhub-amd.yaml"
PLACEHOLDER = re.compile(r"<[A-Z][A-Z /a-z]*>")


def values(**replaced: str) -> Any:
    """Return the values; `replaced` are texts in place of what a site replaces."""
    text = VALUES.read_text()
    for name, value in replaced.items():
        text = re.sub(f"<{name}[^>]*>", value, text)
    return yaml.safe_load(text)


def test_what_a_site_replaces_stays_what_the_chart_takes() -> None:
    """A tag such as 1.0 is a text, and a group a number; the comment names the form of what is to be replaced."""
    found = values(GROUP="109", REGISTRY="registry.example.org", TAG="1.0", CLAIM="share")

    assert found["hub"]["config"]["KubeSpawner"]["supplemental_gids"] == [109]
    assert found["singleuser"]["image"] == {"name": "registry.example.org/rocmlab", "tag": "1.0"}
    assert not PLACEHOLDER.search(yaml.safe_dump(found))


def test_what_they_set_of_rocmlab_is_what_the_image_reads() -> None:
    """Variables and backends exist, and the image has the program and the user."""
    found = values()
    user = found["singleuser"]
    profiles = [each["kubespawner_override"] for each in user["profileList"]]
    names = {*user["extraEnv"], *(name for each in profiles for name in each["environment"])}
    sources = "".join(path.read_text() for path in (REPOSITORY / "src/rocmlab").rglob("*.py"))
    image = (REPOSITORY / "docker/Dockerfile").read_text()

    assert {name for name in names if name.startswith("ROCMLAB_") and name not in sources} == set()
    assert [each["environment"]["ROCMLAB_BACKEND"] for each in profiles] == ["cpu", "rocm", "rocm"]
    assert [each.get("extra_resource_limits") for each in profiles] == [
        None,
        {"amd.com/gpu": "1"},
        {"amd.com/gpu": "8"},
    ]
    assert user["cmd"].startswith("/opt/rocmlab/bin/")
    assert "/opt/rocmlab" in image
    assert (user["uid"], user["fsGid"]) == (1000, 100)
