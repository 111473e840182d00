"""The device nodes: they exist, the user who computes may open them, and they are the same inside the lab."""

from __future__ import annotations

from collections.abc import Sequence

from rocmlab.devices.nodes import SKIPPED
from rocmlab.doctor.model import BLOCKS, CONTAINER, HOST, Verdict, blocks, check, ok, skip, warns
from rocmlab.doctor.situation import Node, Situation

UDEV_RULE = (
    "sudo tee /etc/udev/rules.d/70-amdgpu.rules <<'END'\n"
    'KERNEL=="kfd", GROUP="render", MODE="0660"\n'
    'SUBSYSTEM=="drm", KERNEL=="renderD*", GROUP="render", MODE="0660"\n'
    "END\n"
    "sudo groupadd --system --force render && sudo udevadm control --reload && sudo udevadm trigger"
)
KFD = "/dev/kfd"
ONE_STOPS_ALL = "one node that exists and cannot be opened stops ROCm for every GPU"


@check(
    "dev.kfd.exists",
    "/dev/kfd is here",
    looks_at="`/dev/kfd`, `/sys/class/kfd`",
    why="All of ROCm opens this node first.",
    fix="load the driver; inside a container: recreate it with `make up`",
    severity=BLOCKS,
    is_quick=True,
    unless=lambda s: s.no_amd,
)
def kfd_exists(s: Situation) -> Verdict:
    """Look for the compute node where KFD lists one."""
    if s.compute_node:
        return ok(f"{s.compute_node} device {s.compute_node.major}:{s.compute_node.minor}")
    if s.exists("dev/dxg"):
        return skip("WSL2 has /dev/dxg in its place")
    topology = "/sys/class/kfd is here" if s.exists("sys/class/kfd") else "/sys/class/kfd is missing"
    if s.in_container:
        return blocks(
            "the lab has no /dev/kfd",
            "the container was created without it"
            if s.passed
            else "the host has no amdgpu driver with compute, or none when the container was created",
            "make down && make up      # on the host",
            topology,
            about=HOST,
        )
    if not s.passed:
        return skip("the amdgpu driver lists no GPU, which other checks explain", topology)
    return blocks(
        "/dev/kfd is missing, though the driver lists GPUs",
        "udev did not make the node, or /dev is not the host's own",
        "sudo udevadm trigger --subsystem-match=kfd && ls -l /dev/kfd",
        topology,
    )


@check(
    "dev.render",
    "every GPU has its render node",
    sides=(HOST,),
    looks_at="`/dev/dri/renderD*` against the KFD topology",
    why="ROCm skips a GPU without its render node, so the lab silently has one GPU less.",
    fix="let udev make the nodes again",
    severity=BLOCKS,
    unless=lambda s: s.no_kfd_gpus,
)
def render_exists(s: Situation) -> Verdict:
    """Look for GPUs without a node."""
    here = {node.path for node in s.render_nodes}
    missing = [gpu for gpu in s.passed if gpu.render_node not in here]
    if not missing:
        return ok(f"{len(s.passed)} GPUs, each with its node")
    fire = warns if here else blocks
    return fire(
        f"the GPU at {missing[0].pci_address} has no {missing[0].render_node}",
        "udev did not make the node, or someone removed it",
        "sudo udevadm trigger --subsystem-match=drm && ls -l /dev/dri",
        *(f"{gpu.pci_address}: {gpu.render_node} is missing" for gpu in missing),
    )


@check(
    "dev.perm",
    "the device nodes can be opened",
    looks_at="group and mode of `/dev/kfd` and the render nodes, and whether this process may open them. Only a node "
    "that it may not open is tried, to distinguish the cgroup's rules from the mode",
    why="A node that denies access (EACCES) stops ROCm for all GPUs; one the cgroup denies (EPERM) is skipped.",
    fix="`sudo usermod -aG render,video $USER` and a new login (host); `make up` (container)",
    severity=BLOCKS,
    is_quick=True,
    unless=lambda s: s.no_amd,
)
def permission(s: Situation) -> Verdict:
    """Check whether the user who computes may open the nodes."""
    if not s.compute_nodes:
        return skip("no device nodes found to open")
    if s.for_container:
        return _for_the_entry_point(s)
    return _for_this_user(s)


def _for_the_entry_point(s: Situation) -> Verdict:
    """A container starts as root and joins the nodes' groups: these must be allowed to open them."""
    closed = [node for node in s.compute_nodes if not node.group_may_open]
    if not closed:
        return ok(*map(str, s.compute_nodes))
    paths = " ".join(node.path for node in closed)
    return blocks(
        f"{closed[0].path} cannot be opened by its group",
        f"its mode is {closed[0].mode:04o}, and the lab's user reaches it as a member of group {closed[0].gid}; "
        f"{ONE_STOPS_ALL}",
        f"sudo chmod g+rw {paths}\n{UDEV_RULE}",
        *map(str, s.compute_nodes),
    )


def _for_this_user(s: Situation) -> Verdict:
    """What this process may not open shows by the error that it would meet."""
    seen = [f"{node}: {node.error or 'may be opened'}" for node in s.compute_nodes]
    refused = [node for node in s.compute_nodes if node.error and node.error not in SKIPPED]
    if refused:
        return _refused(s, refused, seen)
    denied = [node for node in s.compute_nodes if node.error]
    if denied:
        fire = warns if any(node.error is None for node in s.render_nodes) and denied[0].path != KFD else blocks
        return fire(
            f"{denied[0].path} is denied by the container's device cgroup",
            "the node was not passed with --device, or the driver was loaded again after the container was created",
            "make down && make up      # on the host",
            *seen,
            about=HOST,
        )
    return ok(*seen)


def _refused(s: Situation, closed: Sequence[Node], seen: Sequence[str]) -> Verdict:
    """The nodes whose mode and group shut this user out, and what lets him in."""
    node, may_group = closed[0], all(node.group_may_open for node in closed)
    names = [s.group_name(node.gid) for node in closed]
    groups = sorted({name for node, name in zip(closed, names, strict=True) if name and node.gid})
    if s.in_container:
        again = f"make up      # on the host; with docker run: --group-add {node.gid}"
        fix = again if may_group else f"on the host:\n{UDEV_RULE}\nmake up"
    elif groups and may_group:
        fix = f"sudo usermod -aG {','.join(groups)} $USER      # then log out and in again"
    elif may_group and node.gid:
        fix = f"sudo groupadd -g {node.gid} render && sudo usermod -aG render $USER      # then log in again"
    else:
        fix = UDEV_RULE + "\nsudo usermod -aG render $USER      # then log out and in again"
    return blocks(
        f"{node.path} cannot be opened by uid {s.uid} ({node.error})",
        f"it belongs to group {node.gid} ({names[0] or 'without a name'}, mode {node.mode:04o}), and this process is "
        f"in the groups {','.join(map(str, sorted(s.groups)))}; {ONE_STOPS_ALL}",
        fix,
        *seen,
        about=HOST if s.in_container else None,
    )


@check(
    "container.gid_mismatch",
    "the lab's user is in the groups of the device nodes",
    sides=(CONTAINER,),
    looks_at="`os.getgroups()` against the groups of `/dev/kfd` and the render nodes",
    why="Group names differ between host and container: only numbers count, and each distribution has its own.",
    fix="`make up`, which writes the numbers to `.env` (ROCm-docker#90, ROCm-docker#116, k8s-device-plugin#39)",
    severity=BLOCKS,
    unless=lambda s: s.no_amd,
)
def gid_mismatch(s: Situation) -> Verdict:
    """Compare numbers with numbers."""
    if not s.compute_nodes:
        return skip("no device nodes found")
    if s.uid == 0:
        return ok("uid 0 opens every node")
    missing = _missing(s.compute_nodes, s.groups)
    mine = f"groups of this process: {','.join(map(str, sorted(s.groups)))}"
    if not missing:
        return ok(*map(str, s.compute_nodes), mine)
    fix = (
        "make up      # on the host; docker run: " + " ".join(f"--group-add {gid}" for gid in missing)
        if s.in_container
        else f"sudo usermod -aG {','.join(s.group_name(gid) or str(gid) for gid in missing)} $USER      # log in again"
    )
    return blocks(
        f"the lab's user is not in group {', '.join(map(str, missing))} of the GPU's device nodes",
        "the container was started without these groups, or lost them when it changed the user",
        fix,
        *map(str, s.compute_nodes),
        mine,
    )


def _missing(found: Sequence[Node], groups: frozenset[int]) -> list[int]:
    found = [node for node in found if node.group_may_open]  # to others the group is of no help
    wanted = {node.gid for node in found if node.mode & 0o006 != 0o006}
    return sorted(wanted - groups)


@check(
    "cgroup",
    "the lab's device nodes are those of the host",
    looks_at="`/sys/fs/cgroup`, and the device numbers of the nodes on both sides",
    why="An engine fixes its list of devices when it creates a container. A driver that is loaded again gets another "
    "number, and the old container keeps the old one.",
    fix="`make down && make up`",
    severity=BLOCKS,
)
def cgroup(s: Situation) -> Verdict:
    """Compare device numbers."""
    version = "v2" if s.exists("sys/fs/cgroup/cgroup.controllers") else "v1"
    if s.no_amd:
        return skip(s.no_amd)
    if s.side == CONTAINER or not s.lab_report:
        return ok(f"cgroup {version}; compared from the host while a lab runs")
    inside = {str(node["path"]): node for node in s.lab_report.get("nodes", [])}
    seen, stale = [f"cgroup {version}"], []
    for node in s.compute_nodes:
        other = inside.get(node.path)
        if other is None:
            continue
        here, there = f"{node.major}:{node.minor}", f"{other['major']}:{other['minor']}"
        seen.append(f"{node.path}: host {here}, lab {there}")
        if here != there:
            stale.append(node.path)
    if not stale:
        return ok(*seen)
    return blocks(
        f"{stale[0]} inside the lab is not the host's",
        "the driver was loaded again, or GPUs were added or removed, after the container was created",
        "make down && make up",
        *seen,
    )
