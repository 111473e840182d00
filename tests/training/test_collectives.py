"""The probe of how devices talk: it climbs the ladder, ends what hangs and remembers; ranks are real processes."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device
from rocmlab.training import collectives
from rocmlab.training.collectives import Rung
from rocmlab.training.interpreters import Interpreter

# A rank without PyTorch, as the ladder sees it: READY, then what the environment says will happen.
RANK = """
import json, os, sys, time
rank, folder = os.environ["RANK"], os.environ["FOLDER"]
open(os.path.join(folder, f"pid-{rank}-{sys.argv[1]}-{os.environ.get('NCCL_P2P_DISABLE', '0')}"), "w").write(
    str(os.getpid()))
print("READY", flush=True)
open(os.path.join(folder, "env"), "w").write(json.dumps(dict(os.environ)))
act = os.environ.get("NOREMEDY", "") if os.environ.get("NCCL_P2P_DISABLE") != "1" else ""
if act == "hang":
    if rank == "1": time.sleep(600)
elif act:
    exec(act)
if sys.argv[1] == os.environ.get("BROKEN"): sys.exit("this backend is broken")
print(json.dumps({"gigabytes_per_second": 12.5}))
"""


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """Write the program of a rank and use this interpreter as PyTorch's."""
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.delenv("ROCMLAB_SHARE", raising=False)
    monkeypatch.setattr(collectives.interpreters, "find", lambda _: Interpreter(sys.executable, {}))
    program = tmp_path / "rank.py"
    program.write_text(RANK)
    return program


@pytest.fixture
def two_cards(monkeypatch):
    """Make the system know two cards."""
    cards = [
        Device("rocm", number, "Radeon RX 7900 XTX", is_usable=True, gfx="gfx1100", pci_address=f"0000:0{number}:00.0")
        for number in (3, 4)
    ]
    numbered = [Device(**{**vars(card), "index": index}) for index, card in enumerate(cards)]
    monkeypatch.setattr(collectives, "discover", lambda: numbered)
    return numbered


def is_running(pid):
    """Return whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_first_way_is_taken_where_it_works(rank, tmp_path):
    """Nothing is switched off without need, and exactly the chosen GPUs are tried."""
    found = collectives.probe(gpus=[0, 2], program=rank)

    assert (found.backend, found.environment, found.tried) == ("nccl", {}, ())
    assert found.sentence() == "collectives: nccl, 12.5 GB/s"
    seen = json.loads((tmp_path / "env").read_text())
    assert (seen["HIP_VISIBLE_DEVICES"], seen["WORLD_SIZE"], seen["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == (
        "0,2",
        "2",
        "3",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("hang", "hangs: no answer from rank 1 after 1 seconds"),
        ("sys.exit('unhandled system error')", "exit code 1): unhandled system error"),
        ("os.abort()", "killed by SIGABRT): it printed nothing"),
    ],
    ids=["hangs", "fails", "aborts"],
)
def test_next_remedy_is_tried_after_a_failure(rank, tmp_path, monkeypatch, act, reason):
    """A way that hangs, fails or dies is left behind with its reason, and none of its processes."""
    monkeypatch.setenv("NOREMEDY", act)
    started = time.monotonic()

    found = collectives.probe(gpus=[0, 1], program=rank, limit_seconds=1)

    assert found.environment == {"NCCL_P2P_DISABLE": "1"}
    assert len(found.tried) == 1
    assert reason in found.tried[0]
    assert "did not work: nccl: " in found.sentence()
    assert time.monotonic() - started < 60
    assert not any(is_running(int(path.read_text())) for path in tmp_path.glob("pid-*"))


def test_gloo_is_the_last_rung(rank, monkeypatch):
    """Where RCCL works in no way, the training uses the CPU, and all that was tried is listed in order."""
    monkeypatch.setenv("BROKEN", "nccl")

    found = collectives.probe(gpus=[0, 1], program=rank)

    assert found.backend == "gloo"
    ways = [one.partition(": ")[0] for one in found.tried]
    assert ways == [
        "nccl",
        "nccl NCCL_P2P_DISABLE=1",
        "nccl NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1",
        "nccl HSA_ENABLE_SDMA=0",
    ]


def test_no_way_at_all_is_an_error_with_every_reason(rank, monkeypatch):
    """What, why, and what to do."""
    monkeypatch.setenv("BROKEN", "gloo")

    with pytest.raises(RocmlabError, match="2 devices cannot communicate") as caught:
        collectives.probe(processes=2, program=rank)

    assert "this backend is broken" in caught.value.problem.why
    assert "iommu=pt" in caught.value.problem.fix


def test_ranks_that_do_not_start_are_no_matter_of_the_ladder(rank):
    """A broken PyTorch is reported immediately, with its output; no remedy for collectives is tried."""
    rank.write_text("raise ImportError('libamdhip64.so.7: cannot open shared object file')")

    with pytest.raises(RocmlabError, match="could not be tested together") as caught:
        collectives.probe(gpus=[0, 1], program=rank)

    assert "libamdhip64" in caught.value.problem.why


@pytest.mark.slow
@pytest.mark.usefixtures("two_cards")
def test_result_is_remembered_in_the_share_until_it_is_forgotten(rank, tmp_path, monkeypatch):
    """The second run takes what the first found; after a failure, or for other devices, it is found out again."""
    monkeypatch.setenv("NOREMEDY", "sys.exit('broken')")
    share = tmp_path / "share"
    first = collectives.probe(gpus=[0, 1], program=rank, share=share)
    rank.write_text("raise SystemExit('it was run again')")

    second = collectives.probe(gpus=[0, 1], program=rank, share=share)

    assert second.is_remembered
    assert (second.environment, second.tried) == (first.environment, first.tried)
    assert "measured by an earlier run" in second.sentence()
    with pytest.raises(RocmlabError, match="it was run again"):
        collectives.probe(gpus=[1, 0], program=rank, share=share)
    with pytest.raises(RocmlabError, match="it was run again"):
        collectives.probe(gpus=[0, 1], program=rank, share=share, again=True)
    collectives.forget([0, 1], share)
    with pytest.raises(RocmlabError, match="it was run again"):
        collectives.probe(gpus=[0, 1], program=rank, share=share)


@pytest.mark.parametrize("change", ["driver", "card", "variable"])
def test_another_driver_card_or_setting_is_probed_again(rank, tmp_path, monkeypatch, two_cards, change):
    """What was true for one set of things is not taken for another."""
    share = tmp_path / "share"
    collectives.probe(gpus=[0, 1], program=rank, share=share)
    changed = {"driver": {"driver": "amdgpu 6.14"}, "card": {"pci_address": "0000:09:00.0"}, "variable": {}}[change]
    other = [two_cards[0], Device(**{**vars(two_cards[1]), **changed})]
    monkeypatch.setattr(collectives, "discover", lambda: other)
    if change == "variable":
        monkeypatch.setenv("NCCL_ALGO", "Tree")

    assert not collectives.probe(gpus=[0, 1], program=rank, share=share).is_remembered
    assert collectives.probe(gpus=[0, 1], program=rank, share=share).is_remembered


@pytest.mark.usefixtures("two_cards")
@pytest.mark.parametrize("text", ["{", "[]", '{"backend": "nccl"}'])
def test_a_truncated_record_is_reported_and_probed_again(rank, tmp_path, caplog, text):
    """A file without useful content is not a reason to fail."""
    share = tmp_path / "share"
    collectives.probe(gpus=[0, 1], program=rank, share=share)
    (kept,) = share.glob("cache/collectives/*.json")
    kept.write_text(text)

    assert not collectives.probe(gpus=[0, 1], program=rank, share=share).is_remembered
    assert "is not readable" in caplog.text


@pytest.mark.usefixtures("two_cards")
def test_share_that_cannot_be_written_is_told(rank, tmp_path, caplog):
    """The result is still used."""
    (tmp_path / "share").write_text("a file")

    assert collectives.probe(gpus=[0, 1], program=rank, share=tmp_path / "share").backend == "nccl"
    assert "the next run probes again" in caplog.text


def test_rung_names_its_variables():
    """A rung reads as a user would type it."""
    assert str(Rung("nccl", {"NCCL_P2P_DISABLE": "1"})) == "nccl NCCL_P2P_DISABLE=1"
