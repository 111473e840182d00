"""The container engine: does it answer, is it new enough, and can it pass a GPU."""

from __future__ import annotations

from rocmlab.base.errors import Problem
from rocmlab.doctor.model import BLOCKS, HOST, WARNS, Verdict, check, ok, skip
from rocmlab.doctor.situation import Situation
from rocmlab.stack.engine import ComposeProblem


def _no_engine(s: Situation) -> str:
    """Say why nothing about an engine applies; empty where it does."""
    if _runtime(s) in ("native", "podman"):
        return "the lab runs without Docker"
    if not s.engine.is_usable and s.engine.problem is None:
        return "no container engine was found"
    return ""


def _runtime(s: Situation) -> str:
    """Return the runtime in force, or the one that was requested where nothing could be planned."""
    return s.runtime or s.asked_runtime


def _reads(s: Situation) -> str:
    return f"engine {s.engine.version or '?'}, {s.engine.operating_system or 'system unknown'}, {s.engine.root or '?'}"


def _of(problem: Problem, *evidence: str, is_fatal: bool) -> Verdict:
    return Verdict(BLOCKS if is_fatal else WARNS, evidence, problem)


def _device_problem(s: Situation, kind: str, *, has: bool) -> Verdict:
    """Wrap the engine's own reason why it cannot pass a GPU, which matters where there is one to pass."""
    if reason := _no_engine(s):
        return skip(reason)
    if not has:
        return ok(_reads(s))
    problem = s.engine.lab_problem() or s.engine.device_problem()
    if problem is None:
        return ok(_reads(s))
    if s.engine.lab_problem() is None and s.no_amd and s.backend != "cuda":
        return skip(f"{kind}, and no GPU was found to pass: {s.no_amd}", _reads(s))
    return _of(problem, _reads(s), is_fatal=s.asked_backend in ("auto", "rocm", "cuda"))


@check(
    "engine.answers",
    "the container engine answers",
    sides=(HOST,),
    looks_at="`docker info`",
    why="An engine that is installed and does not answer runs nothing; often this user may not use its socket.",
    fix="`sudo systemctl start docker`, or `sudo usermod -aG docker $USER` and a new login",
    severity=BLOCKS,
    unless=_no_engine,
)
def answers(s: Situation) -> Verdict:
    """Pass on what the engine's probe found, unless it is about Compose."""
    problem = s.engine.problem
    if problem is None or isinstance(problem, ComposeProblem):
        return ok(_reads(s))
    return _of(problem, is_fatal=_runtime(s) == "docker")


@check(
    "compose.version",
    "Docker Compose is installed and new enough",
    sides=(HOST,),
    looks_at="`docker compose version`",
    why="The project's files need a Compose that knows `!override` and `!reset`.",
    fix="the plugin of your distribution, or Docker's docker-compose-plugin",
    severity=BLOCKS,
    unless=_no_engine,
)
def compose(s: Situation) -> Verdict:
    """Pass on what the engine's probe found about Compose."""
    problem = s.engine.problem
    if problem is None:
        return ok("docker compose is new enough")
    if not isinstance(problem, ComposeProblem):
        return skip("the engine does not answer")
    return _of(problem, is_fatal=_runtime(s) == "docker")


@check(
    "docker.desktop",
    "the engine is not Docker Desktop",
    sides=(HOST,),
    looks_at="the operating system in `docker info`",
    why="Docker Desktop's engine runs in a virtual machine without the GPU's device nodes.",
    fix="`docker context use default`, with a native engine (container-toolkit#86)",
    severity=BLOCKS,
)
def desktop(s: Situation) -> Verdict:
    """Report the engine's own finding."""
    return _device_problem(s, "Docker Desktop", has=s.engine.is_desktop)


@check(
    "docker.snap",
    "the engine is not the snap package",
    sides=(HOST,),
    looks_at="where the `docker` command and the engine's folder lie",
    why="Snap's confinement hides `/dev/kfd` and `/dev/dri` from the engine.",
    fix="`sudo snap remove docker`, then the engine of your distribution",
    severity=BLOCKS,
)
def snap(s: Situation) -> Verdict:
    """Report the engine's own finding."""
    return _device_problem(s, "the snap package", has=s.engine.is_snap)


@check(
    "docker.remote",
    "the engine is on this machine",
    sides=(HOST,),
    looks_at="`DOCKER_HOST` and the docker context",
    why="A remote engine passes the GPUs of its own machine, not of this one.",
    fix="`docker context use default && unset DOCKER_HOST`",
    severity=BLOCKS,
)
def remote(s: Situation) -> Verdict:
    """Report the engine's own finding."""
    return _device_problem(s, "a remote engine", has=s.engine.is_remote)


@check(
    "docker.rootless",
    "the engine has the rights that the lab needs",
    sides=(HOST,),
    looks_at="the security options in `docker info`",
    why="A rootless engine has only your rights: groups of the host do not reach the container, and it cannot pass "
    "some GPUs and not others (ROCm#1549, ROCm#2860, ROCm#3144).",
    fix="the system's engine, or Podman with `keep-groups` and you in the group of the nodes",
    severity=BLOCKS,
)
def rootless(s: Situation) -> Verdict:
    """Look for an engine that runs as this user."""
    if s.is_rootless:
        gpus = s.project.settings.get("GPUS") if s.project else "all"
        return ok("rootless Podman passes every GPU that you may open", f"GPUS={gpus}: others are hidden by a mask")
    if reason := _no_engine(s):
        return skip(reason)
    if not s.engine.is_rootless:
        return ok(_reads(s))
    problem = s.engine.lab_problem()
    return _of(problem, _reads(s), is_fatal=True) if problem else ok(_reads(s))
