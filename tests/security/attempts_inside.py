"""What a notebook in the container, or another user in there, could use to get out or to become more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

from attempts import Attempt, Group
from containers import docker
from targets import Target

STRANGER = "2000:2000"
PRIVILEGED = (  # each needs a capability that the lab must not have
    ("mount a file system", "mount -t tmpfs none /mnt"),
    ("mount /proc again", "mount -t proc none /mnt"),
    ("change the host name", "hostname attack"),
    ("set the clock", "date -s @1 >/dev/null"),
    ("make a device node", "mknod /tmp/attack-node b 8 0"),
    ("make a device node of memory", "mknod /tmp/attack-mem c 1 1"),
    ("listen on a raw socket", "python3 -c 'import socket; socket.socket(17, 3, 3)'"),
    ("load a module", 'python3 -c \'import ctypes; exit(ctypes.CDLL(None).syscall(175, b"", 0, b"") != 0)\''),
    ("write a kernel parameter", "echo 1 > /proc/sys/kernel/sysrq"),
    ("trigger the system", "echo h > /proc/sysrq-trigger"),
    ("write where core dumps go", "echo '|/tmp/x' > /proc/sys/kernel/core_pattern"),
    ("change the root", "chroot / true"),
    ("become root", "setpriv --reuid 0 true"),
    ("take root's group", "setpriv --regid 0 --clear-groups true"),
    ("use su", "su -c true"),
    ("use sudo", "sudo -n true"),
    ("give a file away", "touch /tmp/attack-own && chown 0 /tmp/attack-own"),
    ("kill the first process", "kill -0 1"),
    ("debug the first process", "head -c 1 /proc/1/mem"),
    ("read the first process's environment", "cat /proc/1/environ"),
    ("see its root", "ls /proc/1/root/"),
    ("enter its namespaces", "nsenter -t 1 -m true"),
    ("unshare as root", "unshare --mount true"),
    ("raise a limit", "ulimit -Hn 99999999"),
    ("speed up", "nice -n -5 true 2>&1 | grep -q . && exit 1; nice -n -5 true"),
    ("write the cgroup", "mkdir /sys/fs/cgroup/attack"),
    ("write sysfs", "echo 1 > /sys/kernel/uevent_helper"),
    ("read the kernel's log", "dmesg | grep -q ."),
    ("read the shadow file", "cat /etc/shadow"),
    ("read root's home", "ls /root"),
)
WRITES = (
    "/",
    "/etc",
    "/etc/passwd",
    "/usr/local/bin",
    "/usr/local/bin/start.sh",
    "/usr/local/bin/start-notebook.sh",
    "/usr/local/bin/start-notebook.d",
    "/usr/local/bin/before-notebook.d",
    "/opt/rocmlab",
    "/opt/rocmlab/bin/python",
    "/opt/rocmlab/bin/jupyter-lab",
    "/opt/rocmlab/etc/jupyter",
    "/opt/rocmlab/share/jupyter",
    "/var",
    "/home",
    "/root",
    "/run",
    "/run/secrets",
    "/lib",
    "/proc/sys/kernel/hostname",
    "/dev",
    "/home/jovyan",
)
SOCKETS = ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock")
DEVICES = (
    "/dev/mem",
    "/dev/kmem",
    "/dev/port",
    "/dev/vda",
    "/dev/sda",
    "/dev/nvme0n1",
    "/dev/kmsg",
    "/dev/fuse",
    "/dev/net/tun",
)


MANY = """
import json, subprocess, sys
for command in json.load(sys.stdin):
    try:
        done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=20)
        print("came", json.dumps([done.returncode, done.stdout.decode("utf-8", "replace")[-200:]]))
    except subprocess.TimeoutExpired:
        print("came", json.dumps([124, "it did not end"]))
"""


def came(target: Target, commands: Sequence[str], user: str = "") -> list[tuple[int, str]]:
    """Run commands as a kernel of the lab is run, or as another user; return their exit codes and output."""
    how = ["--user", user] if user else []
    program = ["/opt/rocmlab/bin/python", "-c", MANY]
    words = ["exec", "--interactive", *how, target.container, *([] if user else ["start.sh"]), *program]
    lines = docker(*words, text=json.dumps(list(commands))).splitlines()
    found = [json.loads(line.removeprefix("came ")) for line in lines if line.startswith("came ")]
    assert len(found) == len(commands)
    return [(code, text) for code, text in found]


def _control(target: Target) -> str | None:
    (code, text), *_ = came(
        target, ["id -u; touch /home/jovyan/share/x-attack && rm /home/jovyan/share/x-attack && echo wrote"]
    )
    if code or "wrote" not in text:
        return f"the lab's own user can do nothing: {text}"
    code, text = target.inside("bash", "-c", "cat /etc/shadow >/dev/null && kill -0 1 && chroot / true && echo root")
    return None if "root" in text else f"even root can do nothing: {text}"


def _privileges(target: Target) -> Iterator[Attempt]:
    tries = dict(PRIVILEGED)
    for path in WRITES:
        tries[f"write {path}"] = f"[ -e {path} ] && if [ -d {path} ]; then touch {path}/attack; else exec 3>>{path}; fi"
    tries |= {f"the engine's socket {path}": f"test -e {path}" for path in SOCKETS}
    tries |= {f"the device {path}": f"test -r {path} -o -w {path}" for path in DEVICES}
    tries["a file of root's PATH"] = "find -L $(echo $PATH | tr : ' ') -writable 2>/dev/null | grep ."
    tries["a file of the lab's own environment"] = "find /opt/rocmlab -writable -not -type l | grep ."
    for name, (code, text) in zip(tries, came(target, list(tries.values())), strict=True):
        yield Attempt(name, partial(_does, code, text))
    for line in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Uid"):
        yield Attempt(f"{line} of the server", partial(_status, target, line))


def _does(code: int, text: str) -> str | None:
    return f"exit code 0 {text.strip()[-200:]}" if code == 0 else None


def _status(target: Target, line: str) -> str | None:
    pid = next(process.pid for process in target.processes() if "jupyter-lab" in " ".join(process.cmdline()))
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        (value,) = (text.split()[1] for text in file if text.startswith(f"{line}:"))
    wanted = {"NoNewPrivs": value == "1", "Seccomp": value == "2", "Uid": value != "0"}
    return None if wanted.get(line, int(value, 16) == 0 if line.startswith("Cap") else True) else f"{line} {value}"


# -- another user in the container, and what the engine tells ----------------------------------------------------------

OF_ANOTHER = (
    "cat /proc/{pid}/environ",
    "head -c 1 /proc/{pid}/mem",
    "ls -l /proc/{pid}/fd/",
    "kill -0 {pid}",
    "ls /proc/{pid}/root/",
    "cat /run/secrets/jupyter_token",
    "cat /run/secrets/metrics_token",
    "cat /run/secrets/cluster_token",
    "ls /tmp/jupyter-runtime",
    "cat /tmp/jupyter-runtime/*",
    "ls /home/jovyan/share/home",
    "cat /home/jovyan/share/home/.bash_history",
    "touch /home/jovyan/work/attack-other",
    "touch /home/jovyan/share/attack-other",
    "touch /home/jovyan/share/home/attack-other",
    "touch /home/jovyan/share/runs/attack-other",
    "touch /home/jovyan/share/cache/attack-other",
    "touch /home/jovyan/attack-other",
    "touch /opt/torch/attack-other",
    "cat /home/jovyan/share/runs/*/*.log",
    "cat /home/jovyan/share/runs/*/*.ipynb",
)


def _control_another(target: Target) -> str | None:
    (code, text), *_ = came(target, ["id -u; ls -d /home/jovyan/share; cat /etc/hostname"], STRANGER)
    return None if code == 0 and "2000" in text else f"there is no such user: {text}"


def _another(target: Target) -> Iterator[Attempt]:
    pid = target.inside("pgrep", "--oldest", "--full", "jupyter-lab")[1].split()[0]
    tries = [command.format(pid=pid) for command in OF_ANOTHER]
    address = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:8888{}\")'"
    tries += [address.format(path) for path in ("/api/kernels", "/rocmlab/api/kernels", "/api/contents")]
    for command, (code, text) in zip(tries, came(target, tries, STRANGER), strict=True):
        yield Attempt(f"another user: {command}", partial(_does, code, text))
    described = json.loads(docker("inspect", target.container))[0]
    host = described["HostConfig"]
    told = {
        "it is privileged": host["Privileged"],
        "it has the host's processes": host["PidMode"] == "host",
        "it has the host's network": host["NetworkMode"] == "host",
        "it has the host's IPC": host["IpcMode"] == "host",
        "it has the host's users": host["UsernsMode"] == "host",
        "it has more capabilities": host["CapAdd"],
        "a folder of the engine is mounted": [each for each in described["Mounts"] if "docker.sock" in each["Source"]],
        "a port is published beyond the loopback": [
            each for ports in host["PortBindings"].values() for each in ports if each["HostIp"] != "127.0.0.1"
        ],
        "it may use any number of processes": (host["PidsLimit"] or 0) <= 0,
        "its log may grow for ever": not host["LogConfig"]["Config"].get("max-size"),
    }
    for name, value in told.items():
        yield Attempt(name, partial(_is_so, value))
    text = json.dumps(described)
    for name, value in target.secrets.items():
        yield Attempt(f"`docker inspect` shows {name}", partial(_is_so, value in text))
    history = docker("history", "--no-trunc", described["Image"])
    for name, value in target.secrets.items():
        yield Attempt(f"a layer of the image shows {name}", partial(_is_so, value in history))


def _is_so(value: object) -> str | None:
    return str(value) if value else None


GROUPS = (
    Group("out of the container", "a notebook gets more than its user has", _control, _privileges, ("container",)),
    Group("another user in the container", "the lab's secrets or files", _control_another, _another, ("container",)),
)
