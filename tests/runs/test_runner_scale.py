"""A run that is large, invented and smaller than a site's: what is placed, read again and shown."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import run_results

from benchmarks import cluster, scale, synthetic
from rocmlab import reports
from rocmlab.base.errors import RocmlabError
from rocmlab.devices.model import Device
from rocmlab.reports import tables
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.outcome import report, resume
from rocmlab.runs.scheduling import outlook, pool
from rocmlab.runs.scheduling.placement import Slots
from rocmlab.runs.scheduling.plan import Queue

JOBS, GPUS = 2_000, 400
CPU = Device(backend="cpu", index=0, name="a processor", is_usable=True, simulated=True)


def started(jobs: list[Job], gpus: int = GPUS) -> list[tuple[float, Job, tuple[object, ...]]]:
    """Return when each job of a synthetic run starts, and on what."""
    seconds = synthetic.durations(jobs)
    slots = Slots(synthetic.fleet(gpus), CPU)
    run = synthetic.simulate(jobs, slots, seconds, synthetic.expected(seconds))
    return [(clock, job, place.devices) for clock, job, place in run]


def test_every_job_is_placed_once_and_no_gpu_has_two() -> None:
    """Each has as many GPUs as it asks for, of one product with the VRAM it asks for; none has two jobs at a time."""
    jobs = synthetic.queue(JOBS)
    seconds = synthetic.durations(jobs)
    free_from: Counter[object] = Counter()

    found = started(jobs)

    assert sorted(job.name for _, job, _ in found) == sorted(job.name for job in jobs)
    for clock, job, devices in found:
        assert len(devices) == max(1, job.gpus)
        assert job.gpus == 0 or job.is_mixed or len({gpu.name for gpu in devices}) == 1
        assert all((gpu.vram_bytes or 0) >= (job.vram_bytes or 0) for gpu in devices if job.gpus)
        assert all(free_from[gpu] <= clock for gpu in devices)
        free_from.update(dict.fromkeys(devices, 0))
        for gpu in devices:
            free_from[gpu] = clock + seconds[job.name]


def test_nobody_starves() -> None:
    """A job for eight GPUs that waits first is placed although hundreds of small ones are ready at any time."""
    jobs = [replace(job, gpus=1, vram_bytes=None, is_mixed=False) for job in synthetic.queue(JOBS)]
    large = replace(jobs[0], name="large", gpus=8)
    seconds = {job.name: 100.0 + number % 37 for number, job in enumerate(jobs)} | {"large": 10.0}
    slots = Slots(synthetic.fleet(16), CPU)

    run = synthetic.simulate([*jobs[:20], large, *jobs[20:]], slots, seconds, {})
    order = [job.name for _, job, _ in run]

    assert order.index("large") < 60  # those that run end, and no small one takes what it waits for


def test_a_turn_looks_at_few_gpus_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the GPUs do not make one more look at a GPU for each job."""
    looks = Counter[str]()

    def counted(numbers: list[int], number: int) -> int:
        looks["all"] += 1
        return bisect_left(numbers, number)

    monkeypatch.setattr(pool, "bisect_left", counted)  # by which it is looked whether a GPU is free
    jobs = synthetic.queue(500)

    started(jobs, gpus=320)
    few, looks["all"] = looks["all"], 0
    started(jobs, gpus=3_200)

    assert 0 < looks["all"] <= few * 1.1


def test_the_heads_of_a_queue_stay_in_the_order_of_their_turn() -> None:
    """Whichever job is taken out or put first, the heads are the first of each line."""
    slots = Slots(synthetic.fleet(GPUS), CPU)
    queue = Queue(synthetic.queue(300), slots)

    while queue:
        heads = queue.heads()
        first = {slots.resources(job): job for job in reversed(list(queue))}
        assert {job.name for job in heads} == {job.name for job in first.values()}
        assert heads == [job for job in queue if job in heads]
        queue.remove(heads[len(heads) // 2])


def test_what_is_remembered_of_free_gpus_changes_no_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that looks at everything again in each turn starts the same jobs at the same time on the same GPUs."""
    jobs = synthetic.queue(JOBS)

    remembered = started(jobs)
    monkeypatch.setattr(outlook, "MAX_STATES", -1)

    assert started(jobs) == remembered


@pytest.mark.long
def test_a_large_journal_is_read_again(tmp_path: Path) -> None:
    """What had finished is kept, what had failed is run again, and how often each was tried is known."""
    jobs = synthetic.queue(JOBS)
    ended = [synthetic.result(job, number, 60.0) for number, job in enumerate(jobs)]
    folder = RunFolder(tmp_path / "runs" / "20261121T024751Z-night")
    synthetic.write_journal(folder, jobs, ended)

    session = resume.read(folder)
    found = resume.before(session, jobs)

    assert found.results == {each.name: each for each in ended if each.is_ok}
    assert list(found.attempts) == [each.name for each in ended if not each.is_ok]
    assert len(session.entries[jobs[0].name].attempts) == 1


def test_what_never_began_is_not_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the jobs that are run again only those that have left files are set aside."""
    jobs = synthetic.queue(100)
    ended = [replace(synthetic.result(job, 99, 60.0), files={}) for job in jobs]
    folder = RunFolder(tmp_path / "runs" / "20261121T024751Z-night")
    synthetic.write_journal(folder, jobs, ended)
    folder.file(jobs[7].name, "log").write_text("it was killed", encoding="utf-8")
    asked: list[str] = []
    set_aside = resume.retries.set_aside
    monkeypatch.setattr(resume.retries, "set_aside", lambda where, name: asked.append(name) or set_aside(where, name))

    session = resume.read(folder)
    found = resume.set_aside(folder, session, resume.before(session, jobs))
    folder.close()

    assert asked == [jobs[7].name]
    assert found.attempts[jobs[7].name][-1]["files"] == {"log": f"{jobs[7].name}.attempt1.log"}
    assert found.attempts[jobs[8].name][-1]["files"] == {}


@pytest.fixture
def large_page(tmp_path: Path) -> str:
    """The report of 2,000 jobs, of which 300 failed and 10 were not run."""
    jobs = [run_results.job(f"good-{number}", recorded={"loss": 1 / (number + 1)}) for number in range(JOBS - 310)]
    jobs += [run_results.job(f"bad-{number}", "failed") for number in range(300)]
    jobs += [run_results.job(f"never-{number}", "not run") for number in range(10)]
    report.write(run_results.results(*jobs), tmp_path)
    return (tmp_path / reports.HTML).read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_report_of_many_jobs_folds(large_page: str) -> None:
    """Those that did not complete are shown, the others folded, and it is said how many are omitted."""
    table = large_page[large_page.index('<section id="jobs">') :].partition("</section>")[0]
    shown, folded = table.split("<details>")

    assert shown.count(">bad-") == 300
    assert shown.count(">never-") == 10
    assert ">good-" not in shown
    assert folded.count(">good-") == tables.ROWS
    assert f"the first {tables.ROWS} notebooks that completed" in folded
    assert f"{JOBS - 310 - tables.ROWS} more notebooks in" in folded


@pytest.mark.slow
def test_the_report_tells_what_the_other_failures_are(large_page: str) -> None:
    """Two hundred are shown one by one; the rest is counted by error."""
    failed = large_page[large_page.index('<section id="failed">') :].partition("</section>")[0]

    assert failed.count("<article") == 200
    assert "110 more notebooks did not complete" in failed
    assert re.search(r"ZeroDivisionError: division by zero</bdi>&ensp;.&#8239;100<", failed)
    assert re.search(r"no such kernel: julia-9</bdi>&ensp;.&#8239;10<", failed)


def test_a_report_of_few_jobs_shows_each(tmp_path: Path) -> None:
    """Nothing is folded or omitted where the page can be read as it is."""
    jobs = [run_results.job(f"good-{number}") for number in range(tables.ROWS)]

    report.write(run_results.results(*jobs), tmp_path)

    page = (tmp_path / reports.HTML).read_text(encoding="utf-8")
    assert page.count(">good-") == tables.ROWS
    assert "<details>" not in page


def test_each_row_of_the_benchmark_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """A measure gives the rows that are named for it, at any size."""
    for name in ("plan", "journal", "metrics"):
        scale.main([name, "--jobs", "200", "--gpus", "80"])
        found = json.loads(capsys.readouterr().out)

        assert set(found) == {row for row, measure in cluster.ROWS.items() if measure == name}
        assert all(value > 0 for _, value in found.values())


def test_a_row_that_is_none_is_refused() -> None:
    """The error names the rows there are."""
    with pytest.raises(RocmlabError, match="no such row: plan_1k") as caught:
        cluster.measure(1, ["plan_1k"])

    assert "plan_100k" in caught.value.problem.fix
