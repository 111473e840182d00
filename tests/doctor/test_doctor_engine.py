"""The engine's kinds and troubles; the words are the engine's own, wrapped and not repeated."""

from __future__ import annotations

import dataclasses

import pytest
from situations import ENGINE, Looker, fires, silent, skipped

from rocmlab.base.errors import Problem
from rocmlab.doctor.model import BLOCKS, WARNS
from rocmlab.doctor.situation import Situation
from rocmlab.stack import engine as engines
from rocmlab.stack import settings as configuration


@pytest.mark.parametrize(
    ("id", "facts", "fix"),
    [
        ("docker.desktop", {"operating_system": "Docker Desktop"}, "docker context use default"),
        ("docker.snap", {"is_snap": True}, "snap remove docker"),
        ("docker.remote", {"is_remote": True}, "docker context use default"),
        ("docker.rootless", {"security": ("name=rootless",)}, "docker context use default"),
    ],
)
def test_engines_that_cannot_pass_a_gpu(look: Looker, id: str, facts: dict[str, object], fix: str) -> None:
    """Each kind fires its own check and no other; the usual engine none."""
    silent(look(), id)
    look.engine = dataclasses.replace(ENGINE, **facts)

    assert fix in fires(look(), id, BLOCKS).problem.fix
    for other in {"docker.desktop", "docker.snap", "docker.remote", "docker.rootless"} - {id}:
        silent(look(), other)


def test_an_engine_that_cannot_pass_a_gpu_is_fine_where_there_is_none(look: Looker) -> None:
    """Docker Desktop runs a lab on the CPU."""
    look.engine = dataclasses.replace(ENGINE, operating_system="Docker Desktop")
    look.backend, look.chosen = "cpu", {"BACKEND": "cpu"}

    assert "no GPU was found to pass" in skipped(look(), "docker.desktop")


def test_rootless_podman_is_fine_and_says_what_it_cannot_do(look: Looker) -> None:
    """It runs the lab; a choice of GPUs is only a mask there."""
    look.runtime, look.rootless, look.chosen = "podman", True, {"GPUS": "0"}

    assert "GPUS=0: others are hidden by a mask" in silent(look(), "docker.rootless").evidence
    assert skipped(look(), "docker.desktop") == "the lab runs without Docker"


def test_an_engine_that_is_down(look: Looker) -> None:
    """The engine's own word is passed on."""
    silent(look(), "engine.answers")
    problem = Problem("the Docker engine is installed but does not answer", "said", "sudo systemctl start docker")
    look.engine = engines.Engine(is_usable=False, problem=problem)

    assert fires(look(), "engine.answers", BLOCKS).problem == problem
    assert "does not answer" in skipped(look(), "compose.version")


@pytest.mark.parametrize(("version", "is_new"), [("1.29.2", False), ("2.20.0", False), ("2.40.3", True)])
def test_compose_must_be_new_enough(look: Looker, version: str, is_new: bool) -> None:
    """The rule is the engine probe's; here it is reported as Compose's trouble and not as the engine's."""
    problem = engines._compose_problem(0, version)
    look.engine = dataclasses.replace(ENGINE, is_usable=problem is None, problem=problem)

    if is_new:
        silent(look(), "compose.version")
    else:
        assert version in fires(look(), "compose.version", BLOCKS).problem.what
    silent(look(), "engine.answers")


@pytest.mark.parametrize("is_compose", [True, False])
def test_whose_trouble_it_is_does_not_hang_on_its_words(look: Looker, is_compose: bool) -> None:
    """The engine's probe says what its problem is about."""
    kind = engines.ComposeProblem if is_compose else Problem
    problem = kind("a made-up error", "said", "fix")
    look.engine = dataclasses.replace(ENGINE, is_usable=False, problem=problem)

    if is_compose:
        fires(look(), "compose.version", BLOCKS)
        silent(look(), "engine.answers")
    else:
        fires(look(), "engine.answers", BLOCKS)
        assert "does not answer" in skipped(look(), "compose.version")


@pytest.mark.parametrize(
    ("requested", "status"), [("auto", WARNS), ("docker", BLOCKS), ("native", None), ("podman", None), (None, WARNS)]
)
def test_without_a_plan_the_engine_that_was_asked_for_counts(look: Looker, requested: str | None, status: str) -> None:
    """`auto` can continue without Docker, and the plan says if it cannot."""
    problem = engines._compose_problem(1, "")
    engine = dataclasses.replace(ENGINE, is_usable=False, problem=problem)
    settings = configuration.load(look.folder, {"RUNTIME": requested}) if requested else None
    situation = Situation(look.root, environment={}, given={"engine": engine}, requested=settings)

    if status:
        fires(situation, "compose.version", status)
    else:
        assert skipped(situation, "compose.version") == "the lab runs without Docker"


def test_without_an_engine_nothing_about_engines_applies(look: Looker) -> None:
    """A native lab needs none."""
    look.engine = engines.Engine(is_usable=False)

    assert skipped(look(), "engine.answers") == "no container engine was found"
