"""Leases of a host with several users: real second user ids, one folder that is open to all as /run/lock is."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import hosts
import lease_chaos
import pytest
from lease_chaos import AGENT, AS_USER, Chaos

from rocmlab.base import lease_folder
from rocmlab.devices import Device
from rocmlab.kernels import holders
from rocmlab.kernels.leases import Holder, Leases, key

ALICE, BOB, THIRD = 1000, 65534, 1001
GPUS = [hosts.device(number) for number in range(2)]
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0, reason="only root can be several users: sudo make test")
pytestmark = NEEDS_ROOT

TAKER = """
gpus = [Device(**each) for each in json.loads(sys.argv[1])]
try:
    lease = Leases.of_host().pick(gpus, int(sys.argv[2]), Holder.here(sys.argv[3]))
except RocmlabError as err:
    print(json.dumps(err.problem.as_dict()), flush=True)
else:
    print(json.dumps([gpu.index for gpu in lease.devices] if lease else None), flush=True)
sys.stdin.read()
"""

LOOKER = """
gpus = [Device(**each) for each in json.loads(sys.argv[1])]
held = Leases.of_host().held(gpus)
print(json.dumps([str(held[gpu]) if gpu in held else None for gpu in gpus]))
"""


@dataclass
class Host:
    """A folder like /run/lock, in which the folder of the leases is missing still."""

    lock: Path

    @property
    def folder(self) -> Path:
        """The folder of the leases."""
        return self.lock / "rocmlab"

    @property
    def leases(self) -> Leases:
        """The leases, as root sees them."""
        return Leases(self.folder)

    def start(
        self, uid: int, code: str, *arguments: str, within: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[str]:
        """Start a program of a user, by another program if that is given."""
        command, environment = self.command(uid, code, *arguments, within=within, **variables)
        return subprocess.Popen(
            command,
            env=environment,
            cwd=self.lock,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def command(
        self, uid: int, code: str, *arguments: str, within: Sequence[str] = (), **variables: str
    ) -> tuple[list[str], dict[str, str]]:
        """Return what starts a program of a user, and its environment."""
        environment = {"SEARCHED": json.dumps(sys.path), "LEASES_DIR": str(self.folder), "AS": str(uid)}
        return [*within, sys.executable, "-c", AS_USER + code, *arguments], environment | variables

    @contextlib.contextmanager
    def picked(
        self, uid: int, gpus: list[Device] = GPUS, count: int = 1, **variables: str
    ) -> Iterator[tuple[list[int] | Mapping[str, str] | None, subprocess.Popen[str]]]:
        """A user's process that leases GPUs: which it got (or the problem), and the process, which has them."""
        texts = json.dumps([gpu.as_dict() for gpu in gpus])
        with self.start(uid, TAKER, texts, str(count), f"/of-{uid}.ipynb", **variables) as process:
            assert process.stdout
            try:
                yield json.loads(process.stdout.readline()), process
            finally:
                process.kill()

    def seen_by(self, uid: int, gpus: list[Device] = GPUS, within: Sequence[str] = ()) -> list[str | None]:
        """What a user reads about each GPU: its holder as text, None for a free one."""
        texts = json.dumps([gpu.as_dict() for gpu in gpus])
        found: list[str | None] = json.loads(self.run(uid, LOOKER, texts, within=within))
        return found

    def run(self, uid: int, code: str, *arguments: str, within: Sequence[str] = ()) -> str:
        """Run a program of a user, and return what it prints."""
        with self.start(uid, code, *arguments, within=within) as process:
            return process.communicate(timeout=60)[0].strip()


@pytest.fixture
def host() -> Iterator[Host]:
    """Below /tmp: other users may not enter pytest's folders."""
    base = Path(tempfile.mkdtemp(prefix="rocmlab-test-", dir="/tmp"))
    base.chmod(0o755)
    (base / "lock").mkdir()
    (base / "lock").chmod(0o1777)
    yield Host(base / "lock")
    shutil.rmtree(base)


@pytest.mark.parametrize("umask", ["022", "077"])
def test_two_users_never_get_the_same_gpu(host: Host, umask: str) -> None:
    """Whoever comes first makes the folder; the second gets the other GPU, the third none and reads who has them."""
    with (
        host.picked(ALICE, UMASK=umask) as (first, alice),
        host.picked(BOB, UMASK=umask) as (second, bob),
        host.picked(ALICE) as (third, _),
    ):
        held = host.leases.held(GPUS)

    assert (first, second, third) == ([0], [1], None)
    assert host.folder.stat().st_mode & 0o7777 == 0o1777
    assert [(held[gpu].uid, held[gpu].notebook, held[gpu].pid) for gpu in GPUS] == [
        (ALICE, f"/of-{ALICE}.ipynb", alice.pid),
        (BOB, f"/of-{BOB}.ipynb", bob.pid),
    ]
    assert f"uid {ALICE}" in str(held[GPUS[0]])


def test_the_lease_of_a_killed_process_is_there_for_another_user(host: Host) -> None:
    """Nothing is left behind but a note that no longer counts, which its user's next lease removes."""
    with host.picked(ALICE):
        pass

    with host.picked(BOB, GPUS[:1]) as (found, _):
        holder = host.leases.holder(GPUS[0])
        with host.picked(ALICE, GPUS[1:]):
            notes = sorted(path.stat().st_uid for path in host.folder.glob("holder-*.json"))

    assert found == [0]
    assert holder is not None
    assert holder.uid == BOB
    assert notes == [ALICE, BOB]


def test_no_other_user_can_remove_or_change_a_lock_or_note(host: Host) -> None:
    """The folder is like /tmp, and its files are their owner's."""
    attack = """
for path in os.listdir("rocmlab"):
    for harm in (os.unlink, lambda path: open(path, "a"), lambda path: os.rename(path, path + "x")):
        try:
            harm(f"rocmlab/{path}")
            print("done:", path)
        except PermissionError:
            print("refused")
"""
    with host.picked(ALICE, [*GPUS], 2):
        lines = host.run(BOB, attack).splitlines()
        still = [host.leases.holder(gpu) for gpu in GPUS]

    assert lines == ["refused"] * 9  # two locks, one note
    assert [holder and holder.uid for holder in still] == [ALICE, ALICE]


def test_no_text_of_another_user_looks_like_a_third_user(host: Host) -> None:
    """Bob's lab calls itself by Alice's name and uid, with line ends and a long name: his uid is first, on one line."""
    name = f"alice, uid {ALICE}\n\x1b[2J"
    with host.picked(BOB, GPUS[:1], ROCMLAB_USER=name, ROCMLAB_LAB="l" * 9000) as (_, bob):
        holder = host.leases.holder(GPUS[0])
        (seen, _) = host.seen_by(ALICE)

    assert holder is not None
    assert holder.who() == f"uid {BOB} (alice, uid {ALICE}??[2J)"
    assert seen is not None
    assert seen.startswith(f"uid {BOB}: /of-{BOB}.ipynb (process {bob.pid} of alice, uid {ALICE}??[2J on ")
    assert seen.isprintable()
    assert len(seen) < 500


@pytest.mark.slow
@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_lock_that_its_owner_removed_gives_no_one_a_leased_gpu(host: Host, kind: int) -> None:
    """Alice leased first, so the lock is hers and she may remove it: Bob's locked note keeps the GPU until he ends."""
    with host.picked(ALICE, GPUS[:1]):
        pass
    with host.start(BOB, NOTED, key(GPUS[0]), str(kind)) as bob:
        assert bob.stdout
        bob.stdout.readline()
        host.run(ALICE, 'os.unlink(glob.glob("rocmlab/*.lock")[0])')
        with host.picked(ALICE, GPUS[:1]) as (found, _), host.picked(THIRD) as (other, _):
            held = host.leases.held(GPUS)
        bob.kill()
    with host.picked(ALICE, GPUS[:1]) as (later, _):
        pass

    assert (found, other, later) == (None, [1], [0])
    assert (held[GPUS[0]].uid, held[GPUS[0]].notebook) == (BOB, "/bobs.ipynb")
    assert held[GPUS[1]].uid == THIRD


def test_an_old_note_of_another_user_cannot_be_made_to_count(host: Host) -> None:
    """Bob has the GPU, leaves no note, and locks Alice's old one in every way he can: Bob is named, and not Alice."""
    with host.picked(ALICE):
        pass
    forge = """
lock = os.open(glob.glob("rocmlab/*.lock")[0], os.O_RDONLY)
fcntl.flock(lock, fcntl.LOCK_EX)
note = os.open(glob.glob("rocmlab/holder-*.json")[0], os.O_RDONLY)
fcntl.flock(note, fcntl.LOCK_EX)
try:
    fcntl.fcntl(note, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
except OSError as err:
    print(err.errno, flush=True)
fcntl.fcntl(note, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 0, 0))
print("ready", flush=True)
sys.stdin.read()
"""
    with host.start(BOB, forge) as bob:
        assert bob.stdout
        said = [bob.stdout.readline().strip() for _ in range(2)]
        holder = host.leases.holder(GPUS[0])
        bob.kill()

    assert said == ["9", "ready"]
    assert holder is not None
    assert (holder.uid, holder.pid) == (BOB, bob.pid)


def test_a_false_claim_is_shown_with_the_other(host: Host) -> None:
    """Bob's note says that he has Alice's GPU: both are named, since only the lock counts and it names no one."""
    claim = """
note = holders.note(Path("rocmlab"))
holders.write(note, holders.Holder.here("/mine.ipynb"), [sys.argv[1]])
print("ready", flush=True)
sys.stdin.read()
"""
    with host.picked(ALICE, GPUS[:1]), host.start(BOB, claim, key(GPUS[0])) as bob:
        assert bob.stdout
        bob.stdout.readline()
        holder = host.leases.holder(GPUS[0])
        bob.kill()

    assert f"uid {ALICE}" in str(holder)
    assert f"uid {BOB}" in str(holder)
    assert "/mine.ipynb" not in str(holder)


NOTED = """
fcntl.flock(os.open(f"rocmlab/{sys.argv[1]}.lock", os.O_RDONLY), int(sys.argv[2]))
holders.write(holders.note(Path("rocmlab")), holders.Holder.here("/bobs.ipynb"), [sys.argv[1]])
print("ready", flush=True)
sys.stdin.read()
"""
LOCKED_NOTES = """
kept = [holders.note(Path("rocmlab")) for _ in range(int(sys.argv[1]))]
note = os.readlink(f"/proc/self/fd/{kept[0]}")
for number in range(int(sys.argv[2])):
    os.link(note, f"rocmlab/holder-{number:016x}.json")
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize(("notes", "links"), [(1, 20_000), (900, 0)])
def test_many_notes_of_one_user_neither_slow_nor_hide_the_others(
    host: Host, opened: list[Path], monkeypatch: pytest.MonkeyPatch, notes: int, links: int
) -> None:
    """Bob keeps locked notes in which nothing is written, or one under many names; Alice's is read all the same.

    A look opens no more of Bob's notes than are read of any user, each under one name, and does not pause for each.
    """
    pauses: list[float] = []
    with host.picked(ALICE, GPUS[:1]), host.start(BOB, LOCKED_NOTES, str(notes), str(links)) as bob:
        assert bob.stdout
        assert bob.stdout.readline() == "ready\n"
        opened.clear()
        monkeypatch.setattr(holders, "time", SimpleNamespace(sleep=pauses.append))
        held = host.leases.held(GPUS)
        bob.kill()

    assert {gpu: holder.uid for gpu, holder in held.items()} == {GPUS[0]: ALICE}
    tries = 1 + len(holders.REREAD_SECONDS)  # an empty note may be about to be written
    reads = [path for path in opened if path.name.startswith("holder-")]
    assert len(reads) == 1 + tries * min(notes, holders.MAX_NOTES)
    assert len(pauses) == tries


def test_a_note_is_not_hidden_by_another_name_of_it(host: Host) -> None:
    """Where the system lets other users link a file, that hides no holder, nor is it named twice."""
    with host.picked(ALICE, GPUS[:1]):
        (note,) = host.folder.glob("holder-*.json")
        os.link(note, host.folder / f"holder-{0:016x}.json")
        held = host.leases.held(GPUS)

    assert held[GPUS[0]].notebook == f"/of-{ALICE}.ipynb"


SHARER = """
fcntl.flock(os.open(f"rocmlab/{sys.argv[1]}.lock", os.O_RDONLY), fcntl.LOCK_SH)
print("ready", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def kept_shared(host: Host) -> Iterator[subprocess.Popen[str]]:
    """Have another user keep a shared lock of the first GPU, whose locks are there; that user's process."""
    with host.picked(ALICE, count=2):
        pass
    with host.start(BOB, SHARER, key(GPUS[0])) as bob:
        assert bob.stdout
        bob.stdout.readline()
        yield bob
        bob.kill()


@pytest.mark.slow
def test_a_shared_lock_that_is_kept_blocks_one_gpu_and_is_named(host: Host) -> None:
    """Nobody can lease that GPU, the others are still given, and it is shown whose process it is."""
    with kept_shared(host) as bob, host.picked(ALICE) as (found, _):
        held = host.leases.held(GPUS)
        with host.picked(ALICE) as (none, _):
            pass

    assert (found, none) == ([1], None)
    assert (held[GPUS[0]].uid, held[GPUS[0]].pid) == (BOB, bob.pid)
    assert held[GPUS[1]].uid == ALICE


CONTAINED = ("unshare", "--pid", "--fork", "--mount-proc")  # as a container, which sees its own processes alone


def can_contain() -> bool:
    """Return whether a child here can have process ids of its own."""
    return subprocess.run([*CONTAINED, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(
    not can_contain(),
    reason="no process ids of their own for a child here: run the tests as root of a machine",
)
def test_a_shared_lock_that_is_kept_outside_of_the_container_is_shown(host: Host) -> None:
    """Whose it is cannot be seen inside, so it is unknown; the GPU is not called free, and the other one is."""
    with kept_shared(host):
        seen = host.seen_by(ALICE, within=CONTAINED)

    assert seen == ["an unknown notebook (an unknown user since an unknown time)", None]
    assert host.seen_by(ALICE, within=CONTAINED) == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "closed"])
def test_what_another_user_puts_in_the_place_of_a_lock_costs_one_gpu(host: Host, kind: str) -> None:
    """It is not followed, waited for or taken for a free GPU; the other GPU is given, and the fix names the file."""
    with host.picked(ALICE, GPUS[1:]):
        pass
    lock = host.folder / f"{key(GPUS[0])}.lock"
    make = {
        "link": 'os.symlink("/etc/hostname", name)',
        "fifo": "os.mkfifo(name)",
        "folder": "os.mkdir(name)",
        "closed": "os.close(os.open(name, os.O_CREAT, 0o000))",
    }
    host.run(BOB, f"name = {str(lock)!r}\n{make[kind]}")

    with host.picked(ALICE) as (found, _), host.picked(ALICE) as (none, _):
        first, second = host.seen_by(ALICE)

    assert (found, none) == ([1], None)
    assert f"made by uid {BOB}" in first
    assert f"sudo rm -r {lock}" in first
    assert f"/of-{ALICE}.ipynb" in second


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o775])
def test_a_folder_that_is_no_good_is_an_error_with_the_command(host: Host, mode: int) -> None:
    """Closed to this user, or open so that others remove locks; no other folder is used in its place."""
    host.folder.mkdir()
    host.folder.chmod(mode)

    with host.picked(ALICE) as (found, _):
        pass

    assert isinstance(found, dict)
    assert found["fix"] == f"on the host: sudo install -d -m 1777 -o root -g root {host.folder}"
    assert list(host.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("owner", "mode", "has_file", "after"),
    [
        pytest.param(0, 0o755, False, 0o1777, id="as an engine makes what it mounts"),
        pytest.param(0, 0o755, True, 0o755, id="in use"),
        pytest.param(ALICE, 0o755, False, 0o755, id="another user's"),
        pytest.param(0, 0o750, False, 0o750, id="closed on purpose"),
    ],
)
def test_root_opens_the_folder_that_an_engine_has_made_for_root_alone(
    host: Host, owner: int, mode: int, has_file: bool, after: int
) -> None:
    """Whoever starts a native lab as root first: else no other user could lease a GPU. Any other folder stays."""
    host.folder.mkdir()
    host.folder.chmod(mode)
    os.chown(host.folder, owner, owner)
    if has_file:
        (host.folder / "a.lock").touch()

    lease_folder.ensure(host.folder)

    assert stat.S_IMODE(host.folder.stat().st_mode) == after


def test_the_command_makes_a_folder_of_anyone_roots(host: Host) -> None:
    """Run as it is printed, but for sudo: the folder is then root's and open to all, and no lock in it is lost."""
    with host.picked(ALICE, GPUS[:1]):
        subprocess.run(lease_folder.command(host.folder).removeprefix("sudo ").split(), check=True)
        found = host.folder.stat()
        held = host.leases.held(GPUS)

    assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (0, 0, 0o1777)
    assert list(held) == GPUS[:1]


REMOVED = """
from rocmlab import doctor
from rocmlab.doctor.checks import BY_ID
mounted = Path("mounted")
try:
    Leases(mounted.absolute()).pick([Device("rocm", 0, "GPU", True)], 1, Holder.here("n.ipynb"))
except RocmlabError as err:
    print(err.problem.why)
os.environ["LEASES_DIR"] = str(mounted.absolute())
situation = doctor.Situation(root=Path("/"), side="container", environment={**os.environ, "ROCMLAB_BACKEND": "rocm"})
(found,) = BY_ID["leases.folder"].run(situation)
print(found.status, found.problem.why)
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="no mounts of its own for a child here: run the tests as root of a machine",
)
def test_a_mounted_folder_that_was_removed_on_the_host_is_an_error(host: Host) -> None:
    """A running container keeps what was removed and would lease alone: kernels and the doctor report it."""
    for name in ("rocmlab", "mounted"):
        (host.lock / name).mkdir()
        (host.lock / name).chmod(0o1777)
    mount = ("unshare", "--mount", "sh", "-c", 'mount --bind rocmlab mounted && rmdir rocmlab && exec "$@"', "sh")

    lines = host.run(0, REMOVED, within=mount).splitlines()

    assert len(lines) == 2
    assert all("it was removed" in line for line in lines)


def test_where_the_folder_cannot_be_made_the_error_names_the_command(host: Host) -> None:
    """As on distributions whose /run/lock is closed to ordinary users."""
    host.lock.chmod(0o755)

    with host.picked(ALICE) as (found, _):
        pass

    assert isinstance(found, dict)
    assert "sudo install -d -m 1777 -o root -g root" in found["fix"]
    assert not host.folder.exists()
    assert "systemd-tmpfiles --create" in lease_folder.command(Path(lease_folder.USUAL))


def test_users_who_start_together_find_one_folder(host: Host) -> None:
    """Eight processes of two users make it at the same moment: each GPU is leased once."""
    with contextlib.ExitStack() as stack:
        gpus = [hosts.device(number) for number in range(8)]
        texts = json.dumps([gpu.as_dict() for gpu in gpus])
        started = [
            stack.enter_context(host.start((ALICE, BOB)[number % 2], TAKER, texts, "1", "n.ipynb"))
            for number in range(8)
        ]
        found = [json.loads(process.stdout.readline()) for process in started if process.stdout]
        for process in started:
            process.kill()

    assert sorted(found) == [[number] for number in range(8)]


def test_simulated_hosts_have_leases_of_their_own(host: Host) -> None:
    """Neither this machine's GPUs nor those of another simulated host are meant by theirs."""
    roots = [host.lock / "a", host.lock / "b"]
    environment = {"LEASES_DIR": str(host.folder)}
    places = [Leases.of_host(environment, root) for root in (Path("/"), *roots)]

    found = [place.take(GPUS[:1], Holder.here("n.ipynb")) for place in places]

    assert all(found)
    assert [place.folder for place in places] == [host.folder, *(root / "run/lock/rocmlab" for root in roots)]
    for lease in found:
        assert lease
        lease.release()


KILLS = int(os.environ.get("LEASE_KILLS", "30"))
SEED = int(os.environ.get("LEASE_SEED", "22"))


@pytest.mark.slow
def test_random_kills_of_three_users_lose_no_lease_waiter_or_place(host: Host) -> None:
    """Holders, those that inherited a lease, and waiters die at random, one user's in namespaces of their own.

    A GPU is free when all who had it are dead, none is leased twice, the dead leave the queue, and the others are
    served in the order in which they came, whatever they wait for.
    """
    gpus = [hosts.device(number) for number in range(4)]
    texts = json.dumps([gpu.as_dict() for gpu in gpus])
    with contextlib.ExitStack() as stack:
        agents = []
        for uid, within in ((ALICE, ()), (BOB, ()), (THIRD, CONTAINED if can_contain() else ())):
            command, environment = host.command(uid, AGENT, within=within, GPUS_OF_TEST=texts)
            agents.append(stack.enter_context(lease_chaos.started(command, environment)))
        chaos = Chaos(host.leases, gpus, agents, random.Random(SEED))
        chaos.run(KILLS)

    assert chaos.waited > KILLS / 10
    assert host.leases.held(gpus) == {}
    assert host.leases.waiting() == []
