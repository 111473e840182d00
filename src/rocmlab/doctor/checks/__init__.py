"""Every check, in the order of what blocks most: driver, device nodes, plan, engine, project, GPUs, lab, frameworks."""

from __future__ import annotations

from rocmlab.doctor.checks import driver, engine, frameworks, gpus, lab, masks, nodes, platform, project
from rocmlab.doctor.model import Check

ALL: tuple[Check, ...] = (
    driver.wsl,
    driver.amdgpu,
    driver.secureboot,
    driver.vfio,
    nodes.kfd_exists,
    driver.atomics,
    driver.answers,
    gpus.description,
    nodes.permission,
    nodes.gid_mismatch,
    nodes.render_exists,
    nodes.cgroup,
    project.plan,
    engine.answers,
    engine.compose,
    engine.desktop,
    engine.snap,
    engine.remote,
    engine.rootless,
    project.groupname,
    project.port,
    project.disk,
    project.stale,
    masks.conflict,
    masks.override,
    lab.answers,
    lab.devices,
    lab.groups,
    frameworks.tensorflow_clobbered,
    frameworks.torch_clobbered,
    frameworks.tensorflow_computes,
    frameworks.torch_computes,
    platform.userspace,
    gpus.support,
    platform.shm,
    gpus.integrated,
    masks.kernelspecs,
    engine.selinux,
    platform.iommu,
    gpus.link,
    gpus.large_bar,
    gpus.asleep,
)
BY_ID = {check.id: check for check in ALL}
