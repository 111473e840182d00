"""Whatever is killed, and whenever: nothing is lost, nothing is run twice, nothing is left behind."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
from chaos import KINDS, Chaos

from rocmlab import simulation

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("CHAOS_KILLS", "12"))  # `make test-long` takes 240
KILLS_OF_ONE_RUN = 20
JOBS = 8


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_kill_9_of_anything_at_any_moment_loses_nothing_and_leaves_nothing(tmp_path: Path, kernel: str) -> None:
    """SIGKILL of runner, workers, kernels and fork servers: every job ends ok, none twice, and soon all is gone."""
    root = tmp_path / "host"
    simulation.write_host(root, gpus=2)
    seed = random.SystemRandom().randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    clean_seconds: list[float] = []
    kills = dict.fromkeys(KINDS, 0)
    number = 0
    while sum(kills.values()) < KILLS:
        number += 1
        chaos = Chaos(tmp_path / str(number), root, JOBS, seed + number, kernel)

        folder = chaos.run(min(KILLS_OF_ONE_RUN, KILLS - sum(kills.values())))

        results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        assert sorted(job["name"] for job in results["jobs"]) == sorted(chaos.names)
        assert {job["status"] for job in results["jobs"]} == {"ok"}
        done = [line.split()[0] for line in chaos.notes.read_text().splitlines() if line.endswith("done")]
        assert set(done) == set(chaos.names)
        assert sum(chaos.account.kills.values()) > 0
        clean_seconds += chaos.account.clean_seconds
        for kind, count in chaos.account.kills.items():
            kills[kind] += count
    sys.stdout.write(f"{kills}, {number} runs, all gone after {max(clean_seconds):.2f} s at most\n")
