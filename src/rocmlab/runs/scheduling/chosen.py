"""Which GPUs a run uses: by `--gpus`, and else the lab's own GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rocmlab.base import formatting
from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, visibility


def choose_gpus(devices: Sequence[Device], choice: str | None, environment: Mapping[str, str]) -> list[Device]:
    """Return the GPUs of a run.

    Args:
        devices: all that this process sees.
        choice: `--gpus`: `all`, `none`, a number of GPUs, or a list as in `GPUS=`; None: what the lab itself has.
        environment: with the lab's backend and its own mask.

    Raises:
        RocmlabError: the choice is not available; a requested GPU is never replaced by the CPU.
    """
    backend = environment.get("ROCMLAB_BACKEND")
    found = visibility.mark_hidden(devices, environment)
    # Simulated GPUs can be requested where the CPU computes: they are leased and shown, marked as SIMULATED.
    seen = [each for each in found if not backend or each.backend == backend or (choice and each.simulated)]
    if choice is None:
        chosen = visibility.remaining(seen, environment)
        if not chosen and backend in ("rocm", "cuda") and not visibility.hides_all(environment, backend):
            reasons = [f"{device.name}: {device.why_not}" for device in seen if not device.is_usable]
            raise RocmlabError(
                f"this lab is for the backend {backend}, and no GPU can be used here",
                "\n".join(reasons) or "the driver lists none",
                "make up, which shows more; to run on the CPU on purpose: --gpus none",
            )
        return chosen
    if choice == "0":
        raise RocmlabError(
            "--gpus 0 may mean two things", "no GPU, or GPU 0", "--gpus none, or --gpus 0, (with the comma)"
        )
    if not choice.isdecimal():
        return visibility.select(seen, choice)
    usable = visibility.select(seen, "all")
    if int(choice) > len(usable):
        have = len(usable)
        instead = "none" if not have else str(have) if have > 1 else "all"
        raise RocmlabError(
            f"--gpus {choice} asks for {formatting.plural(int(choice), 'GPU')}",
            f"{have or 'none'} can be used here",
            f"--gpus {instead}; `rocmlab devices` shows why a GPU cannot be used",
        )
    return usable[: int(choice)]
