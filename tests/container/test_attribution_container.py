"""Two labs at once in real containers of one SIMULATED host, whose driver lists real processes by the host's numbers.

No process can open such a GPU, so a lease stands for its use, and a child process opens the simulated `/dev/kfd`.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import notebook_files
import pytest
from claims import FOLDER, INSIDE, options, simulated_live
from containers import TOKEN, Container
from demos import until

from rocmlab.base import lease_folder
from rocmlab.simulation import GpuUse, Live

pytestmark = pytest.mark.container
GIB = 1 << 30
NOBODY = None  # another container's, or the host's: no notebook is named
CHILD = f"""
import subprocess, sys
program = "import time; file = open('{INSIDE}/dev/kfd'); print('opened', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), child.pid)
"""
WAITING = """
import os, time
print("pid", os.getpid(), flush=True)
open("/home/jovyan/share/job.pid", "w").write(str(os.getpid()))
while not os.path.exists("/home/jovyan/share/over"):
    time.sleep(0.1)
"""


@dataclass
class Lab:
    """A lab in a container."""

    container: Container

    def start(self, notebook: str) -> tuple[str, int]:
        """Start a notebook's kernel as JupyterLab does, and return its id, and what the host calls its process."""
        name = {"path": notebook, "name": Path(notebook).name, "type": "notebook", "kernel": {"name": "torch"}}
        status, text = self.container.request("/api/sessions", token=TOKEN, method="POST", body=name)
        assert status == 201, text
        identity: str = json.loads(text)["kernel"]["id"]
        return identity, self.host_pid(int(self.run(identity, "import os; print(os.getpid())")))

    def run(self, kernel: str, code: str) -> str:
        """Run code in a kernel."""
        return self.container.server.execute_in(kernel, code)

    def host_pid(self, local: int) -> int:
        """Return what the host calls a process of the container."""
        inside = self.container.inspect("{{.State.Pid}}")
        space = Path(f"/proc/{inside}/ns/pid").readlink()
        for path in Path("/proc").glob("[0-9]*"):
            try:
                numbers = re.findall(r"^NSpid:\t(.*)$", (path / "status").read_text(), re.MULTILINE)[0].split()
                if numbers[-1] == str(local) and (path / "ns/pid").readlink() == space:
                    return int(path.name)
            except OSError:
                continue
        raise AssertionError(f"the container has no process {local}")

    # -- What it shows of GPU processes: the notebook of each, by process id of the host

    def in_the_panel(self) -> dict[int, str | None]:
        """In the next sample of its stream."""
        return _named(self.container.server.gpu_processes())

    def in_smi(self) -> dict[int, str | None]:
        """In `rocmlab smi`."""
        return _named(json.loads(self.container.as_lab_user("rocmlab", "smi", "--json"))["processes"])

    def in_metrics(self) -> dict[int, str | None]:
        """In `/metrics`."""
        _, text = self.container.request("/rocmlab/metrics", token=TOKEN)
        lines = re.findall(r"^rocmlab_gpu_process_vram_bytes\{(.*)\}", text, re.MULTILINE)
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in lines]
        return {int(each["pid"]): Path(each["notebook"]).name or None for each in labels}


def _named(processes: list[dict[str, Any]]) -> dict[int, str | None]:
    owners = {each["pid"]: each["owner"] or {} for each in processes}
    assert all(owner["is_estimated"] for owner in owners.values() if owner.get("notebook"))
    return {pid: Path(owner["notebook"]).name if owner.get("notebook") else None for pid, owner in owners.items()}


def settled(look: Callable[[], object], expected: object, seconds: float = 60) -> object:
    """Return what is seen once it is as expected, or at the end of the time."""
    end = time.monotonic() + seconds
    while (found := look()) != expected and time.monotonic() < end:
        time.sleep(0.2)
    return found


@dataclass
class Scene:
    """What runs on the host."""

    live: Live
    ann: Lab
    bob: Lab
    pids: dict[str, int]  # of the host

    def show(self, seconds: float, *uses: tuple[str, int, int]) -> None:
        """Have the driver list these: who, on which GPU, with how many GiB."""
        self.live.processes = [GpuUse(self.pids[who], gpu, gib * GIB) for who, gpu, gib in uses]
        self.live.step(seconds)

    def named(self, names: dict[int, str | None]) -> dict[str, str | None]:
        """Return the same by who it is."""
        return {who: names[pid] for who, pid in self.pids.items() if pid in names}


@pytest.fixture(scope="module")
def scene(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Ann's lab: a cold kernel, a forked one with a child, and a run's job. Bob's: a kernel. And a program outside."""
    job = notebook_files.write(tmp_path_factory.mktemp("notebooks") / "job.ipynb", WAITING, kernel="torch")
    with simulated_live(5) as live, ExitStack() as stack:
        lease_folder.ensure(live.folder / FOLDER)
        ann, bob = (
            Lab(stack.enter_context(Container(image, *options(live.folder, uid, user), warm=warm)))
            for uid, user, warm in ((1000, "ann", "on"), (1001, "bob", "off"))
        )
        for lab in (ann, bob):
            lab.container.wait_for_server()
        pids = {"cold": ann.start("work/cold.ipynb")[1]}
        forked, pids["forked"] = start_forked(ann, "work/forked.ipynb")
        pids["child"] = ann.host_pid(int(ann.run(forked, CHILD).split()[-1]))
        pids["other"] = bob.start("work/other.ipynb")[1]
        ann.container.as_lab_user("tee", "/home/jovyan/work/job.ipynb", text=job.read_text())
        command = ["start.sh", "rocmlab", "run", "/home/jovyan/work/job.ipynb", "--warm", "off", "--gpus", "all"]
        run = subprocess.Popen(["docker", "exec", ann.container.id, *command], stderr=subprocess.DEVNULL)
        stack.callback(run.wait, 60)
        stack.callback(ann.container.exec, "touch", "/home/jovyan/share/over")
        told = "cat /home/jovyan/share/job.pid 2>/dev/null || true"
        until(lambda: ann.container.exec("bash", "-c", told).strip())
        pids["job"] = ann.host_pid(int(ann.container.exec("bash", "-c", told)))
        stranger = stack.enter_context(subprocess.Popen(["sleep", "600"]))
        stack.callback(stranger.kill)
        pids["stranger"] = stranger.pid
        yield Scene(live, ann, bob, pids)


def start_forked(lab: Lab, notebook: str) -> tuple[str, int]:
    """Start a kernel as soon as its fork server, which the one before has started, is ready."""
    while True:
        identity, pid = lab.start(notebook)
        if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return identity, pid
        lab.container.request(f"/api/kernels/{identity}", token=TOKEN, method="DELETE")
        time.sleep(1)


@pytest.mark.parametrize("shown", [Lab.in_the_panel, Lab.in_smi, Lab.in_metrics])
def test_each_lab_names_its_own_processes_and_no_other(scene: Scene, shown: Callable[[Lab], dict[int, Any]]) -> None:
    """In one a cold kernel, a forked one, its child and a job, in the other a kernel; a program outside in neither."""
    uses = (("cold", 0), ("forked", 1), ("child", 1), ("other", 2), ("job", 3), ("stranger", 4))
    scene.show(1.0, *((who, gpu, 5) for who, gpu in uses))
    own = {"cold": "cold.ipynb", "forked": "forked.ipynb", "child": "forked.ipynb", "job": "job.ipynb"}
    others = dict.fromkeys(scene.pids, NOBODY)

    assert settled(lambda: scene.named(shown(scene.ann)), {**others, **own}) == {**others, **own}
    assert settled(lambda: scene.named(shown(scene.bob)), mine := {**others, "other": "other.ipynb"}) == mine


def test_a_program_of_the_host_on_a_leased_gpu_has_no_notebooks_name(scene: Scene) -> None:
    """The panel knew the kernel before. Who looks now finds two on the GPU, one of them ours, and names neither."""
    scene.show(2.0, ("cold", 0, 5), ("stranger", 0, 5))
    known = {"cold": "cold.ipynb", "stranger": NOBODY}

    assert settled(lambda: scene.named(scene.ann.in_the_panel()), known) == known
    assert scene.named(scene.ann.in_smi()) == {"cold": NOBODY, "stranger": NOBODY}
