"""Run a training on a team of workers, restart from its last checkpoint when one is lost, and return its result."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocmlab.base.errors import RocmlabError
from rocmlab.training.cluster.team import Team

Loop = Callable[[dict[str, Any]], dict[str, Any]]
TIMEOUT_SECONDS = 300  # of a sum over all workers
LAST_LINES = 15


@dataclass(frozen=True)
class Outcome:
    """What a training gave."""

    value: dict[str, Any]  # what the function returned on rank 0
    folder: Path  # in the share, with the checkpoints that are kept


def fit(
    loop: Loop,
    options: Mapping[str, Any],
    team: Team,
    folder: Path,
    *,
    fewest: int = 1,
    max_failures: int = 3,
    collectives: str | None = None,
) -> Outcome:
    """Train with Ray Train: `loop(options)` in every worker, over all nodes.

    If a worker or its node dies, the others are ended and the training begins again from the last checkpoint, with
    as many workers as fit then. It waits while other work has the GPUs.

    Args:
        loop: the training for one worker, written with `rocmlab.training.cluster.worker`; what it returns on rank 0
            is the result, and must be plain Python.
        options: its argument.
        team: how many workers, on what.
        folder: for the checkpoints, on a file system that every node has at this path. A training that has checkpoints
            there continues from the last.
        fewest: workers with which it still begins again; `team.workers`: it waits until all are there.
        max_failures: how often.
        collectives: how the workers add up; None: `nccl` (RCCL on AMD) on GPUs, `gloo` on the CPU.

    Raises:
        RocmlabError: the training failed more often than that, with the last lines of the worker that failed.
    """
    from ray import train
    from ray.train.torch import TorchTrainer

    from rocmlab.training.cluster.pinned import PinnedTorch

    trainer = TorchTrainer(
        loop,
        train_loop_config=dict(options),
        torch_config=PinnedTorch(backend=collectives, timeout_s=TIMEOUT_SECONDS),
        scaling_config=train.ScalingConfig(
            num_workers=team.workers if fewest >= team.workers else (max(1, fewest), team.workers),
            use_gpu=team.is_gpu,
            resources_per_worker=team.resources(),
            placement_strategy="PACK" if team.is_gpu else "SPREAD",
        ),
        run_config=train.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=train.FailureConfig(max_failures=max_failures),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
            logging_config=train.LoggingConfig(log_level="ERROR"),
        ),
    )
    try:
        with _same_interrupt():
            result = trainer.fit()
    except train.TrainingFailedError as err:
        raise _failure(err, max_failures) from err
    return Outcome(dict(result.return_value or {}), folder)


@contextlib.contextmanager
def _same_interrupt() -> Iterator[None]:
    """Put back what Ctrl-C does: Ray Train sets it for its run and leaves it so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _failure(error: Exception, max_failures: int) -> RocmlabError:
    """Return which worker failed and how; a failure of the controller is caused by Ray itself or by the storage."""
    failures: Mapping[int, Exception] = getattr(error, "worker_failures", {})
    if not failures:
        return RocmlabError(
            "Ray Train could not run the training",
            _last_lines(error),
            "check that every node has the share at the same path, the same Ray and the same lab: make cluster-status",
            exit_code=1,
        )
    rank = min(failures)
    return RocmlabError(
        f"worker {rank} of the training failed, {max_failures + 1} time(s) in all",
        _last_lines(failures[rank]),
        "fix the training where these lines point; if a node was lost: make cluster-status, then train again",
        exit_code=1,
    )


def _last_lines(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return "\n".join(lines[-LAST_LINES:]) or repr(error)
