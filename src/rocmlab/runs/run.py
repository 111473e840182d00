"""A run: jobs placed on devices, at most one per slot, with a journal and an outcome for each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

from rocmlab.base import confidential
from rocmlab.runs.folder import RunFolder
from rocmlab.runs.jobs import Job
from rocmlab.runs.outcome.results import Run as Run
from rocmlab.runs.runner import Display, Runner
from rocmlab.runs.scheduling.plan import Before, Rules
from rocmlab.runs.scheduling.scheduler import Scheduler
from rocmlab.runs.scheduling.usage import Meters
from rocmlab.runs.workers.executor import Here, Site
from rocmlab.runs.workers.forking import JobForkServers
from rocmlab.runs.workers.supervisor import Limits
from rocmlab.runs.workers.workers import Workers


def run(
    jobs: Sequence[Job],
    *,
    folder: RunFolder,
    slots: Scheduler,
    display: Display,
    limits: Limits | None = None,
    environment: Mapping[str, str] | None = None,
    earlier: Mapping[str, Any] | None = None,
    rules: Rules | None = None,
    expected_seconds: Mapping[str, float] | None = None,
    meters: Meters | None = None,
    fork_servers: JobForkServers | None = None,
    before: Before | None = None,
    options: Mapping[str, Any] | None = None,
    site: Site | None = None,
) -> Run:
    """Run jobs, each in a process of its own, and write the folder's journal, results and report.

    SIGINT, SIGTERM and SIGHUP end the run: jobs that run are stopped and saved, the others are not run. A second
    signal ends everything immediately.

    Args:
        jobs: named uniquely; those with a problem are reported and not run.
        folder: where everything goes.
        slots: the devices.
        display: what a user sees.
        limits: how long a job may take; None: no limit.
        environment: what the workers inherit, by default this process's own.
        earlier: the run to compare with, by `compare.load`; None: with none.
        rules: retries, fail-fast, fork servers; None: no retries, no fail-fast.
        expected_seconds: how long jobs may take, by name, as far as that is known; the longest go first.
        meters: what reads the devices; None: one of its own.
        fork_servers: the fork servers, some of which may have been started; None: of its own. They end with the run.
        before: what an earlier session of this run has left; None: this is the first.
        options: those of the command line that `--resume` needs, see `resume.read`.
        site: where the jobs are run, to which the slots belong; None: this machine.

    Raises:
        RocmlabError: another process works on this run.
        OSError: the folder cannot be written.
    """
    base = confidential.without(os.environ if environment is None else environment)
    rules = rules or Rules()
    workers = Workers(base, warm=rules.warm, fork_servers=fork_servers)
    meters = meters or Meters()
    site = site or Here(workers, meters, expected_seconds)
    limits, before = limits or Limits(), before or Before()
    runner = Runner(jobs, folder, slots, display, limits, workers, meters, rules, before, site)
    folder.lock()
    try:
        return asyncio.run(runner.run(earlier, expected_seconds or {}, options or {}))
    finally:
        folder.close()
