"""A site of one node with Debian's own Slurm, in namespaces of its own: nothing is installed on this machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

from clones import free_port

NEEDED = ("slurmctld", "slurmd", "slurm-client")
PROGRAMS = ("apt-get", "dpkg-deb", "unshare", "mount")

CONFIGURATION = """\
ClusterName=test
SlurmctldHost=node(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
GresTypes=gpu
MinJobAge=3600
SchedulerParameters=batch_sched_delay=0
NodeName=node NodeAddr=127.0.0.1 CPUs=4 RealMemory=4000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=node Default=YES MaxTime=INFINITE State=UP
"""

# Everything ends with the first process of the namespace. The programs lie over /usr, for these processes alone.
BEGIN = """
mount -t overlay overlay -o "lowerdir=$PACKAGES/usr:/usr" /usr
hostname node
slurmctld -c -L "$SITE/slurmctld.log" -D >/dev/null 2>&1 &
slurmd -N node -L "$SITE/slurmd.log" -D >/dev/null 2>&1 &
for _ in $(seq 300); do
  if sinfo -h -o %T 2>/dev/null | grep -q idle; then break; fi
  sleep 0.1
done
"""


def missing() -> str | None:
    """Return why there can be no such site here; None if there can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "Slurm is unpacked and started in namespaces, which needs root"
    absent = [program for program in PROGRAMS if shutil.which(program) is None]
    return f"there is no {', '.join(absent)}: run it on a Debian machine" if absent else None


@functools.cache
def unpacked(folder: Path) -> tuple[Path | None, str]:
    """Return where Debian's packages lie unpacked, or why they are not available."""
    (folder / "cache/archives/partial").mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::Cache={folder}/cache", "-o", "APT::Sandbox::User=root", "-qq", "--no-install-recommends"]
    command = ["apt-get", *options, "--download-only", "-y", "install", *NEEDED]
    got = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    packages = sorted((folder / "cache/archives").glob("*.deb"))
    if got.returncode or not packages:
        return None, f"apt-get cannot download {', '.join(NEEDED)}: {got.stderr.strip()[-300:]}"
    target = folder / "packages"
    for package in packages:
        subprocess.run(["dpkg-deb", "-x", package, target], check=True, timeout=60)
    for name in ("slurmctld", "slurmd", "slurmstepd"):  # which the packages' own scripts would link
        (target / "usr/sbin" / name).symlink_to(f"{name}-wlm")
    return target, ""


def run(folder: Path, packages: Path, script: str, *words: str, seconds: float = 240) -> str:
    """Start the site, run a script of bash there, end everything, and return what the script printed."""
    folder.mkdir()
    (folder / "spool").mkdir()
    (folder / "state").mkdir()
    gpus = [folder / f"gpu{number}" for number in range(2)]
    for gpu in gpus:
        gpu.touch()
    text = CONFIGURATION.format(folder=folder, ports=(free_port(), free_port()))
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    lines = [f"NodeName=node Name=gpu File={gpu}\n" for gpu in gpus]
    (folder / "gres.conf").write_text("".join(lines), encoding="utf-8")
    own = {"SLURM_CONF": str(folder / "slurm.conf"), "PACKAGES": str(packages), "SITE": str(folder)}
    environment = {**os.environ, **own}
    isolated = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "--mount-proc"]
    command = [*isolated, "--propagation", "private", "bash", "-eu", "-c", BEGIN + script, "bash", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
