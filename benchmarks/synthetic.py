"""A run of 100,000 jobs on 1,000 nodes of eight GPUs, synthetic: its GPUs, jobs, times and results."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from rocmlab.base import files
from rocmlab.cluster.executor.nodes import RemoteNode
from rocmlab.cluster.executor.places import ClusterPlaces, RemotePlace
from rocmlab.devices import Device
from rocmlab.runs.folder import KINDS, RunFolder, now
from rocmlab.runs.jobs import Job, Request, Result
from rocmlab.runs.outcome import resume, retries
from rocmlab.runs.scheduling.place import Place
from rocmlab.runs.scheduling.plan import Queue, longest_first
from rocmlab.runs.scheduling.scheduler import Scheduler

GPUS = 8_000
JOBS = 100_000
NODE = 8  # GPUs of a node; all of one product
GIB = 2**30
PRODUCTS = (  # name, gfx, VRAM in GiB, of 20 nodes
    ("AMD Instinct MI300X", "gfx942", 192, 10),
    ("AMD Instinct MI210", "gfx90a", 64, 5),
    ("Radeon PRO W7900", "gfx1100", 48, 2),
    ("Radeon RX 7900 XTX", "gfx1100", 24, 3),
)
COUNTS = {1: 70, 2: 20, 8: 10}  # GPUs of a job: of 100 jobs
VRAM_GB = {None: 50, 16: 25, 40: 15, 100: 10}  # of each of its GPUs
MIXED_PERCENT = 3
CPU_OF = 500  # one job in so many is for the CPU, of which there is one place
KNOWN_PERCENT = 90  # of the jobs ran before, so that their time is known
NOTEBOOKS = 20


def fleet(count: int = GPUS) -> list[Device]:
    """Return simulated GPUs of nodes with eight each, of four products."""
    nodes = [product for product in PRODUCTS for _ in range(product[3])]
    random.Random(0).shuffle(nodes)
    found = []
    for number in range(count):
        name, gfx, gib, _ = nodes[number // NODE % len(nodes)]
        found.append(
            Device(
                backend="rocm",
                index=number % NODE,
                name=name,
                is_usable=True,
                gfx=gfx,
                pci_address=f"{number // NODE:04x}:{number % NODE + 1:02x}:00.0",
                unique_id=f"{number:016x}",
                vram_bytes=gib * GIB,
                simulated=True,
            )
        )
    return found


def cluster(count: int = GPUS) -> ClusterPlaces:
    """Return the places of a cluster that has the fleet's GPUs."""
    gpus = fleet(count)
    nodes = [gpus[at : at + NODE] for at in range(0, count, NODE)]
    return ClusterPlaces(
        [RemoteNode(f"{number:056x}", f"node-{number}", tuple(each)) for number, each in enumerate(nodes)]
    )


def queue(count: int = JOBS) -> list[Job]:
    """Return jobs of twenty notebooks that ask for one, two or eight GPUs, some of them for much VRAM."""
    chance = random.Random(1)
    counts = chance.choices(list(COUNTS), list(COUNTS.values()), k=count)
    sizes = chance.choices(list(VRAM_GB), list(VRAM_GB.values()), k=count)
    found = []
    for number in range(count):
        parameters = {"seed": number, "lr": chance.choice((0.1, 0.01, 0.001)), "device": "auto"}
        notebook = f"/home/jovyan/work/train_{number % NOTEBOOKS:02}.ipynb"
        is_cpu = number % CPU_OF == CPU_OF - 1
        gigabytes = None if is_cpu else sizes[number]
        request = Request(notebook, notebook, parameters, gpus=0 if is_cpu else counts[number])
        found.append(
            Job(
                name=f"train_{number % NOTEBOOKS:02}-lr={parameters['lr']}-seed={number}",
                notebook=notebook,
                parameters=parameters,
                kernel="torch",
                gpus=request.gpus,
                vram_bytes=None if gigabytes is None else gigabytes * 10**9,
                is_mixed=not is_cpu and chance.randrange(100) < MIXED_PERCENT,
                key=":".join(f"{chance.getrandbits(64):016x}" for _ in range(6)),
                request=request,
            )
        )
    return found


def durations(jobs: Sequence[Job]) -> dict[str, float]:
    """Return how many seconds each job takes, by its name: a minute in the middle, and some take hours."""
    chance = random.Random(2)
    return {job.name: round(min(36_000.0, chance.lognormvariate(4.1, 1.2)), 3) for job in jobs}


def expected(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return what earlier runs tell of these times: not of all, and never exactly."""
    chance = random.Random(3)
    return {
        name: each * chance.uniform(0.8, 1.25)
        for name, each in seconds.items()
        if chance.randrange(100) < KNOWN_PERCENT
    }


def simulate(
    jobs: Sequence[Job], slots: Scheduler, seconds: Mapping[str, float], known: Mapping[str, float]
) -> Iterator[tuple[float, Job, Place]]:
    """Yield when each job starts and where, as a run would start them if each took its time.

    On a cluster Ray is replaced by a queue: the job that it has had longest begins when enough GPUs are free.

    Args:
        jobs: to be run.
        slots: of the run.
        seconds: that each takes, by name.
        known: what is expected of that.
    """
    possible = [job for job in jobs if not (job.problem or slots.problem(job))]
    waiting = Queue(longest_first(possible, known), slots)
    placed: deque[tuple[Job, Place]] = deque()
    running: list[tuple[float, int, Place]] = []
    clock, number, free = 0.0, 0, len(slots.gpus)
    while waiting or placed or running:
        while taken := waiting.take():
            placed.append(taken)
        while placed and placed[0][1].count <= free:
            job, place = placed.popleft()
            if isinstance(slots, ClusterPlaces) and isinstance(place, RemotePlace):
                slots.begun(place)
            elif place.gpus:
                place.settle(place.gpus)
            number += 1
            free -= place.count
            heapq.heappush(running, (clock + seconds[job.name], number, place))
            yield clock, job, place
        clock, _, place = heapq.heappop(running)
        free += place.count
        slots.release(place)


def result(job: Job, number: int, seconds: float) -> Result:
    """Return how a job may have ended: one in a hundred fails."""
    is_bad = number % 100 == 99
    gpu = {"backend": "rocm", "index": number % NODE, "name": PRODUCTS[0][0], "gfx": "gfx942"}
    used = {"peak_vram_bytes": 20 * GIB + number, "mean_busy_percent": 87.5, "energy_joules": seconds * 550}
    error = {"name": "ValueError", "value": f"loss is nan in step {number % 7}", "cell": 6, "cell_index": 11}
    return Result(
        name=job.name,
        notebook=job.notebook,
        parameters=job.parameters,
        kernel=job.kernel,
        status="failed" if is_bad else "ok",
        exit_code=1 if is_bad else 0,
        started="2026-11-21T02:47:51.123Z",
        seconds=seconds,
        cells_done=6 if is_bad else 9,
        cells_total=9,
        devices=[{**gpu, "pci_address": f"0000:{number % NODE + 1:02x}:00.0", **used}],
        recorded={} if is_bad else {"accuracy": 0.9 + number % 1000 / 1e4, "loss": 1 / (number + 1), "epochs": 3},
        error={**error, "source": "if not np.isfinite(loss):\n    raise ValueError(loss)"} if is_bad else None,
        files={kind: f"{job.name}{end}" for kind, end in KINDS.items()},
        simulated=True,
    )


def write_journal(folder: RunFolder, jobs: Sequence[Job], results: Sequence[Result]) -> None:
    """Write what the journal of such a run says, without waiting for the disk; one job in a hundred is in it twice.

    Jobs that ended well have a notebook, without which they would be run again.
    """
    folder.path.mkdir(parents=True)
    with folder.journal_path.open("w", encoding="utf-8") as journal:

        def log(event: str, **facts: object) -> None:
            journal.write(files.to_json({"event": event, "time": now(), **facts}, indent=None) + "\n")

        described = [resume.described(job) for job in jobs]
        log("run started", run=folder.path.name, pid=1, host="a", slots=GPUS, jobs=described, options={})
        for number, (job, ended) in enumerate(zip(jobs, results, strict=True)):
            log("job started", job=job.name, devices=ended.devices)
            if number % 100 == 0:
                log("job retried", job=job.name, attempt=retries.attempt({"status": "killed"}, {}))
                log("job started", job=job.name, devices=ended.devices)
            log("job finished", job=job.name, key=job.key, result=ended.as_dict())
            if ended.is_ok:
                folder.file(job.name, "notebook").write_text("{}\n", encoding="utf-8")
