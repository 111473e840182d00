"""A cluster in a project's settings, and the verbs that choose it, as far as no Ray is needed."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.cli import cluster as verbs
from rocmlab.cli import cluster_inside, main
from rocmlab.cli.stopping import Consent
from rocmlab.stack import cluster, envfile, requirements, settings
from rocmlab.stack.environment import Environment

TOKEN = "a1" * 32
ROOT = Path(__file__).parents[2]
NODE = {"is_head": True, "head": "10.0.0.1:6379", "address": "10.0.0.1", "gpus": 2, "simulated": False}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder, and the command's place in it."""
    (tmp_path / "docker").mkdir()
    for name in ("compose.yaml", "docker/Dockerfile"):
        (tmp_path / name).touch()
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTER", "")  # put back afterwards: the verbs choose by it
    return tmp_path


def chosen(project: Path, **given: str) -> settings.Settings:
    """Return the project's settings with these given."""
    return settings.load(project, given)


def test_a_cluster_is_off_until_it_is_chosen(project: Path) -> None:
    """A lab alone has no token, no Ray, and nothing of a cluster in `.env`."""
    assert cluster.values(chosen(project)) == {}
    assert not chosen(project).is_in_cluster


def test_a_head_gets_a_token_once(project: Path) -> None:
    """It stays the same at the next start, and when the cluster is left and made again."""
    first = chosen(project, CLUSTER="head")
    settings.save(first, {"PORT": "8888", **cluster.values(first)})
    again = cluster.values(chosen(project))
    left = chosen(project)
    cluster.forget(left, envfile.parse(envfile.read(left.env_path)))
    after = envfile.parse((project / ".env").read_text())

    assert len(again["CLUSTER_TOKEN"]) == 64
    assert again["CLUSTER"] == "head"
    assert after["CLUSTER_TOKEN"] == again["CLUSTER_TOKEN"]
    assert after["PORT"] == "8888"
    assert {"CLUSTER", "CLUSTER_PORT", "CLUSTER_NETWORK"} & set(after) == set()
    assert not chosen(project).is_in_cluster
    assert cluster.values(chosen(project, CLUSTER="head"))["CLUSTER_TOKEN"] == again["CLUSTER_TOKEN"]


def test_leaving_takes_the_overlay_out_of_the_compose_files(project: Path) -> None:
    """Plain `docker compose` would ask for CLUSTER otherwise."""
    files = "compose.yaml:docker/compose.cpu.yaml:docker/compose.cluster.yaml"
    before = chosen(project, CLUSTER="head")
    settings.save(before, {"COMPOSE_FILE": files, **cluster.values(before)})

    cluster.forget(chosen(project), envfile.parse((project / ".env").read_text()))

    assert envfile.parse((project / ".env").read_text())["COMPOSE_FILE"] == "compose.yaml:docker/compose.cpu.yaml"


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"CLUSTER": "yes"}, "'yes' is not the address of a head"),
        ({"CLUSTER": "a:6379"}, "CLUSTER_TOKEN is missing"),
        ({"CLUSTER": "a:6379", "CLUSTER_TOKEN": "short"}, "CLUSTER_TOKEN is not a valid token"),
        ({"CLUSTER": "head", "CLUSTER_TOKEN": "short"}, "CLUSTER_TOKEN is not a valid token"),
        ({"CLUSTER_PORT": "80"}, "CLUSTER_PORT=80 is not a port"),
    ],
)
def test_what_cannot_be_meant_is_refused(project: Path, given: dict[str, str], what: str) -> None:
    """Before anything is built or written."""
    with pytest.raises(RocmlabError, match=what):
        cluster.check(chosen(project, **given))


def test_a_head_needs_no_token_from_a_person_and_a_node_takes_one(project: Path) -> None:
    """These can be meant."""
    cluster.check(chosen(project))
    cluster.check(chosen(project, CLUSTER="head"))
    cluster.check(chosen(project, CLUSTER="a:6379", CLUSTER_TOKEN=TOKEN))


def test_the_environment_gets_ray_only_for_a_cluster_and_keeps_it(project: Path) -> None:
    """Leaving a cluster does not install everything again."""
    (project / "pyproject.toml").touch()
    alone = Environment(project, "cpu", "python3", "")
    both = Environment(project, "cpu", "python3", "", has_cluster=True)
    alone.folder.mkdir()
    both.marker.write_text(f'{{"fingerprint": "{both.fingerprint()}"}}')

    assert "Ray, for the cluster" not in [step.title for step in requirements.steps(alone)]
    assert next(step for step in requirements.steps(both) if "Ray" in step.title).arguments[-1].endswith("cluster.txt")
    assert alone.is_current()
    both.marker.write_text(f'{{"fingerprint": "{alone.fingerprint()}"}}')
    assert not both.is_current()


def test_the_native_lab_tells_its_programs_of_the_cluster_without_the_token(project: Path) -> None:
    """`ray.init()` finds it by these."""
    node = cluster.NativeNode(chosen(project, CLUSTER="10.0.0.1:6379", CLUSTER_TOKEN=TOKEN), Path("python"))

    told = node.environment()

    assert told["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert told["RAY_AUTH_TOKEN_PATH"] == f"/tmp/rocmlab-ray-{os.getuid()}-6379/token"
    assert TOKEN not in told.values()
    assert cluster.NativeNode(chosen(project), Path("python")).environment() == {}


@pytest.mark.parametrize(
    ("words", "given", "what"),
    [
        (["join"], {}, "the cluster to join is missing"),
        (["join", "nowhere"], {}, "is not the address of a head"),
        (["join", "127.0.0.1:9"], {}, "CLUSTER_TOKEN is missing"),
        (["join", "127.0.0.1:9"], {"CLUSTER_TOKEN": TOKEN}, "the head of the cluster at 127.0.0.1:9 cannot be reached"),
        (["up"], {"ROCMLAB_RUNTIME": "native"}, "this is inside the lab"),
        (["node"], {"ROCMLAB_RUNTIME": "native"}, "this lab is not a node of a cluster"),
    ],
)
def test_a_verb_that_cannot_work_says_why_at_once(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    given: dict[str, str],
    what: str,
) -> None:
    """Nothing is written or started."""
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for name, value in given.items():
        monkeypatch.setenv(name, value)

    code = main(["cluster", *words])

    assert code == 2
    assert what in capsys.readouterr().err
    assert not (project / ".env").exists()


def test_a_machine_in_one_cluster_is_not_moved_to_another(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What runs there would be lost silently."""
    (project / ".env").write_text("CLUSTER=10.9.9.9:6379\n")

    code = main(["cluster", "up"])

    assert code == 2
    said = capsys.readouterr().err
    assert "this machine is in the cluster of 10.9.9.9:6379" in said
    assert "make cluster-down" in said


def test_leaving_is_refused_while_something_runs() -> None:
    """It is named, with what to do."""
    verbs.wait_or_refuse(Consent(), True, list)
    with pytest.raises(RocmlabError, match="2 tasks run on this machine") as caught:
        verbs.wait_or_refuse(Consent(), False, lambda: ["a on b", "c on d"])

    assert caught.value.problem.why == "a on b\nc on d"
    assert "FORCE=1" in caught.value.problem.fix


def test_after_up_a_person_reads_how_others_join(project: Path) -> None:
    """The line has the head's address and the token."""
    values = "ROCMLAB_BACKEND=cpu\nROCMLAB_RUNTIME=native\nJUPYTER_TOKEN=x\nPORT=1\nSHARE=./share\n"
    (project / ".env").write_text(f"{values}CLUSTER_TOKEN={TOKEN}\n")

    lines = verbs.entered(NODE, has_lab=False)
    joined = verbs.entered({**NODE, "is_head": False, "address": "10.0.0.2", "simulated": True}, has_lab=True)

    assert f"  make cluster-join HEAD=10.0.0.1:6379 CLUSTER_TOKEN={TOKEN}" in lines
    assert any(line.startswith("  make up ") for line in lines)
    assert joined[0] == "this machine, 10.0.0.2, has joined the cluster at 10.0.0.1:6379 with 2 GPUs (SIMULATED)"
    assert TOKEN not in "\n".join(joined)


def test_status_for_a_person_names_who_has_what_and_what_is_not_known() -> None:
    """A node that does not answer is shown with why and what to do."""
    gpu = {"backend": "rocm", "gfx": "gfx1100", "name": "RX", "partition": None, "is_usable": True, "why_not": None}
    devices = [{**gpu, "index": n, "pci_address": str(n)} for n in range(3)]
    devices[2] |= {"is_usable": False, "why_not": "hidden"}
    lease = {"notebook": "a.ipynb", "owner": "jo", "pid": 7}
    leases = [{"pci_address": "0", "partition": None, "lease": lease, "foreign": []}]
    leases += [{"pci_address": "1", "partition": None, "lease": None, "foreign": []}]
    node = {
        **{"hostname": "ada", "address": "10.0.0.1", "is_head": True, "gpus": 2, "cpus": 8, "problem": None},
        **{"devices": devices, "leases": leases, "tasks": ["b"], "problems": ["x"], "versions": {"rocmlab": "1"}},
        **{"clock_offset_seconds": 0.5, "clock_uncertainty_seconds": 0.001},
    }
    lost = {
        **node,
        "is_head": False,
        "hostname": "bob",
        "versions": None,
        "problem": {"what": "w", "why": "y", "fix": "f"},
    }

    shown = cluster_inside.lines({"head": "h:1", "simulated": False, "nodes": [node, lost], "warnings": ["careful"]})

    assert shown == [
        "cluster at h:1: 2 nodes, 4 GPUs",
        "",
        "ada  10.0.0.1  (head)",
        "  rocmlab 1",
        "  GPU 0  gfx1100  RX  leased to a.ipynb (jo, process 7)",
        "  GPU 1  gfx1100  RX  free",
        "  GPU 2  gfx1100  RX  not used: hidden",
        "  runs b",
        "  clock +0.500 s, ±0.001",
        "  not known: x",
        "",
        "bob  10.0.0.1",
        "  w",
        "    why: y",
        "    fix: f",
        "",
        "warning: careful",
    ]
