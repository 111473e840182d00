"""What a lab of the hub is before it is JupyterLab: it leases the GPUs that the hub has chosen, and then becomes it.

The locks stay with the process, so the lease ends with the lab, also where the hub has ended before. Inside, kernels
and runs lease these GPUs from the lab, in a folder of its own.

Run as `python -m rocmlab.hub.lab COMMAND…`; ROCMLAB_HUB_GPUS has the choice, see `choices.VARIABLE`.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rocmlab.base import hosts, lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover, visibility
from rocmlab.hub import choices
from rocmlab.kernels.leases import Holder, Leases, key

WHAT = "the whole lab"  # in place of a notebook, where others see who has a GPU
SHIPPED = Path("/usr/share/rocmlab/notebooks")  # in the image
HUB_PREFIX = "JUPYTERHUB_SERVICE_PREFIX"


def run(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run the lab's server in place of this process."""
    env, prefix = dict(environment), environment.get(HUB_PREFIX, hosts.ROOT)
    env.pop(hosts.BASE_URL, None)
    if hosts.PATH.fullmatch(prefix.rstrip("/")):  # what is proxied is below it
        env[hosts.BASE_URL] = prefix
    os.execvpe(command[0], list(command), env)


def with_gpus(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the lab's environment with the masks of its GPUs, which this process has leased and keeps.

    Raises:
        RocmlabError: another lab has one of them now, or this one does not see it.
    """
    chosen = environment.get(choices.VARIABLE, choices.PER_KERNEL)
    if chosen == choices.PER_KERNEL:
        return dict(environment)
    if chosen == choices.CPU:
        return visibility.apply(environment, ())
    wanted = chosen.split(",")
    seen = {key(device): device for device in discover() if device.backend in ("rocm", "cuda")}
    if missing := [name for name in wanted if name not in seen or not seen[name].is_usable]:
        reasons = [seen[name].why_not or "" for name in missing if name in seen]
        why = "; ".join(filter(None, reasons)) or "the driver does not list it here"
        raise RocmlabError(f"this lab cannot use the GPU {missing[0]}", why, "on the host: make doctor")
    devices = [device for device in seen.values() if key(device) in wanted]
    leases = Leases.of_host(environment)
    leases.check_allowed(len(devices))
    if not_more := leases.why_not_more(len(devices)):
        raise RocmlabError("this lab gets no GPU now", not_more, "start it again later, or without GPUs of its own")
    lease = leases.take(devices, Holder.here(WHAT))
    if lease is None:
        why = leases.why_not_more(len(devices)) or "a lab or run outside of this hub was faster"
        raise RocmlabError("the lab's GPUs were leased meanwhile", why, "start the lab again")
    for descriptor in lease.descriptors:
        os.set_inheritable(descriptor, True)
    own = Path(environment.get("JUPYTER_RUNTIME_DIR") or "/tmp", "leases")
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {**visibility.apply(environment, devices), lease_folder.OF_LAB: str(own)}


def add_notebooks(source: Path, notebooks: Path) -> None:
    """Copy the notebooks that come with rocmlab into a folder that has nothing yet."""
    if not source.is_dir() or any(notebooks.iterdir()):
        return
    for path in sorted(source.glob("*.ipynb")):
        shutil.copyfile(path, notebooks / path.name)


def main(arguments: Sequence[str]) -> int:
    """Become the lab of a container; return the exit code of an error."""
    try:
        add_notebooks(SHIPPED, Path(os.environ.get("ROCMLAB_NOTEBOOKS", "/home/jovyan/work")))
        run(arguments, with_gpus(os.environ))
    except RocmlabError as err:
        sys.stderr.write(f"error: {err}\n")
        return err.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
