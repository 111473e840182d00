"""How an epoch is cut into programs, and what an interrupt does in between; without a framework."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from rocmlab.training.resident import callbacks, pace


def ran(step_seconds, steps, clock, found=None, compile_seconds=0.0):
    """Run a pass whose steps take a fixed time; return the sizes of its programs."""
    found, sizes = found or pace.Pace(), []

    def part(_begin, size):
        clock[0] += size * step_seconds + (0 if sizes or found._passes else compile_seconds)
        sizes.append(size)

    found.run(0, steps, part, lambda: None, lambda: None, lambda _done: None)
    found.settle()
    return sizes


@pytest.fixture
def clock(monkeypatch):
    """Return the seconds that the code under test reads."""
    now = [0.0]
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now[0])
    return now


def test_a_long_epoch_runs_in_programs_of_about_a_second(clock):
    """After the first steps have been measured; the time to compile is not the time of a step."""
    sizes = ran(0.01, 5000, clock, compile_seconds=7)

    assert sizes[:2] == [1, 1]
    assert all(0.5 <= size * 0.01 <= pace.WHOLE_SECONDS for size in sizes[2:])
    assert sum(sizes) == 5000


def test_a_short_epoch_is_one_program(clock):
    """From the second epoch on nothing is cut; the first one measures two steps."""
    found = pace.Pace()

    assert ran(0.001, 468, clock, found, compile_seconds=3) == [1, 1, 466]
    assert ran(0.001, 468, clock, found) == [468]
    assert ran(0.001, 468, clock, found) == [468]


def test_slow_steps_run_alone(clock):
    """A step that takes longer than a program may is a program."""
    assert ran(4.0, 3, clock) == [1, 1, 1]


def test_a_machine_that_became_slow_is_noticed_after_an_epoch(clock):
    """An epoch that was short and no longer is runs in several programs next time."""
    found = pace.Pace()
    ran(0.001, 1000, clock, found)
    ran(0.001, 1000, clock, found)

    assert ran(0.01, 1000, clock, found) == [1000]
    assert len(ran(0.01, 1000, clock, found)) > 5


def test_steps_that_python_runs_are_counted(clock):
    """A look at the device every second; no metrics are read before the first group has been accounted for."""
    waits, reports = [], []
    counter = pace.Counter(pace.Pace(), 1000, lambda: waits.append(clock[0]), lambda *seen: reports.append(seen))

    with counter.counting():
        for group in range(25):
            for _ in range(39):
                clock[0] += 0.01
                pace.step()
            clock[0] += 0.01
            pace.reach(40 * (group + 1))
    pace.step()  # outside: of no pass

    assert reports[0] == (1, False)
    assert 5 < len(waits) < 15
    assert [has_logs for done, has_logs in reports if done > 40] == [True] * sum(done > 40 for done, _ in reports)
    assert max(done for done, _ in reports) < 1000


def test_what_a_graph_records_is_not_counted():
    """Steps that are captured run later."""
    counter = pace.Counter(pace.Pace(), 10, lambda: None, lambda *_: None)

    with counter.counting(), pace.uncounted():
        pace.step()

    assert counter._done == 0


def test_an_interrupt_waits_for_the_end_of_the_block():
    """SIGINT inside the block is a KeyboardInterrupt after it, or where the block lets it act."""
    seen = []

    def to_the_end():
        with pace.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("after the signal")

    def acting():
        with pace.deferred() as held:
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("before acting")
            held.act()
            seen.append("never")

    for run in (to_the_end, acting):
        with pytest.raises(KeyboardInterrupt):
            run()

    assert seen == ["after the signal", "before acting"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_callers_own_is_called():
    """A handler that only notes the signal is called once, after the block, and the training continues."""
    calls = []
    before = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
    try:
        with pace.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            assert calls == []
        assert calls == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_defer_nothing():
    """Only the main thread may set handlers; elsewhere a training runs as it is."""
    found = []

    def run():
        with pace.deferred() as held:
            held.act()
            found.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()

    assert found == [True]


def test_a_plain_module_shows_its_steps(capsys, monkeypatch):
    """A line shows the epoch, its steps and the losses so far; none with verbose=0 and 2."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # in a notebook each line replaces the one before
    for verbose in (0, 1, 2):
        found, _history = callbacks.of_torch("module", [], verbose, 3, 50)
        found.on_epoch_begin(1)
        callbacks.reporter(found)(20, lambda: {"loss": 0.25})

    assert capsys.readouterr().out == "Epoch 2: 20/50 steps - loss: 0.25\n"
