"""Kernels own their GPUs: as Jupyter starts, restarts, loses and ends them. Real kernels on a simulated host."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import nbformat
import pytest
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager
from kernel_hosts import MASKS, WAIT_SECONDS, Host, Talk, started, until

from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import ownership
from rocmlab.kernels.leases import Holder
from rocmlab.lab import provisioner

pytestmark = pytest.mark.slow

# What a kernel does before its first cell could: it writes down who had which GPU at that moment.
WITNESS = """
import json, os
from pathlib import Path
from rocmlab.devices import discover
from rocmlab.kernels.leases import Leases
leases = Leases.of_host()
taken = [not leases.is_free(gpu) for gpu in discover(Path(os.environ["ROCMLAB_ROOT"])) if gpu.backend == "rocm"]
Path(os.environ["ROCMLAB_SHARE"], "witness.json").write_text(json.dumps([taken, os.environ["HIP_VISIBLE_DEVICES"]]))
"""
SPRINT = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


def test_the_lease_is_there_before_the_kernels_first_line(host: Host, tmp_path: Path) -> None:
    """A start-up file of IPython, which runs before any cell, finds GPU 0 leased and the mask set."""
    host.offer()
    host.share.mkdir()
    startup = tmp_path / "ipython/profile_default/startup"
    startup.mkdir(parents=True)
    (startup / "witness.py").write_text(WITNESS)

    async def scenario() -> None:
        async with started("torch", "/nb/a.ipynb"):
            pass

    asyncio.run(scenario())

    assert json.loads((host.share / "witness.json").read_text()) == [[True, False], "0"]


def test_the_second_gets_the_other_gpu_and_the_third_hears_who_has_them(host: Host) -> None:
    """A refused kernel answers at once, names both notebooks, and becomes the real one when it is restarted."""
    host.offer()

    async def scenario() -> None:
        async with started("torch", "/nb/a.ipynb") as first, started("tensorflow", "/nb/b.ipynb") as second:
            assert await first.run(MASKS) == "0 0 None"
            assert await second.run(MASKS) == "1 1 None"
            async with started("torch", "/nb/c.ipynb") as third:
                refused = await third.run("print('a' + 'n answer')")
                assert re.search(r"GPU 0: .*\n  leased to /nb/a\.ipynb \(process \d+ of", refused)
                assert re.search(r"GPU 1: .*\n  leased to /nb/b\.ipynb \(process \d+ of", refused)
                assert "Change Kernel… > PyTorch (CPU)" in refused
                assert "an answer" not in refused
                await second.manager.shutdown_kernel()
                await third.manager.restart_kernel()
                await third.ready()
                assert await third.run("print('a' + 'n answer')") == "an answer"
                assert host.holders() == ["/nb/a.ipynb", "/nb/c.ipynb"]

    asyncio.run(scenario())

    assert host.holders() == [None, None]


def test_the_banner_says_what_the_kernel_has(host: Host) -> None:
    """Product, address and lease, and that nothing of it is real here."""
    host.offer()

    async def scenario() -> None:
        async with started("torch-gpu1") as talk:
            banner = (await talk.client.kernel_info(reply=True))["content"]["banner"]
            assert "GPU 1: AMD Radeon RX 7900 XTX (0000:06:00.0), leased to this kernel" in banner
            assert "SIMULATED" in banner

    asyncio.run(scenario())


@pytest.mark.skipif(not Path("/proc/self/oom_score_adj").exists(), reason="no oom_score_adj: this is not Linux")
def test_where_memory_runs_out_the_kernel_goes_before_the_server(host: Host) -> None:
    """The system is told so of the kernel, and of no one else."""
    host.offer()
    own = int(Path("/proc/self/oom_score_adj").read_text())

    async def scenario() -> None:
        async with started("torch") as talk:
            adjusted = await talk.run("print(open('/proc/self/oom_score_adj').read())")
            assert int(adjusted) == max(own, 300)

    asyncio.run(scenario())

    assert int(Path("/proc/self/oom_score_adj").read_text()) == own


def test_all_gpus_are_had_together_or_not_at_all(host: Host) -> None:
    """One taken GPU is enough for a refusal; the refused kernel holds nothing, and waits until it is shut down."""
    host.offer()

    async def scenario() -> None:
        async with started("torch-all", "/nb/all.ipynb") as talk:
            assert await talk.run(MASKS) == "0,1 0,1 None"
            assert host.holders() == ["/nb/all.ipynb"] * 2
        async with started("torch-gpu0", "/nb/a.ipynb"), started("torch-all") as refused:
            assert "2 GPUs are not free together: 1 of 2 are" in await refused.run("1")
            assert host.holders() == ["/nb/a.ipynb", None]
            assert [waiter.count for waiter in host.leases.waiting()] == [2]
            await refused.manager.shutdown_kernel()
            assert host.leases.waiting() == []

    asyncio.run(scenario())


def test_a_kernel_for_the_cpu_sees_no_gpu_and_holds_none(host: Host) -> None:
    """It starts, no matter who has the GPUs."""
    host.offer()

    async def scenario() -> None:
        async with started("torch-all"), started("torch-cpu") as talk:
            assert await talk.run(MASKS) == "-1 -1 None"
            assert "CPU" in (await talk.client.kernel_info(reply=True))["content"]["banner"]

    asyncio.run(scenario())


def test_a_lab_without_gpus_runs_the_plain_kernel_on_the_cpu(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to lease, and nothing to refuse."""
    host.offer()
    monkeypatch.setenv("ROCMLAB_ROOT", "/")
    monkeypatch.setenv("ROCMLAB_BACKEND", "cpu")

    async def scenario() -> None:
        async with started("torch") as talk:
            assert await talk.run(MASKS) == "-1 -1 None"

    asyncio.run(scenario())

    assert not host.leases.folder.exists()


def test_a_gpu_lab_whose_gpus_are_gone_refuses(host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Computing on the CPU silently would be a lie."""
    host.offer()
    monkeypatch.setenv("ROCMLAB_BACKEND", "rocm")
    empty = tmp_path / "empty"
    (empty / "sys").mkdir(parents=True)
    monkeypatch.setenv("ROCMLAB_ROOT", str(empty))

    async def scenario() -> None:
        async with started("torch") as talk:
            assert "this lab is for the backend rocm, and no GPU can be used here" in await talk.run("1")

    asyncio.run(scenario())


def test_a_runners_lease_is_honoured(host: Host) -> None:
    """The runner has leased GPU 1 and set the mask: nothing is taken next to it, and nothing changed."""
    host.offer()

    async def scenario() -> None:
        mine = {"ROCMLAB_LEASED": "1", "HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
        async with started("torch", **mine) as talk:
            assert await talk.run(MASKS) == "1 1 None"
            assert host.holders() == [None, None]

    asyncio.run(scenario())


def test_what_the_kernel_starts_in_the_background_does_not_keep_the_gpu(host: Host) -> None:
    """A server started from a cell outlives the kernel; the lease does not."""
    host.offer()
    code = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"

    async def scenario() -> int:
        async with started("torch") as talk:
            return int(await talk.run(code))

    pid = asyncio.run(scenario())
    try:
        assert host.holders() == [None, None]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_name_is_text_and_nothing_else(host: Host) -> None:
    """A notebook's name reaches the other's refusal, without the letters that a terminal obeys, and nowhere else."""
    host.offer()
    name = "/notebooks/$(touch hacked)'; \"{x}\x1b[2J<script>alert(1)</script>.ipynb"

    async def scenario() -> None:
        async with started("torch-all", name) as talk:
            assert "script" not in (await talk.client.kernel_info(reply=True))["content"]["banner"]
            reached = await talk.run("import sys; print(sys.argv, sys.orig_argv)")
            assert "hacked" not in reached
            async with started("torch") as refused:
                text = await refused.run("1")
                assert "<script>alert(1)</script>.ipynb" in text
                assert "\x1b" not in text

    asyncio.run(scenario())

    assert not list(Path.cwd().glob("hacked"))


def test_a_foreign_process_is_warned_of_and_its_gpu_taken_last(host: Host) -> None:
    """KFD lists a process with 8 GiB on GPU 0, without a lease: the first kernel gets GPU 1, the second a warning."""
    host.offer()
    first = host.devices[0]
    process = Path(os.environ["ROCMLAB_ROOT"], "sys/class/kfd/kfd/proc/4242")
    process.mkdir(parents=True)
    (process / f"vram_{first.kfd_id}").write_text(f"{8 * 2**30}\n")

    async def scenario() -> None:
        async with started("torch") as talk, started("torch") as second:
            assert await talk.run(MASKS) == "1 1 None"
            banner = (await second.client.kernel_info(reply=True))["content"]["banner"]
            assert "warning: GPU 0" in banner
            assert "process 4242" in banner

    asyncio.run(scenario())


def test_a_host_without_locks_is_said_and_gives_no_gpu(host: Host) -> None:
    """Where no lease can be taken the kernel shows why and the fix: another lab may have the GPU."""
    host.offer()
    host.leases.folder.parent.mkdir(parents=True)
    host.leases.folder.write_text("in the way")

    async def scenario() -> None:
        async with started("torch") as talk:
            answer = await talk.run("1")
            assert "cannot be used" in answer
            assert f"sudo rm {host.leases.folder}" in answer

    asyncio.run(scenario())


def test_nbclient_gets_a_clear_error_and_does_not_hang(host: Host) -> None:
    """A program that runs notebooks hears why the first cell failed."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    host.offer()
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(1)")])

    lease = host.leases.take(host.devices, Holder.here("/nb/long.ipynb"))
    assert lease
    try:
        with pytest.raises(CellExecutionError, match=r"NoFreeGPU.*[\s\S]*/nb/long\.ipynb"):
            NotebookClient(notebook, kernel_name="torch", timeout=WAIT_SECONDS).execute()
    finally:
        lease.release()

    assert notebook.cells[0].outputs[0].ename == "NoFreeGPU"


@pytest.mark.parametrize("wanted", [-1, True, None, ["0"], 3, "0000:99:00.0", "--help"])
def test_a_kernelspec_that_asks_for_nonsense_is_refused(host: Host, wanted: object) -> None:
    """Too many, a GPU that is missing, and what is not a number at all."""
    with pytest.raises(RocmlabError) as refused:
        ownership.claim(wanted, None, dict(os.environ), "PyTorch")  # type: ignore[arg-type]

    assert refused.value.problem.fix
    assert host.holders() == [None, None]


def test_a_share_that_does_not_answer_in_time_is_a_refusal(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel does not hang, and a lease that comes too late is given back."""
    host.offer()
    release = threading.Event()
    claim = ownership.claim

    def slow(*arguments: object, waits: bool) -> ownership.Owned:
        release.wait(WAIT_SECONDS)
        return claim(*arguments, waits=waits)  # type: ignore[arg-type]

    monkeypatch.setattr(ownership, "claim", slow)
    monkeypatch.setattr(provisioner, "ANSWER_SECONDS", 0.2)

    async def scenario() -> None:
        async with started("torch-all") as talk:
            assert "could not be read within 0.2 seconds" in await talk.run("1")
            release.set()
            await until(lambda: host.leases.folder.exists() and host.can_be_taken())

    asyncio.run(scenario())

    assert host.holders() == [None, None]


def test_a_refused_kernel_waits_and_is_restarted_with_its_gpu_when_its_turn_comes(host: Host) -> None:
    """Two wait: the first for both GPUs, and the second for one, after it. The server restarts them, and no user."""
    host.offer()

    def queue() -> list[str | None]:
        return [waiter.holder.notebook for waiter in host.leases.waiting()]

    def served() -> list[str | None]:
        """Return who has GPUs with a process of its own: from then on it is no longer the one that refuses."""
        return [held.notebook for held in host.leases.held(host.devices).values() if held.pid != os.getpid()]

    async def scenario() -> None:
        async with (
            started("torch-gpu0") as first,
            started("torch-gpu1") as second,
            started("torch-all", "/nb/both.ipynb") as both,
            started("torch", "/nb/one.ipynb") as one,
        ):
            assert "this kernel was then number 2 in the queue of this host" in await one.run("1")
            assert queue() == ["/nb/both.ipynb", "/nb/one.ipynb"]
            await first.manager.shutdown_kernel()
            await one.manager.restart_kernel()  # it keeps its place, and retries
            await one.ready()
            assert re.search(r"kept for /nb/both\.ipynb .*, who waits longer", await one.run("1"))
            await second.manager.shutdown_kernel()
            await until(lambda: served() == ["/nb/both.ipynb"] * 2, pause=0.5)
            await both.ready()
            assert await both.run(MASKS) == "0,1 0,1 None"
            assert queue() == ["/nb/one.ipynb"]
            await both.manager.shutdown_kernel()
            await until(lambda: served() == ["/nb/one.ipynb"], pause=0.5)
            await one.ready()
            assert await one.run(MASKS) == "0 0 None"
            assert queue() == []

    asyncio.run(scenario())

    assert host.holders() == [None, None]


def test_a_shut_down_during_the_automatic_restart_leaves_no_kernel_and_no_lease(host: Host) -> None:
    """The kernel has just been given its GPU, and is being restarted with it, when its user shuts it down."""
    host.offer()

    async def scenario() -> None:
        kernels = AsyncMappingKernelManager(connection_dir=os.environ["JUPYTER_RUNTIME_DIR"])
        held = host.leases.take(host.devices, Holder.here("/nb/a.ipynb"))
        assert held
        kernel_id = await kernels.start_kernel(kernel_name="torch")
        talk = Talk(kernels.get_kernel(kernel_id))
        await talk.ready()
        talk.close()
        held.release()
        await until(lambda: talk.manager.shutting_down)
        await kernels.shutdown_kernel(kernel_id)
        assert kernels.list_kernel_ids() == []
        kernels.context.destroy()

    asyncio.run(scenario())

    assert host.holders() == [None, None]
    assert host.leases.waiting() == []


class Competitor(threading.Thread):
    """Tries to take any GPU, a thousand times a second."""

    def __init__(self, host: Host) -> None:
        super().__init__(daemon=True)
        self.host = host
        self.tries = self.taken = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        """Try until it is over."""
        devices = self.host.devices
        while not self.is_over.wait(0.001):  # kernels are to start meanwhile
            self.tries += 1
            for device in devices:
                if lease := self.host.leases.take([device], Holder.here("a competitor")):
                    self.taken += 1
                    lease.release()

    def __enter__(self) -> Competitor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self.join()


def test_a_restart_keeps_the_lease(host: Host) -> None:
    """A competitor that tries all the time does not get the GPU in eight restarts, polite ones and sudden ones."""
    host.offer()

    async def scenario() -> None:
        async with started("torch-all", "/nb/a.ipynb") as talk:
            with Competitor(host) as competitor:
                for turn in range(8):
                    await talk.manager.restart_kernel(now=turn % 2 == 0)
                    await talk.ready()
            pid = int(await talk.run("import os; print(os.getpid())"))
            holder = host.leases.holder(host.devices[0])
            assert holder
            assert (holder.pid, holder.notebook) == (pid, "/nb/a.ipynb")
            assert competitor.taken == 0
            assert competitor.tries > 100

    asyncio.run(scenario())

    assert host.holders() == [None, None]


class TestServer:
    """As jupyter_server starts kernels: it restarts those that crash."""

    def test_a_crash_keeps_the_lease_and_a_shutdown_frees_it_within_a_second(self, host: Host) -> None:
        """No one gets in between a kernel's death and its next life."""
        from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

        host.offer()

        async def scenario() -> None:
            kernels = AsyncMappingKernelManager(connection_dir=os.environ["JUPYTER_RUNTIME_DIR"])
            kernel_id = await kernels.start_kernel(kernel_name="torch-all")
            talk = Talk(kernels.get_kernel(kernel_id))
            await talk.ready()
            before = talk.manager.provisioner.pid
            with Competitor(host) as competitor:
                talk.client.execute(SPRINT)
                await until(lambda: talk.manager.provisioner.pid != before)
                await talk.ready()
            assert await talk.run(MASKS) == "0,1 0,1 None"
            assert competitor.taken == 0
            talk.close()
            await kernels.shutdown_kernel(kernel_id)
            await until(host.can_be_taken, pause=0.01)
            kernels.context.destroy()

        asyncio.run(scenario())

    def test_a_kernel_that_is_not_started_again_gives_its_gpu_back_by_itself(self, host: Host) -> None:
        """Without a restarter the end of the process is the end of the lease, though the server still lives."""
        host.offer()

        async def scenario() -> None:
            async with started("torch-all") as talk:
                os.kill(talk.manager.provisioner.pid, signal.SIGKILL)
                await until(host.can_be_taken, pause=0.01)

        asyncio.run(scenario())

    def test_what_a_crashed_kernel_forked_ends_with_it(self, host: Host) -> None:
        """A data loader's worker that does not notice its parent's death would hold the GPU for ever."""
        host.offer()
        fork = "import os, time\npid = os.fork()\nif pid == 0:\n    time.sleep(600)\nprint(pid)"

        async def scenario() -> None:
            async with started("torch-all") as talk:
                child = int(await talk.run(fork))
                os.kill(talk.manager.provisioner.pid, signal.SIGKILL)
                await until(host.can_be_taken, pause=0.01)
                assert not Path(f"/proc/{child}/exe").exists()

        asyncio.run(scenario())

    @pytest.mark.long
    def test_a_kernel_that_crashes_again_and_again_gives_up_its_gpu(
        self, host: Host, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When jupyter_server gives a kernel up, no one else is told to shut it down."""
        from jupyter_client.restarter import KernelRestarter
        from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

        host.offer()
        monkeypatch.setattr(KernelRestarter.time_to_dead, "default_value", 0.1)
        startup = Path(os.environ["IPYTHONDIR"], "profile_default/startup")

        async def scenario() -> None:
            kernels = AsyncMappingKernelManager(connection_dir=os.environ["JUPYTER_RUNTIME_DIR"])
            kernel_id = await kernels.start_kernel(kernel_name="torch-all")
            talk = Talk(kernels.get_kernel(kernel_id))
            await talk.ready()
            startup.mkdir(parents=True, exist_ok=True)
            (startup / "crash.py").write_text(SPRINT)
            talk.client.execute(SPRINT)
            await until(lambda: kernel_id not in kernels)
            talk.close()
            await until(host.can_be_taken, pause=0.01)
            kernels.context.destroy()

        asyncio.run(scenario())

    def test_the_death_of_the_server_frees_the_gpus_when_the_kernel_ends(self, host: Host, tmp_path: Path) -> None:
        """After kill -9 no one runs our code: the operating system drops the locks with the processes."""
        host.offer()
        source = (
            "import asyncio, sys\n"
            f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
            "from kernel_hosts import started\n"
            "async def serve():\n"
            "    async with started('torch-all') as talk:\n"
            "        print('ready', talk.manager.provisioner.pid, flush=True)\n"
            "        await asyncio.Event().wait()\n"
            "asyncio.run(serve())\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", source], stdout=subprocess.PIPE, text=True, cwd=tmp_path, start_new_session=True
        ) as server:
            assert server.stdout
            word, _, number = server.stdout.readline().partition(" ")
            assert word == "ready"
            assert not host.can_be_taken()
            server.kill()
            server.wait()
            os.kill(int(number), 0)  # the kernel still lives and holds its GPUs, until it misses its parent

            asyncio.run(until(host.can_be_taken, seconds=10))
            server.stdout.close()
