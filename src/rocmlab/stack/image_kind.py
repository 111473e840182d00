"""Which image a lab for AMD GPUs is built as: on AMD's image for every GPU, or for exactly this host's.

`full` is built on rocm/tensorflow. `slim` is a small Ubuntu with PyTorch from AMD's wheels for single ISA targets:
`torch[device-gfx1100]` brings the ROCm libraries with the kernels of gfx1100 and of no other GPU. `debian` has Debian's
own ROCm, from which `scripts/make-rocm-base` omits other GPUs' kernels, and TensorFlow for ROCm from PyPI.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rocmlab.base.errors import RocmlabError
from rocmlab.devices import Device, products
from rocmlab.devices.visibility.overrides import OVERRIDE, is_version
from rocmlab.stack.choice import CONTAINERS, Choice, check_value
from rocmlab.stack.settings import Settings

FULL, SLIM, DEBIAN = "full", "slim", "debian"
KINDS = (FULL, SLIM, DEBIAN)
DEBIAN_BASE = "rocmlab-debian-rocm"  # the base image that scripts/make-rocm-base makes; its tag has the targets
# rocBLAS has more. TensorFlow 2.14's own list has "gfx1030gfx1100" as one word, so it takes neither.
DEBIAN_TARGETS = ("gfx900", "gfx906", "gfx908", "gfx90a")
WITHOUT = {
    SLIM: "AMD has no wheels",
    DEBIAN: "Debian's rocBLAS and TensorFlow 2.14 have no common kernels",
}  # … for gfx803
EXAMPLE = {SLIM: "gfx1100", DEBIAN: "gfx90a"}
INSTEAD = "make up IMAGE=full, which has every GPU's kernels"


@dataclass(frozen=True)
class ImageKind:
    """What is built, for which GPUs, and why it is not what was requested, if it is not."""

    name: str = FULL
    targets: tuple[str, ...] = ()  # of a slim or Debian image: gfx1100, …
    note: str = ""
    possible: tuple[str, ...] = ()  # what a slim image would be for, where nothing was requested

    @property
    def values(self) -> dict[str, str]:
        """What the Compose files read, where it is not their default."""
        if self.name != SLIM:  # on Debian's ROCm it is built as on AMD's image
            return {}
        return {"ROCMLAB_IMAGE_KIND": self.name, "ROCMLAB_IMAGE_GFX": ",".join(self.targets)}

    @property
    def base(self) -> str:
        """The base image that this machine makes itself; empty if it is pulled."""
        return f"{DEBIAN_BASE}:{'-'.join(self.targets)}" if self.name == DEBIAN else ""


def made_for(base: str) -> tuple[str, ...]:
    """Return the targets of a base image that this machine makes itself, see `ImageKind.base`; none if it is pulled."""
    name, _, tag = base.removeprefix("localhost/").partition(":")
    return tuple(tag.split("-")) if name == DEBIAN_BASE else ()


def decide(settings: Settings, choice: Choice, devices: Sequence[Device]) -> ImageKind:
    """Return the kind of image for a host's GPUs, or those that GFX names; an error if IMAGE or GFX is not valid."""
    wanted, named = settings.get("IMAGE"), settings.get("GFX")
    check_value("IMAGE", wanted, KINDS)
    is_amd = choice.backend == "rocm" and choice.runtime in CONTAINERS
    present = [device.gfx for device in devices if device.backend == "rocm" and device.gfx]
    if wanted == FULL:
        return ImageKind(possible=_split(SLIM, dict.fromkeys(present))[0] if is_amd else ())
    if not is_amd:
        return ImageKind(note=f"IMAGE={wanted} has no effect: it is for AMD GPUs in a container, and this is neither")
    if named:
        return ImageKind(wanted, _named(wanted, named))
    if not present:
        raise RocmlabError(
            f"IMAGE={wanted} was requested, and the ISA target of no AMD GPU is known here",
            "WSL2 lists none" if choice.is_wsl else "the driver lists no GPU",
            f"name it: make up IMAGE={wanted} GFX={EXAMPLE[wanted]}; or: make up IMAGE=full",
        )
    for name, value in settings.read_env().items():
        if name.startswith(OVERRIDE) and is_version(value):  # what GPUs are made to look like: 10.3.0 is gfx1030
            major, minor, step = value.split(".")
            present.append(f"gfx{major}{int(minor):x}{int(step):x}")
    targets, without = _split(wanted, dict.fromkeys(present))
    if not targets:
        return ImageKind(
            note=f"IMAGE={wanted} is not possible, so the full image is used: {WITHOUT[wanted]} for {without}"
        )
    note = f"{WITHOUT[wanted]} for {without}, so that GPU does not work in the {wanted} image ({INSTEAD})"
    return ImageKind(wanted, targets, note if without else "")


def _named(kind: str, text: str) -> tuple[str, ...]:
    """Return the targets that GFX names; raise RocmlabError unless this kind of image is possible for each."""
    names = list(filter(None, re.split(r"[,;\s]+", text.strip())))
    if odd := [name for name in names if not re.fullmatch(r"gfx[0-9]+[0-9a-f]{2}", name)]:
        raise RocmlabError(
            f"GFX={text} is not a list of ISA targets",
            f"{odd[0]} is none; one is called gfx1100, and several are separated by commas",
            "scripts/rocmlab devices shows those of the GPUs here",
        )
    targets, without = _split(kind, dict.fromkeys(names))
    if without or not targets:
        raise RocmlabError(f"GFX={text} cannot be built as a {kind} image", f"{WITHOUT[kind]} for {without}", INSTEAD)
    return targets


def _split(kind: str, names: Mapping[str, None]) -> tuple[tuple[str, ...], str]:
    """Return the targets that this kind of image is possible for, sorted, and the others as text."""
    usable = [name for name in names if _is_possible(kind, name)]
    return tuple(sorted(usable)), ", ".join(name for name in names if name not in usable)


def _is_possible(kind: str, name: str) -> bool:
    if kind == DEBIAN:
        return name in DEBIAN_TARGETS
    target = products.target(name)
    return target.has_wheels and target.outlook != "wrong"
