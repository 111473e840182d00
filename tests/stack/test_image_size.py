"""What a pull downloads is known before it, and how far it is during it."""

from __future__ import annotations

import json

import pytest

from rocmlab.stack import image_size
from rocmlab.stack.progress import PullProgress

BIG, SMALL = "sha256:" + "b" * 64, "sha256:" + "5" * 64
MANIFEST = json.dumps(
    {"config": {"size": 7}, "layers": [{"digest": BIG, "size": 9 * 10**9}, {"digest": SMALL, "size": 10**9}]}
)


def test_the_layers_of_one_manifest() -> None:
    """Sizes are those of the download."""
    assert image_size.layers(lambda _: MANIFEST, "rocm/tensorflow:tag") == {BIG: 9 * 10**9, SMALL: 10**9}


def test_of_several_platforms_this_machines_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list has attestations and other machines as well; the manifest itself is asked for by its digest."""
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    listed = [
        {"digest": "sha256:1", "platform": {"os": "linux", "architecture": "arm64"}},
        {"digest": "sha256:2", "platform": {"os": "linux", "architecture": "amd64"}},
        {"digest": "sha256:3", "platform": {"os": "unknown", "architecture": "unknown"}},
    ]
    known = {"host:5000/lab:1": json.dumps({"manifests": listed}), "host:5000/lab@sha256:2": MANIFEST}

    assert sum(image_size.layers(known.__getitem__, "host:5000/lab:1").values()) == 10**10


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", '{"layers": [1]}', '{"manifests": [1, {}]}', '{"layers": [{}]}']
)
def test_a_registry_that_does_not_tell_is_no_error(text: str) -> None:
    """The pull continues without a size."""
    assert image_size.layers(lambda _: text, "a:1") == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a", "a"), ("a/b:tag", "a/b"), ("h:5000/a", "h:5000/a"), ("h:5000/a:t", "h:5000/a"), ("a@sha256:1", "a")],
)
def test_a_port_is_no_tag(name: str, expected: str) -> None:
    """The name of a repository."""
    assert image_size.repository(name) == expected


def test_a_pull_shows_bytes_and_what_is_left() -> None:
    """By the layers that have arrived; how long the rest takes follows from those."""
    now = 100.0
    show = PullProgress({BIG: 9 * 10**9, SMALL: 10**9}, lambda: now)

    assert show(f"{'b' * 12}: Pulling fs layer") is None
    assert show(f"{'5' * 12}: Pulling fs layer") is None
    now = 160.0
    assert show(f"{'5' * 12}: Download complete") == "  1.0 GB of 10.0 GB, about 9 min left"
    now = 400.0
    assert show(f"{'b' * 12}: Download complete") == "  10.0 GB of 10.0 GB: unpacking"
    assert show(f"{'5' * 12}: Pull complete") == "  1 of 2 layers"


def test_what_is_here_already_is_not_downloaded() -> None:
    """As when an interrupted pull continues: the rest would seem to arrive at once."""
    now = 0.0
    show = PullProgress({BIG: 9 * 10**9, SMALL: 10**9}, lambda: now)

    assert show(f"{'b' * 12}: Already exists") is None
    now = 100.0
    assert show(f"{'5' * 12}: Download complete") == "  1.0 GB of 1.0 GB: unpacking"


def test_a_pull_of_unknown_size_shows_layers() -> None:
    """As where no registry tells."""
    show = PullProgress()

    assert show(f"{'5' * 12}: Pulling fs layer") is None
    assert show(f"{'5' * 12}: Download complete") is None
    assert show(f"{'5' * 12}: Pull complete") == "  1 of 1 layers"
