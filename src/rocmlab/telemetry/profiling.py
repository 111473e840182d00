"""`%%profile_gpu`: the profiler of the framework that a cell uses. See docs/cell-cost.md.

The frameworks' profilers write a trace; the table is made from it, in one way for all of them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path

from rocmlab.base.errors import Problem, RocmlabError
from rocmlab.telemetry.profile import PERFETTO, Profile, read, summarise

TYPE_CHECKING = False  # `typing` itself would cost milliseconds at each start
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FRAMEWORKS = ("torch", "jax", "tensorflow")
IMPORTS = re.compile(r"^\s*(?:import|from)\s+(torch|jax|tensorflow|keras)\b", re.MULTILINE)
ACTIVE = RocmlabError("a profiler is active already", "one at a time is possible", "end the other one first")


def choose(word: str, cell: str) -> str:
    """Return whose profiler a cell gets: as the user says, else as the cell imports, else as the kernel has imported.

    Raises:
        RocmlabError: it is none of ours, is not installed, or the kernel uses several.
    """
    found = {word} if word else {*IMPORTS.findall(cell)} or {"keras", *FRAMEWORKS} & {*sys.modules}
    if "keras" in found:
        found = {_of_keras()}
    if len(found) != 1 or not found <= {*FRAMEWORKS}:
        usage = ", ".join(f"%%profile_gpu {name}" for name in FRAMEWORKS)
        what = "several frameworks are in use" if found else "no framework is in use"
        if len(found) == 1:
            what = f"no profiler is known for {', '.join(found)}"
        raise RocmlabError(what, "the profiler is that of the cell's framework", usage)
    (name,) = found
    if name not in sys.modules and find_spec(name) is None:
        raise RocmlabError(f"{name} is not installed in this kernel", "its profiler is needed", "choose another kernel")
    return name


def _of_keras() -> str:
    if keras := sys.modules.get("keras"):
        return str(keras.config.backend())
    return os.environ.get("KERAS_BACKEND", "tensorflow")


class Profiling:
    """A context in which a framework's profiler is active."""

    def __init__(self, framework: str, start: Callable[[Path], Any] | None = None) -> None:
        self._framework = framework
        self._start = start or KINDS[framework]

    def __enter__(self) -> Profiling:
        """Import the framework where the cell would, and start.

        Raises:
            RocmlabError: another profiler is active.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="rocmlab-profile-")
        try:
            self._profiler = self._start(Path(self._folder.name))
        except BaseException:
            self._folder.cleanup()
            raise
        self._began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop, also after an error, which is not changed; show the table, or why there is none.

        A second interrupt ends only the waiting: a profiler that went on would fill the memory, and be in the way.
        """
        from IPython.display import display

        with suppress(Exception, KeyboardInterrupt):  # what failed is reported where its result is used
            self._profiler.wait()
        wall = time.perf_counter() - self._began
        path = None
        try:
            with self._folder:
                trace = self._profiler.stop()
                path = folder_of_traces() / f"{datetime.now():profile-%Y%m%dT%H%M%S.%f}-{os.getpid()}.json.gz"
                shutil.move(trace, path)
            with gzip.open(path, "rt", encoding="utf-8") as file:
                display(Profile(self._framework, wall, *summarise(read(file)), path))  # type: ignore[no-untyped-call]
        except (Exception, KeyboardInterrupt) as err:  # of the profiler, or of the disk: the cell's work is done
            what = f"no profile: {type(err).__name__}: {err}"
            fix = "profile a shorter cell"
            fix += f", or open the trace in {PERFETTO}: {path}" if path and path.exists() else ""
            sys.stderr.write(f"{Problem(what, 'the cell itself is not affected', fix)}\n")


class Torch:
    """PyTorch's own profiler, of the CPU and of its GPUs."""

    def __init__(self, folder: Path) -> None:
        import torch

        if torch.autograd._profiler_enabled():  # starting a second one would end the first
            raise ACTIVE
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it writes its progress to stderr
        self._trace = folder / "trace.json.gz"
        self._profile = torch.profiler.profile(acc_events=True)
        self._profile.start()

    def wait(self) -> None:
        """Wait for what the cell has queued."""
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def stop(self) -> Path:
        """Return the trace."""
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._trace))
        return self._trace


class Jax:
    """The profiler of JAX, which writes into a folder that it is given at its start."""

    def __init__(self, folder: Path) -> None:
        import jax

        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0  # each call of a Python function would be an event
        self._folder = folder
        try:
            jax.profiler.start_trace(folder, profiler_options=options)
        except RuntimeError:
            raise ACTIVE from None

    def wait(self) -> None:
        """Wait for what the cell has queued and whose result it has kept; JAX offers no more than that."""
        import jax

        jax.block_until_ready(jax.live_arrays())

    def stop(self) -> Path:
        """Return the trace."""
        import jax

        jax.profiler.stop_trace()
        (found,) = self._folder.rglob("*.trace.json.gz")
        return found


class TensorFlow:
    """TensorFlow's profiler, which writes XLA's format only."""

    def __init__(self, folder: Path) -> None:
        import tensorflow as tf

        options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
        self._folder = folder
        try:
            tf.profiler.experimental.start(str(folder), options)
        except tf.errors.AlreadyExistsError:
            raise ACTIVE from None

    def wait(self) -> None:
        """Wait for what the cell has queued."""
        import tensorflow as tf

        tf.test.experimental.sync_devices()

    def stop(self) -> Path:
        """Return the trace."""
        import tensorflow as tf
        from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

        tf.profiler.experimental.stop()
        (found,) = self._folder.rglob("*.xplane.pb")
        trace = self._folder / "trace.json.gz"
        with gzip.open(trace, "wt", encoding="utf-8") as file:
            file.write('{"traceEvents": [')
            for number, event in enumerate(_events(XSpace.FromString(found.read_bytes()))):
                file.write(("," if number else "") + json.dumps(event, default=str))
            file.write("]}")
        return trace


KINDS: dict[str, type[Torch | Jax | TensorFlow]] = {"torch": Torch, "jax": Jax, "tensorflow": TensorFlow}


def _events(space: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Return the events of XLA's format in that of Chrome, which Perfetto reads."""
    for process, plane in enumerate(space.planes):
        names = {number: each.name for number, each in plane.stat_metadata.items()}
        yield {"ph": "M", "name": "process_name", "pid": process, "args": {"name": plane.name}}
        for thread, line in enumerate(plane.lines):
            where = {"pid": process, "tid": thread}
            yield {"ph": "M", "name": "thread_name", **where, "args": {"name": line.display_name or line.name}}
            for event in line.events:
                values = {names[each.metadata_id]: getattr(each, each.WhichOneof("value")) for each in event.stats}
                yield {
                    "ph": "X",
                    "name": plane.event_metadata[event.metadata_id].name,
                    **where,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                    "dur": event.duration_ps / 1e6,
                    "args": values,
                }


def folder_of_traces() -> Path:
    """Return where traces go: into the folder of the run, else to the share, else next to the notebook."""
    share = Path(os.environ.get("ROCMLAB_SHARE") or os.getcwd())
    run = share / "runs" / os.environ.get("ROCMLAB_RUN", "-")
    if run.is_dir():
        return run
    folder = share / "profiles" if "ROCMLAB_SHARE" in os.environ else share
    folder.mkdir(parents=True, exist_ok=True)
    return folder
