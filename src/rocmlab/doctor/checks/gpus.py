"""The GPUs themselves: supported, of one kind, well connected, awake."""

from __future__ import annotations

from dataclasses import replace

from rocmlab.devices import Device, cards, cpu, products
from rocmlab.devices.rocm import DeniedNodes
from rocmlab.devices.visibility.overrides import OVERRIDE, node_numbers, override_of
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, WARNS, Verdict, blocks, check, note, ok, skip, warns
from rocmlab.doctor.situation import Situation

APU_SHARE = 0.75  # of the host's memory that an APU can be given without starving the rest
SLIM_TARGETS = "ROCMLAB_IMAGE_GFX"  # for which a slim image was built, in it and in `.env`
PAGES_OF_A_GIB = 262_144  # of 4 KiB
OTHERS = "choose other GPUs: make up GPUS=…; or the CPU: make up BACKEND=cpu"


def _one_per_card(gpus: list[Device]) -> list[Device]:
    """Return one device for each PCI address: partitions share their card."""
    return list({gpu.pci_address or gpu.kfd_node: gpu for gpu in reversed(gpus)}.values())[::-1]


@check(
    "gpu.description",
    "the kernel describes every GPU completely",
    looks_at="the KFD topology and the DRM folders of each GPU, and whether they agree",
    why="Where the kernel's own description is damaged, names and numbers of GPUs cannot be trusted.",
    fix="what the kernel's log shows, then a restart of the machine",
    unless=lambda s: s.no_amd,
)
def description(s: Situation) -> Verdict | list[Verdict]:
    """Pass on what joining the descriptions found."""
    found, problems = s.examined
    seen = tuple(f"{gpu.pci_address}: {gpu.name}, {gpu.gfx or 'target unknown'}" for gpu in found)
    damaged = [problem for problem in problems if not isinstance(problem, DeniedNodes)]
    return [Verdict(WARNS, seen, problem) for problem in damaged] or ok(*seen)


@check(
    "gfx.support",
    "the frameworks have kernels for every GPU",
    looks_at="each GPU's ISA target in the table of support (devices/gfx.csv), the base image, and the overrides",
    why="TensorFlow ignores targets that are not on its list, and computes on the CPU; other libraries crash or "
    "find no kernels (tensorflow-upstream#3169). A target that the table does not have may be newer or older than it.",
    fix="`HSA_OVERRIDE_GFX_VERSION` of the GPU's generation in `.env`, per node where GPUs differ; for an unknown "
    "target one multiplication in the lab",
    severity=BLOCKS,
    unless=lambda s: s.no_amd,
)
def support(s: Situation) -> Verdict | list[Verdict]:
    """Look each target up."""
    if s.no_rocm:
        return note(s.no_rocm, *map(str, s.pci_gpus))
    if not s.passed:
        return skip("the driver lists no AMD GPU")
    if not s.chosen:
        return skip("no GPU is chosen, or none can be used")
    seen: list[str] = []
    found: dict[str, list[Device]] = {}
    slim = list(filter(None, s.lab_environment.get(SLIM_TARGETS, "").split(",")))
    for gpu in s.chosen:
        target = products.target(gpu.gfx)
        in_tensorflow = {True: "yes", False: "no", None: "unknown"}[target.is_in_tensorflow]
        seen.append(f"{gpu.pci_address} {gpu.gfx}: ROCm: {target.support_text}; TensorFlow: {in_tensorflow}")
        if target.outlook == "wrong" or not (slim or _is_overridden(s, gpu)):
            found.setdefault(target.outlook, []).append(gpu)
    foreign = [gpu for gpu in s.chosen if slim and gpu.gfx not in slim and not _is_overridden(s, gpu)]
    fired = [_not_in_slim(s, foreign, slim, seen)] if foreign else []
    if hopeless := found.get("unsupported"):
        fire = warns if len(hopeless) < len(s.chosen) else blocks
        fired.append(
            fire(
                f"{hopeless[0].name} ({hopeless[0].gfx}) has no kernels in this ROCm",
                products.target(hopeless[0].gfx).caveat,
                OTHERS,
                *seen,
            )
        )
    if unlisted := found.get("unknown"):
        fired.append(
            warns(
                f"{unlisted[0].name} ({unlisted[0].gfx or 'target unknown'}): support is unknown, it may not work",
                f"{products.target(unlisted[0].gfx).caveat}: it is newer than the list, or older than ROCm",
                f"rocmlab doctor --only compute.torch      # in the lab: one multiplication shows it\n{OTHERS}",
                *seen,
            )
        )
    if lacking := found.get("override"):
        fired.append(_needs_override(s, lacking, seen))
    if not fired and "wrong" in found:
        return skip("a GPU computes wrong results, which gfx.results reports", *seen)
    return fired or ok(*seen)


def _not_in_slim(s: Situation, foreign: list[Device], slim: list[str], seen: list[str]) -> Verdict:
    fire = warns if len(foreign) < len(s.chosen) else blocks
    return fire(
        f"{foreign[0].name} ({foreign[0].gfx or 'target unknown'}) has no kernels in this slim image",
        f"the image was built for {', '.join(slim)}",
        "make up GFX=            # builds it for the GPUs that are here now, if AMD has wheels for them\n"
        "make up IMAGE=full      # the image for every GPU",
        *seen,
    )


def _needs_override(s: Situation, lacking: list[Device], seen: list[str]) -> Verdict:
    return warns(
        f"TensorFlow ignores {lacking[0].name} ({lacking[0].gfx})",
        "its list of targets does not have it, so it would compute on the CPU; the kernels of "
        f"{products.target(lacking[0].gfx).override} run on it",
        _override_lines(s, lacking),
        *seen,
    )


@check(
    "gfx.results",
    "no GPU is known to compute wrong results",
    looks_at="each GPU's ISA target in the table of support (devices/gfx.csv)",
    why="The packages for some targets install, load and compute wrong numbers without an error (unsloth#8412).",
    fix="other GPUs, or the CPU",
    severity=BLOCKS,
    is_quick=True,
    unless=lambda s: s.no_kfd_gpus,
)
def results(s: Situation) -> Verdict:
    """Look for targets that are known for it; other targets' kernels, by an override, are no better there."""
    seen = [f"{gpu.pci_address} {gpu.gfx}" for gpu in s.chosen]
    wrong = [gpu for gpu in s.chosen if gpu.support == "wrong"]
    if not wrong:
        return ok(*seen)
    return blocks(
        f"{wrong[0].name} ({wrong[0].gfx}) would compute wrong results",
        products.target(wrong[0].gfx).caveat,
        OTHERS,
        *seen,
    )


def _is_overridden(s: Situation, gpu: Device) -> bool:
    return override_of(s.lab_environment, _node_numbers(s).get(gpu.kfd_node)) is not None


def _node_numbers(s: Situation) -> dict[int | None, int]:
    """Return ROCm's own node number of each GPU of the lab by KFD node; GPUs that it is not given do not count."""
    given = [gpu if gpu in s.chosen or s.side == CONTAINER else replace(gpu, index=None) for gpu in s.maskable]
    numbers = node_numbers(given)
    return {gpu.kfd_node: numbers[gpu.index] for gpu in given if gpu.index is not None and gpu.index in numbers}


def _override_lines(s: Situation, lacking: list[Device]) -> str:
    """Return the lines for `.env`: one for all GPUs where they share it, else one for each node."""
    values = {products.target(gpu.gfx).override for gpu in lacking}
    if len(values) == 1 and len(lacking) == len(s.chosen):
        return f"echo {OVERRIDE}={values.pop()} >>.env && make up"
    numbers = _node_numbers(s)
    lines = [
        f"echo {OVERRIDE}_{numbers.get(gpu.kfd_node)}={products.target(gpu.gfx).override} >>.env" for gpu in lacking
    ]
    return "\n".join([*lines, "make up"])


@check(
    "igpu",
    "no integrated GPU among the cards",
    looks_at="whether the GPUs of the lab include both an APU and a discrete GPU",
    why="Frameworks take device 0, which may be the integrated one; training over both hangs (TheRock#5543, "
    "pytorch#119637, ROCm#3040).",
    fix="`make up GPUS=…` with the discrete GPUs",
    unless=lambda s: s.no_kfd_gpus,
)
def integrated(s: Situation) -> Verdict:
    """Look for a mixture."""
    seen = [f"HIP {gpu.index} {gpu.pci_address} {gpu.gfx} {'APU' if gpu.is_apu else 'discrete'}" for gpu in s.chosen]
    small = [gpu for gpu in s.chosen if gpu.is_apu]
    large = [gpu for gpu in s.chosen if not gpu.is_apu]
    if not small or not large:
        return ok(*seen)
    indices = ",".join(str(gpu.index) for gpu in large)
    return warns(
        f"the integrated GPU {small[0].name} is one of the lab's GPUs",
        "frameworks take GPU 0, whichever that is, and a job over both kinds hangs or crashes",
        f"make up GPUS={indices}      # on the host\nor turn the integrated GPU off in the firmware",
        *seen,
        about=HOST,
    )


@check(
    "apu.memory",
    "an APU may use enough of the host's memory",
    looks_at="`mem_info_vram_total`, `mem_info_gtt_total` and KFD's memory bank of each APU, "
    "`/sys/module/ttm/parameters/pages_limit`, and `/proc/meminfo`",
    why="Models on an APU live in the host's memory (GTT), of which the kernel lets it use half by default; before "
    "Linux 6.10 HIP uses the few hundred MiB of VRAM alone.",
    fix="`ttm.pages_limit=N` among the kernel's parameters, N being GiB times 262,144, and no smaller `amdgpu.gttsize`",
    unless=lambda s: s.no_kfd_gpus,
)
def apu_memory(s: Situation) -> Verdict:
    """Compare what frameworks can allocate with what there is."""
    found = [gpu for gpu in s.chosen if gpu.pool]
    if not found:
        return skip("no APU is chosen")
    pages = s.number("sys/module/ttm/parameters/pages_limit")
    memory = cpu.memory_in_use(s.text("proc/meminfo") or "")[1]
    seen = [
        f"{gpu.pci_address}: VRAM {_gib(gpu.vram_bytes)}, GTT {_gib(gpu.gtt_bytes)}; "
        f"frameworks can allocate {_gib(gpu.memory_bytes)}"
        for gpu in found
    ]
    seen.append(f"memory {_gib(memory)}, ttm.pages_limit {'unknown' if pages is None else pages}")
    small = [gpu for gpu in found if gpu.pool == "vram" and (gpu.gtt_bytes or 0) > (gpu.vram_bytes or 0)]
    if small:
        return warns(
            f"frameworks can use {_gib(small[0].vram_bytes)} on the APU {small[0].name}",
            "before Linux 6.10 HIP allocates from an APU's VRAM alone, and not from the larger GTT",
            "install Linux 6.10 or newer, or give the GPU more memory in the firmware (UMA frame buffer size)",
            *seen,
            about=HOST,
        )
    largest = max(found, key=lambda gpu: gpu.memory_bytes or 0)
    limit = largest.memory_bytes
    more = int((memory or 0) * APU_SHARE) >> 30
    if not limit or limit >> 30 >= more:
        return ok(*seen)
    parameters = f"ttm.pages_limit={more * PAGES_OF_A_GIB} ({more} GiB)"
    if pages and pages << 12 > limit:  # the card's own limit is smaller than that of all GTT
        parameters += ", without a smaller amdgpu.gttsize,"
    return note(
        f"frameworks can allocate at most {_gib(limit)} on {largest.name}. For larger models set {parameters} "
        "among the kernel's parameters and restart the machine",
        *seen,
    )


def _gib(count: int | None) -> str:
    return "unknown" if count is None else f"{count / (1 << 30):.1f} GiB"


@check(
    "pcie.link",
    "every card has all its PCIe lanes",
    looks_at="`current_link_width` and `max_link_width` of each card; speeds are lower when idle, and only shown",
    why="A card in the wrong slot, or badly seated, copies data at a fraction of its speed.",
    fix="another slot, or seating the card again",
    unless=lambda s: s.no_kfd_gpus,
)
def link(s: Situation) -> Verdict:
    """Compare widths."""
    lanes = [
        (gpu, gpu.link_width, cards.own_lanes(s.root, gpu.pci_address or "") or gpu.link_width_max)
        for gpu in _one_per_card(s.chosen)
    ]
    known = [(gpu, width, most) for gpu, width, most in lanes if width and most]
    if not known:
        return skip("no GPU reports its PCIe width")
    seen = [
        f"{gpu.pci_address}: x{width} of x{most}, {gpu.link_speed_gts or '?'} of {gpu.link_speed_max_gts or '?'} GT/s"
        for gpu, width, most in known
    ]
    narrow = [(gpu, width, most) for gpu, width, most in known if width < most]
    if not narrow:
        return ok(*seen)
    worst, width, most = narrow[0]
    return warns(
        f"the GPU at {worst.pci_address} has {width} of its {most} PCIe lanes",
        "the slot has fewer lanes, shares them with another, or the card does not sit well",
        f"sudo lspci -vv -s {worst.pci_address} | grep -E 'LnkCap|LnkSta'      # what card and slot can, and do\n"
        "then another slot, or seat the card again",
        *seen,
        about=HOST,
    )


@check(
    "rebar",
    "all memory of every card can be reached (large BAR)",
    looks_at="`mem_info_vis_vram_total` against `mem_info_vram_total` of each discrete GPU",
    why="Without a large BAR GPUs cannot write into each other's memory, and copies from the host go in pieces.",
    fix="`Above 4G decoding` and `Resizable BAR` in the firmware's settings",
    unless=lambda s: s.no_kfd_gpus,
)
def large_bar(s: Situation) -> Verdict:
    """Compare visible and total memory."""
    seen, small = [], []
    for gpu in _one_per_card([gpu for gpu in s.chosen if not gpu.is_apu]):
        folder = f"sys/class/drm/{(gpu.render_node or '').rpartition('/')[2]}/device"
        visible, total = s.number(f"{folder}/mem_info_vis_vram_total"), s.number(f"{folder}/mem_info_vram_total")
        if visible is None or total is None:
            continue
        seen.append(f"{gpu.pci_address}: {visible} of {total} bytes")
        if visible < total:
            small.append(gpu)
    if not seen:
        return skip("no discrete GPU reports how much of its memory can be reached")
    if not small:
        return ok(*seen)
    return warns(
        f"the CPU reaches only a part of the memory of the GPU at {small[0].pci_address}",
        "the firmware gave it a small window (BAR), so transfers between GPUs are slower or impossible",
        "in the firmware's settings turn on `Above 4G decoding` and `Resizable BAR`, and turn off `CSM`",
        *seen,
        about=HOST,
    )


@check(
    "runtimepm",
    "no GPU is switched off",
    looks_at="`power_state` of each GPU on the PCI bus",
    why="A GPU in D3cold is switched off while it is idle: the first use takes seconds, and some boards never wake "
    "theirs again.",
    fix="`echo on | sudo tee …/power/control`, or `amdgpu.runpm=0`",
    unless=lambda s: s.no_amd,
)
def asleep(s: Situation) -> Verdict:
    """Look at power states."""
    seen = [f"{gpu.address}: power_state {gpu.power_state}" for gpu in s.candidates if gpu.power_state]
    if not seen:
        return skip("no GPU that ROCm supports reports its power state")
    cold = [gpu for gpu in s.candidates if gpu.power_state == "D3cold"]
    if not cold:
        return ok(*seen)
    return warns(
        f"the GPU at {cold[0].address} is switched off (D3cold)",
        "the kernel does that after seconds without use; waking takes a moment, and fails on some boards",
        "\n".join(f"echo on | sudo tee /sys/bus/pci/devices/{gpu.address}/power/control" for gpu in cold)
        + "\nfor good: amdgpu.runpm=0 among the kernel's parameters (/etc/default/grub)",
        *seen,
        about=HOST,
    )
