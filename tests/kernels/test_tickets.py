"""Who waits for GPUs of a host, in which order, and what is kept for whom; files and locks are real."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import hosts
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.base.host_limits import HostLimits
from rocmlab.devices import Device
from rocmlab.kernels import estimates, holders, leases, tickets
from rocmlab.kernels.leases import Holder, Leases, key

GPUS = [hosts.device(number) for number in range(4)]
NAMES = [key(gpu) for gpu in GPUS]
ME = Holder.here("/notebooks/me.ipynb")
WAITER = """
import sys, time
from pathlib import Path
from rocmlab.kernels.holders import Holder
from rocmlab.kernels.tickets import Ticket
ticket = Ticket(Path(sys.argv[1]), Holder.here("/notebooks/other.ipynb"), sys.argv[3:], int(sys.argv[2]))
print("waits", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def host(tmp_path: Path) -> Leases:
    """A host with four GPUs, which are free."""
    found = Leases(tmp_path / "leases")
    found.check()
    return found


def taken(host: Leases, gpus: list[Device], count: int = 1, ticket: tickets.Ticket | None = None) -> list[int] | None:
    """Return which GPUs a claimant gets, and release them; None if it gets none."""
    lease = host.pick(gpus, count, ME, ticket)
    if lease is None:
        return None
    lease.release()
    return [gpu.index for gpu in lease.devices if gpu.index is not None]


def test_a_request_for_one_does_not_overtake_a_request_for_four(host: Leases) -> None:
    """What becomes free is kept until the four can be leased together; who comes later is served after that."""
    held = [host.take([gpu], ME) for gpu in GPUS]
    with closing(host.join(GPUS, 4, ME)) as large, closing(host.join(GPUS, 1, ME)) as small:
        got = []
        for lease in held:
            assert lease
            lease.release()
            got.append((taken(host, GPUS), taken(host, GPUS, 1, small)))
        first = host.pick(GPUS, 4, ME, large)
        assert first
        large.close()
        later = taken(host, GPUS, 1, small)
        first.release()
        last = taken(host, GPUS, 1, small)

    assert got == [(None, None)] * 4
    assert (later, last) == (None, [0])


def test_what_no_earlier_waiter_can_use_or_needs_is_given(host: Leases) -> None:
    """A GPU that is not among the options of who waits, or more than it needs, is for the next."""
    with closing(host.join(GPUS[:2], 1, ME)), closing(host.join(GPUS[:2], 1, ME)) as second:
        options = taken(host, GPUS[2:]), taken(host, GPUS[:2])
        after_the_first = taken(host, GPUS[:2], 1, second)

    assert options == ([2], None)
    assert after_the_first == [1]


def test_a_waiter_for_any_gpu_is_not_kept_the_one_that_another_needs(host: Leases) -> None:
    """The first can use two, the second one of these: a third gets neither, and both are served at the same time."""
    with closing(host.join(GPUS[:2], 1, ME)) as first, closing(host.join(GPUS[:1], 1, ME)) as second:
        kept = host.kept()
        third = taken(host, GPUS[:2])
        found = taken(host, GPUS[:1], 1, second)

    assert kept[NAMES[1]].place[1] == first.name
    assert kept[NAMES[0]].place[1] == second.name
    assert (third, found) == (None, [0])


def test_the_queue_is_in_the_order_of_arrival_whatever_a_waiter_does_later(host: Leases) -> None:
    """Changing a request, or the times of one's files, moves no one forward."""
    with closing(host.join(GPUS, 1, ME)) as first:
        time.sleep(0.02)  # the file system counts in ticks
        with closing(host.join(GPUS, 2, replace(ME, notebook="/notebooks/second.ipynb"))) as second:
            host.renew(first, GPUS[:2], 2)
            before = [waiter.place[1] for waiter in host.waiting()]
            for path in host.folder.glob(f"{second.name}*"):
                os.utime(path, (0, 2_000_000_000))
            after = host.waiting()

    assert before == [waiter.place[1] for waiter in after] == [first.name, second.name]
    assert [(waiter.locks, waiter.count) for waiter in after] == [(tuple(NAMES[:2]), 2), (tuple(NAMES), 2)]
    assert after[1].holder.notebook == "/notebooks/second.ipynb"
    assert after[1].holder.uid == os.getuid()
    assert host.waiting() == []
    assert list(host.folder.iterdir()) == []


@pytest.fixture
def other(host: Leases) -> Iterator[subprocess.Popen[str]]:
    """Another process that waits for a GPU, and does nothing else."""
    command = [sys.executable, "-c", WAITER, str(host.folder), "1", *NAMES]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "waits\n"
        yield process
        process.kill()


def test_a_waiter_that_is_killed_leaves_the_queue(host: Leases, other: subprocess.Popen[str]) -> None:
    """Its files no longer count, whatever their times; the next ticket of its user removes them."""
    before = taken(host, GPUS[:1])
    other.kill()
    other.wait()
    after = taken(host, GPUS[:1])
    left = len(list(host.folder.glob("ticket-*")))
    with closing(host.join(GPUS, 1, ME)):
        names = sorted(path.name for path in host.folder.glob("ticket-*"))

    assert (before, after) == (None, [0])
    assert left == 2
    assert len(names) == 2
    assert names[1] == f"{names[0]}.json"


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_waiter_that_does_not_look_is_skipped_and_keeps_its_place(
    host: Leases, other: subprocess.Popen[str], sign: int
) -> None:
    """A stopped process or paused container keeps no GPU from the others, also after the clock was set back."""
    os.kill(other.pid, signal.SIGSTOP)
    (request,) = host.folder.glob("ticket-*.json")
    looked = time.time() + sign * (tickets.STOPPED_SECONDS + 1)
    os.utime(request, (looked, looked))
    with closing(host.join(GPUS, 1, ME)) as mine:
        skipped = taken(host, GPUS, 1, mine)
        stopped = [waiter.is_stopped for waiter in host.waiting()]
        os.utime(request)  # it continues
        again = taken(host, GPUS[:1], 1, mine)

    assert skipped == [0]
    assert stopped == [True, False]
    assert again is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"locks": 1}', '{"locks": ["../../etc/passwd"], "count": 1}', '{"locks": [], "count": -9}']
)
def test_a_request_that_is_damaged_keeps_nothing(host: Leases, text: str) -> None:
    """No claim is stopped by it, and no file outside of the folder is looked at."""
    with closing(host.join(GPUS, 1, ME)):
        (request,) = host.folder.glob("ticket-*.json")
        request.write_text(text)
        found = taken(host, GPUS)
        locks = [waiter.locks for waiter in host.waiting()]

    assert found == [0]
    assert not any(locks)


def test_requests_for_very_many_locks_do_not_slow_others_down(host: Leases, opened: list[Path]) -> None:
    """A user keeps as many tickets as are read, each for 256 other locks: a look looks at 256 of these locks."""
    requests = [host.join([], 0, ME) for _ in range(holders.MAX_NOTES)]
    for number, ticket in enumerate(requests):
        ticket.renew([f"lock{number}-{each}" for each in range(holders.MAX_LOCKS)], holders.MAX_LOCKS)
    opened.clear()
    kept = host.kept()
    looked = Counter(path.name.partition("-")[0] for path in opened)
    for ticket in requests:
        ticket.close()

    assert len(kept) == holders.MAX_LOCKS
    assert looked.pop("ticket") == 2 * holders.MAX_NOTES  # each ticket and its request, once
    assert looked.total() == holders.MAX_LOCKS


def test_notes_of_very_many_locks_do_not_slow_others_down(host: Leases, opened: list[Path]) -> None:
    """A user keeps as many notes as are read, each for thousands of locks: each is read once, and 256 locks of it."""
    notes = [holders.note(host.folder) for _ in range(holders.MAX_NOTES)]
    for note in notes:
        holders.write(note, ME, [str(number) for number in range(6000)])
    opened.clear()
    held = holders.read(host.folder)
    for note in notes:
        os.close(note)

    assert len(held) == holders.MAX_LOCKS
    assert [len(claims) for claims in held.values()] == [holders.MAX_NOTES] * holders.MAX_LOCKS
    assert len(opened) == len(set(opened)) == holders.MAX_NOTES


def test_a_ticket_that_several_threads_close_closes_its_files_once(host: Leases) -> None:
    """A kernel is shut down at the moment at which it is served: no file that was opened since is closed or written."""
    with ThreadPoolExecutor(8) as threads:
        for _ in range(50):
            ticket = host.join(GPUS, 1, ME)
            together = threading.Barrier(8)

            def close(ticket: tickets.Ticket = ticket, together: threading.Barrier = together) -> None:
                together.wait()
                ticket.close()

            for done in [threads.submit(close) for _ in range(8)]:
                done.result()
            host.renew(ticket, GPUS, 1)  # and this writes nowhere

    assert list(host.folder.iterdir()) == []


def test_a_user_has_no_more_gpus_than_the_host_allows_and_is_in_no_ones_way(host: Leases) -> None:
    """Beyond the limit it waits, and others are served meanwhile; more than the limit at once is an error."""
    limited = Leases(host.folder, limits=lambda: HostLimits(gpus_per_user=2))
    held = limited.pick(GPUS, 2, ME)
    assert held
    with closing(limited.join(GPUS, 1, ME)) as ticket:
        limited.renew(ticket, GPUS, 1)
        beyond, reason = limited.pick(GPUS, 1, ME, ticket), limited.why_not_more(1)
        others = host.pick(GPUS, 1, ME)  # of one without a limit, as another user would be
        (waiter,) = host.waiting()
        assert others
        others.release()
        held.release()
        limited.renew(ticket, GPUS, 1)
        served = taken(limited, GPUS, 1, ticket)

    assert beyond is None
    assert reason == "this user may lease 0 more GPUs now: MAX_GPUS_PER_USER=2 in /etc/rocmlab/limits"
    assert waiter.is_at_limit
    assert served == [0]
    with pytest.raises(RocmlabError, match="3 GPUs are more than one user of this host may have"):
        limited.pick(GPUS, 3, ME)


def test_a_drained_host_gives_no_gpu_and_its_leases_stay(host: Leases, tmp_path: Path) -> None:
    """The reason and the file are named; a lab that has leased its GPUs as a whole still shares them out."""
    reason = "an administrator drains this machine: new disk (/etc/rocmlab/drained)"
    drained = Leases(host.folder, limits=lambda: HostLimits(drained="new disk"))
    held = host.pick(GPUS, 1, ME)

    assert drained.pick(GPUS, 1, ME) is None
    assert drained.why_not_more(1) == reason
    assert drained.why_not_more(0) is None
    assert len(drained.held(GPUS)) == 1
    with closing(drained.join(GPUS, 1, ME)) as ticket:
        drained.renew(ticket, GPUS, 1)
        assert not host.waiting()[0].is_at_limit
    file = tmp_path / "root/etc/rocmlab/drained"
    file.parent.mkdir(parents=True)
    file.write_text("new disk\n\x1b[31m")
    assert Leases.of_host({}, root=tmp_path / "root").left() == 0
    assert Leases.of_host({}, root=tmp_path / "root").limits().drained == "new disk  [31m"
    assert Leases.of_host({"ROCMLAB_LAB_LEASES": str(tmp_path)}, root=tmp_path / "root").left() is None
    assert held is not None
    held.release()


def test_on_a_full_disk_no_one_exceeds_the_limit(host: Leases) -> None:
    """A lease that no note shows could not be counted: on a host with a limit it is an error, and nothing is held."""
    limited = Leases(host.folder, limits=lambda: HostLimits(gpus_per_user=1))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # files can be made, and nothing be written
    try:
        with pytest.raises(RocmlabError, match="a GPU cannot be leased"):
            limited.pick(GPUS, 1, ME)
        lease = host.pick(GPUS, 1, ME)  # without a limit the lock is enough
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert lease
    lease.release()
    assert host.held(GPUS) == {}


def test_two_processes_of_a_user_do_not_exceed_the_limit_together(host: Leases) -> None:
    """Another lease appears between the count and the lock: the one that came later is released."""
    rival: list[leases.Lease] = []

    def meanwhile(descriptor: int, kind: int) -> bool:
        if not rival:
            lease = host.take(GPUS[3:], ME)
            assert lease
            rival.append(lease)
        return leases.flock(descriptor, kind)

    limited = Leases(host.folder, meanwhile, lambda: HostLimits(gpus_per_user=1))
    found = limited.take(GPUS[:1], ME)

    assert found is None
    assert host.is_free(GPUS[0])
    rival[0].release()


def holder(started: str, expected_seconds: int | None) -> Holder:
    """Return a holder of which it is known since when, and perhaps how long, it has its lease."""
    return replace(ME, started=started, expected_seconds=expected_seconds)


def waiter(locks: list[str], count: int = 1, expected_seconds: int | None = None, **states: bool) -> tickets.Waiter:
    """Return one who waits."""
    known = {"is_stopped": False, "is_at_limit": False, **states}
    found = holder("2026-01-01T00:00:00Z", expected_seconds)
    return tickets.Waiter(found, tuple(locks), count, 0.0, place=(0, ""), **known)


NOON = 1767268800.0  # 2026-01-01T12:00:00Z
HELD: Mapping[str, Holder] = {
    "a": holder("2026-01-01T11:59:00Z", 100),
    "b": holder("2026-01-01T11:59:00Z", 90),
    "c": holder("2026-01-01T11:59:00Z", None),
    "d": holder("2026-01-01T11:00:00Z", 90),  # it should have ended long ago
    "e": holder("yesterday", 90),
}


@pytest.mark.parametrize(
    ("queue", "expected"),
    [
        ([waiter(["a"]), waiter(["a"])], [40, None]),
        ([waiter(["a"], expected_seconds=60), waiter(["a"])], [40, 100]),
        ([waiter(["a", "b"], 2), waiter(["a", "b", "free"])], [40, 0]),
        ([waiter(["a", "b"], expected_seconds=5), waiter(["a", "b"])], [30, 35]),
        ([waiter(["c"]), waiter(["d"]), waiter(["e"])], [None, None, None]),
        ([waiter(["c", "a"], 2), waiter(["a"])], [None, None]),
        ([waiter(["a"], is_stopped=True), waiter(["b"], is_at_limit=True), waiter(["a", "b"])], [None, None, 30]),
        ([replace(waiter(["free"]), holder=Holder.of({"expected_seconds": 10**400}, 1)), waiter(["free"])], [0, None]),
    ],
)
def test_an_estimate_is_made_only_of_what_is_known(queue: list[tickets.Waiter], expected: list[int | None]) -> None:
    """Whoever waits for a lease of unknown length, or behind one who does, has no estimate; no one gets a guess."""
    found = estimates.starts(queue, HELD, NOON)

    assert [None if start is None else start - NOON for start in found] == expected
