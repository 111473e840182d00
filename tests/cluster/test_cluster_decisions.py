"""What is decided before Ray is asked: ports, the token, this machine's address, the node's devices and its command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cluster_nodes import free_port

from rocmlab.base import confidential
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import handshake, overview, ports, ray_node, record, starter, token
from rocmlab.cluster.node.handshake import Handshake
from rocmlab.cluster.node.ray_node import Plan
from rocmlab.cluster.node.record import Record
from rocmlab.devices import Device, discover
from rocmlab.simulation import write_host

TOKEN = "a1" * 32
DOCS = Path(__file__).parents[2] / "docs/cluster.md"


def plan_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str = "radeon", **settings: str) -> Plan:
    """Return the plan of a node on a simulated host."""
    root = tmp_path / "host"
    write_host(root, gpus=3, profile=profile, busy="idle", seed=1)
    monkeypatch.setenv("ROCMLAB_ROOT", str(root))
    return ray_node.plan({"CLUSTER": "head", **settings}, folder=Path("/tmp/x"))


# -- ports -----------------------------------------------------------------------------------------------------------


def test_ports_of_a_node_do_not_meet() -> None:
    """Each has a number of its own, whatever CLUSTER_PORT is."""
    taken = [number for span in ports.numbers(7000).values() for number in span]

    assert len(taken) == len(set(taken))


def test_every_port_is_documented_with_its_number() -> None:
    """A user writes the firewall's rules from docs/cluster.md."""
    text = DOCS.read_text(encoding="utf-8")

    for port in ports.TABLE:
        first = ports.FIRST + port.offset
        shown = str(first) if port.count == 1 else f"{first}-{first + port.count - 1}"
        row = next(line for line in text.splitlines() if line.startswith(f"| {port.name} |"))
        assert f"| {shown} |" in row


@pytest.mark.parametrize("text", ["", "x", "80", "-1", "65000", "6379.0", "٦٣٧٩"])
def test_a_port_that_leaves_no_room_is_refused(text: str) -> None:
    """The others lie above it, and all must exist."""
    with pytest.raises(RocmlabError, match="is not a port"):
        ports.parse(text)


def test_only_the_head_is_told_the_heads_ports() -> None:
    """Ray refuses them on another node."""
    words = ports.options(6379, is_head=False)

    assert "--min-worker-port=10002" in words
    assert "--max-worker-port=11001" in words
    assert not [word for word in words if word.startswith(("--port", "--dashboard-port"))]
    assert "--port=6379" in ports.options(6379, is_head=True)


@pytest.mark.parametrize(
    ("text", "found"), [("a.example:6379", ("a.example", 6379)), ("[fd00::1]:7000", ("fd00::1", 7000))]
)
def test_a_heads_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    """As the head prints it."""
    assert ports.split(text) == found


@pytest.mark.parametrize(
    "text", ["", "head", ":6379", "a.example", "a.example:", "a:0", "a:99999", "http://a:1", "b@a:1"]
)
def test_what_is_no_address_of_a_head_is_refused(text: str) -> None:
    """The error shows how one looks."""
    with pytest.raises(RocmlabError, match="is not the address of a head") as caught:
        ports.split(text)

    assert "HEAD=192.168.1.10:6379" in caught.value.problem.fix


# -- token -----------------------------------------------------------------------------------------------------------


def test_a_token_is_new_each_time_and_has_256_bits() -> None:
    """No one can guess it."""
    assert len({token.new() for _ in range(100)}) == 100
    assert len(token.check(token.new())) == 64


@pytest.mark.parametrize("text", ["", "short", "a" * 31, "with space " * 5, "ä" * 40, "a" * 40 + "\n"])
def test_what_protects_nothing_is_no_token(text: str) -> None:
    """Empty, short, or not fit for an HTTP header."""
    with pytest.raises(RocmlabError, match="CLUSTER_TOKEN"):
        token.check(text)


def test_a_tokens_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    """It is written so whatever the umask, also over an older one, and refused if others can read it."""
    path = tmp_path / "token"
    before = os.umask(0)
    try:
        token.write(path, "b" * 64)
        token.write(path, TOKEN)
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == 0o600
    assert token.read(path) == TOKEN
    assert os.listdir(tmp_path) == ["token"]
    path.chmod(0o644)
    with pytest.raises(RocmlabError, match="can be read by others"):
        token.read(path)


def test_the_tokens_file_goes_before_the_variable(tmp_path: Path) -> None:
    """The container has it as a file, the native lab in the environment."""
    path = token.write(tmp_path / "token", TOKEN)

    assert token.of({"RAY_AUTH_TOKEN_PATH": str(path), "CLUSTER_TOKEN": "c" * 64}) == TOKEN
    assert token.of({"CLUSTER_TOKEN": "c" * 64}) == "c" * 64
    with pytest.raises(RocmlabError, match="CLUSTER_TOKEN is missing"):
        token.of({})
    with pytest.raises(RocmlabError, match="cannot be read"):
        token.of({"RAY_AUTH_TOKEN_PATH": str(tmp_path / "absent")})


# -- node ------------------------------------------------------------------------------------------------------------


def test_a_node_offers_its_gpus_by_gfx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixed machine counts each kind, and next to them one place for jobs on the CPU."""
    wanted = plan_of(tmp_path, monkeypatch, profile="mixed")

    assert ray_node.resources(wanted) == {"cpu_place": 1, "gfx1100": 1, "gfx1150": 1, "gfx1201": 1}
    assert wanted.simulated


def test_masks_of_the_lab_narrow_what_a_node_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUS reaches the lab as a mask, and Ray's ids stay HIP's indices."""
    wanted = plan_of(tmp_path, monkeypatch, HIP_VISIBLE_DEVICES="2,0", ROCR_VISIBLE_DEVICES="0,1,2")

    environment = ray_node.ray_environment(wanted, {"ROCR_VISIBLE_DEVICES": "0,1,2", "PATH": "/bin"})

    assert [device.index for device in wanted.devices] == [0, 2]
    assert environment["HIP_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == "0,2"
    assert "ROCR_VISIBLE_DEVICES" not in environment
    assert "--num-gpus=2" in ray_node.command(wanted)


def test_a_machine_without_gpus_hides_all_from_its_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty mask is easily taken for one that is not set."""
    wanted = plan_of(tmp_path, monkeypatch, HIP_VISIBLE_DEVICES="-1")

    environment = ray_node.ray_environment(wanted, {})

    assert environment["HIP_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == "-1"
    assert "--num-gpus=0" in ray_node.command(wanted)
    assert ray_node.labels(wanted)["rocmlab.backend"] == "cpu"


def test_a_node_offers_gpus_of_one_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray numbers one kind of GPU on a node; what cannot be used is not offered."""
    write_host(tmp_path / "host", gpus=2, profile="radeon", busy="idle", seed=1)
    found = [
        *discover(tmp_path / "host", {}),
        Device("cuda", 0, "H100", is_usable=True),
        Device("rocm", None, "old", is_usable=False, why_not="no driver"),
    ]

    assert [device.backend for device in ray_node.offered(found)] == ["rocm", "rocm"]
    assert [device.name for device in ray_node.offered(found[-3:])] == ["H100"]
    assert ray_node.offered([]) == []


def test_what_starts_a_node_has_no_secret_and_serves_the_dashboard_on_the_loopback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can list command lines; workers get the token's file and nothing more."""
    wanted = plan_of(tmp_path, monkeypatch, CLUSTER_TOKEN=TOKEN)

    words = ray_node.command(wanted)
    given = {name: f"secret-{name}" for name in confidential.NAMES}
    environment = ray_node.ray_environment(wanted, {**given, "CLUSTER_TOKEN": TOKEN, "HF_TOKEN": "hf"})

    assert TOKEN not in " ".join(words)
    assert TOKEN not in environment.values()
    assert not set(confidential.NAMES) & set(environment)
    assert environment["HF_TOKEN"] == "hf"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/tmp/x/token"
    assert environment["RAY_AUTH_MODE"] == "token"
    assert "--dashboard-host=127.0.0.1" in words
    assert environment["RAY_USAGE_STATS_ENABLED"] == "0"


PORTS = """
import sys
from types import SimpleNamespace
from rocmlab.cluster.node import starter
node = SimpleNamespace(node_id="ab" * 28, dashboard_agent_listen_port=7384, get_session_dir_path=lambda: sys.argv[1])
starter.announcing(lambda node, *words, **more: print(*words, more))(node, "a", b=1)
"""


@pytest.mark.long
def test_a_raylet_need_not_wait_until_its_agents_are_up(tmp_path: Path) -> None:
    """It waits 15 s at most for each port that it does not know, too short on a busy machine, and then it aborts."""
    pytest.importorskip("ray")

    printed = subprocess.check_output([sys.executable, "-c", PORTS, str(tmp_path)], text=True, timeout=120)

    assert printed == "a {'b': 1}\n"
    found = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert found == {f"dashboard_agent_listen_port_{'ab' * 28}": "7384", f"metrics_export_port_{'ab' * 28}": "-1"}


def test_where_ray_has_other_ports_it_starts_in_its_own_way() -> None:
    """What is not known of a Ray is not announced; its own wait remains."""
    pytest.importorskip("ray")
    unknown = "from rocmlab.cluster.node import starter; starter.announcing(print)(object())"

    done = subprocess.run([sys.executable, "-c", unknown], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<object object")


@pytest.mark.slow
def test_a_raylet_that_has_died_is_not_waited_for() -> None:
    """One that lives is asked for until it is known; the error names the log that says why."""
    asked: list[str] = []

    def ask(node: str) -> str:
        asked.append(node)
        if len(asked) < 3:
            raise RuntimeError("not known yet")
        return f"{node} is known"

    assert starter.patient(ask, 60, has_died=lambda: False)("a") == "a is known"
    asked.clear()
    with pytest.raises(starter.RayletExited, match=r"raylet\.err"):
        starter.patient(ask, 60, has_died=lambda: True)("a")
    assert asked == ["a"]


@pytest.mark.parametrize(
    ("text", "value"),
    [("7.2.1", "7.2.1"), ("my host.lan", "my-host.lan"), ("-a-", "a"), ("x" * 80, "x" * 63), ("", "")],
)
def test_labels_are_written_as_ray_takes_them(text: str, value: str) -> None:
    """A host's name must not keep its node from starting."""
    assert ray_node.label_value(text) == value


def test_a_node_without_a_cluster_or_with_a_strange_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLUSTER says which cluster; CLUSTER_ADDRESS must be this machine's."""
    with pytest.raises(RocmlabError, match="this lab is not a node"):
        ray_node.plan({"CLUSTER": "off"})
    with pytest.raises(RocmlabError, match=r"CLUSTER_ADDRESS=198\.51\.100\.77 is not an address of this machine"):
        ray_node.plan({"CLUSTER": "head", "CLUSTER_ADDRESS": "198.51.100.77"})
    with pytest.raises(RocmlabError, match=r"CLUSTER_ADDRESS=127\.0\.0\.1 reaches no other machine"):
        ray_node.plan({"CLUSTER": "head", "CLUSTER_ADDRESS": "127.0.0.1"})
    with pytest.raises(RocmlabError, match="too long"):
        ray_node.plan({"CLUSTER": "head"}, folder=Path("/tmp/" + "x" * 60))


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    """A link, or one that others can open, would let them use the cluster."""
    opened = tmp_path / "opened"
    opened.mkdir()
    opened.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)

    ray_node.make_private(tmp_path / "new")

    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    for folder in (opened, link):
        with pytest.raises(RocmlabError, match="is not a private folder"):
            ray_node.make_private(folder)


def test_ports_that_are_taken_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would fail half way through its start."""
    first = free_port()
    wanted = plan_of(tmp_path, monkeypatch, CLUSTER_PORT=str(first))
    with socket.socket() as other:
        other.bind(("127.0.0.1", first + 2))
        other.listen()

        assert ray_node.busy_ports(wanted) == [f"object manager {first + 2}"]


# -- greeting --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "what"),
    [
        (Handshake("2.9.0", "3.11.1"), "the cluster runs Ray 2.9.0"),
        (Handshake("", "3.4.9"), "the cluster runs Python 3.4.9"),
    ],
)
def test_a_cluster_of_other_versions_is_refused_in_words(said: Handshake, what: str) -> None:
    """Ray's own check would end in a traceback after a while."""
    pytest.importorskip("ray")
    said = Handshake(said.ray or handshake.check_ray(), said.python)

    with pytest.raises(RocmlabError, match=what):
        handshake.check_versions(said)


def test_another_patch_of_python_is_no_obstacle() -> None:
    """Programs fit every 3.11, say."""
    pytest.importorskip("ray")
    major, minor, patch = os.sys.version_info[:3]  # type: ignore[attr-defined]

    handshake.check_versions(Handshake(handshake.check_ray(), f"{major}.{minor}.{patch + 1}"))


def test_a_head_that_is_not_there_is_told_within_seconds() -> None:
    """With what to look at."""
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{deaf.getsockname()[1]}"

        with pytest.raises(RocmlabError, match="cannot be reached") as caught:
            handshake.reach(address)

    assert "refused" in caught.value.problem.why.lower()


@pytest.mark.slow
def test_something_else_at_the_heads_address_is_told_to_be_no_head() -> None:
    """It accepts a connection, and says nothing that Ray understands."""
    pytest.importorskip("ray")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        environment["PYTHONPATH"] = str(Path(__file__).parents[2] / "src")
        for timeout in ("connect", "reconnect"):  # seconds; Ray's own patience is half a minute
            environment[f"RAY_gcs_rpc_server_{timeout}_timeout_s"] = "1"

        with pytest.raises(RocmlabError, match="does not answer as the head of a cluster"):
            handshake.ask_aside(address, environment)


# -- record ----------------------------------------------------------------------------------------------------------


def test_a_record_is_read_back_and_half_of_one_is_none(tmp_path: Path) -> None:
    """Programs of this machine find the node by it."""
    path = tmp_path / "node.json"
    written = Record(os.getpid(), record.FAILED, "a:1", "a", 1, True, 2, False, {"what": "w", "why": "y", "fix": "f"})

    written.write(path)

    assert record.read(path) == written
    assert str(written.failure) == "w\n  why: y\n  fix: f"
    assert not written.is_alive, "this process is no node"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "is_node", {os.getpid()}.__contains__)
        assert written.is_alive, "recorded without the time of its start, as before there was one"
        assert not replace(written, started="another").is_alive
    path.write_text(path.read_text()[:20])
    assert record.read(path) is None


# -- overview --------------------------------------------------------------------------------------------------------


def seen(hostname: str, offset: float | None = 0.0, **versions: str | None) -> dict[str, Any]:
    """Return a node as `overview.look` has it."""
    return {
        "hostname": hostname,
        "address": "10.0.0.1",
        "versions": versions or None,
        "clock_offset_seconds": offset,
        "clock_uncertainty_seconds": None if offset is None else 0.2,
        "tasks": None,
        "leases": None,
        "is_alive": True,
        "problem": None,
    }


def test_versions_that_differ_are_told_with_the_machines() -> None:
    """What is unknown somewhere does not differ."""
    same = [seen("a", rocmlab="1", rocm="7.2", python="3.11.1"), seen("b", rocmlab="1", rocm=None, python="3.11.1")]
    other = [*same, seen("c", rocmlab="2", rocm="6.4", python="3.11.1"), seen("d", None)]

    assert overview.warnings(same) == []
    assert [line.split(":")[0] for line in overview.warnings(other)] == ["rocmlab differs", "ROCm differs"]
    assert "1 on a (10.0.0.1), b (10.0.0.1); 2 on c (10.0.0.1)" in overview.warnings(other)[0]


def test_a_clock_is_told_when_it_is_surely_wrong() -> None:
    """A second that may be the question's own time is none."""
    nodes = [seen("a", 1.1), seen("b", -3.0), seen("c", 4.0), seen("d", None)]

    told = overview.warnings(nodes)

    assert [line.partition(":")[0] for line in told] == [
        "the clock of b (10.0.0.1) is 3.0 s behind this machine's",
        "the clock of c (10.0.0.1) is 4.0 s ahead of this machine's",
    ]


def test_what_runs_is_named_with_its_machine() -> None:
    """Leaving a cluster is rejected with these words."""
    lease = {"notebook": "01_mnist.ipynb", "owner": "ada", "pid": 7}
    nodes = [
        {**seen("a"), "tasks": ["a job"], "leases": [{"index": 0, "lease": None}, {"index": 1, "lease": lease}]},
        seen("b"),
        {**seen("c"), "problem": {"what": "c does not answer", "why": "", "fix": ""}},
        {**seen("d"), "problem": {"what": "d is lost", "why": "", "fix": ""}, "is_alive": False},
    ]

    assert overview.busy(nodes) == [
        "a job on a (10.0.0.1)",
        "01_mnist.ipynb on GPU 1 of a (10.0.0.1)",
        "what c (10.0.0.1) runs is not known: c does not answer",
    ]


def test_folders_of_others_in_tmp_are_passed_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may put a link or a file there, with the name that this user's node would have."""
    mark = f"rocmlab-test-{os.getpid()}"
    monkeypatch.setattr(record, "FOLDERS", f"{mark}-*")
    wrong = [Path(f"/tmp/{mark}-link"), Path(f"/tmp/{mark}-file")]
    wrong[0].symlink_to(tmp_path / "nowhere")
    wrong[1].write_text("")
    try:
        assert record.here({}) is None
        assert record.here({"RAY_AUTH_TOKEN_PATH": str(wrong[0] / "token")}) is None
    finally:
        for path in wrong:
            path.unlink()


# -- signals ---------------------------------------------------------------------------------------------------------


def test_exit_codes_are_true_again_from_whatever_thread_it_is_asked() -> None:
    """Ray has its processes ignore SIGCHLD, and an actor's methods do not run in the main thread."""
    program = """
import signal, subprocess, threading
from rocmlab.cluster.node import session
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(subprocess.run(["sh", "-c", "exit 7"]).returncode)
thread = threading.Thread(target=session.restore_signals)
thread.start()
thread.join()
print(subprocess.run(["sh", "-c", "exit 7"]).returncode)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout.split() == ["0", "7"]
