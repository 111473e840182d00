"""Run as another user of the host: each action of the JSON list on stdin is tried, and what came of it is printed.

Standard library only, and any Python 3: it runs under the system's interpreter, whatever that is. Actions change
nothing where they can show access without it: files are opened for writing and not written, processes get SIGCONT.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import sys

WAIT_SECONDS = 3.0
READ_BYTES = 4_000_000


def read(path):
    """Return what a file holds."""
    with open(path, "rb") as file:
        return file.read(READ_BYTES).decode("utf-8", "replace") or "(empty)"


def overwrite(path):
    """Open a file for writing, and leave it as it is."""
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    return "opened for writing"


def create(path):
    """Make a new file."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return "created"


def listing(path):
    """Return the names in a folder."""
    return " ".join(os.listdir(path)) or "(empty)"


def link(path):
    """Put a symbolic link somewhere."""
    os.symlink("/etc/passwd", path)
    return "linked"


def rename(path):
    """Rename something, and back again."""
    os.rename(path, path + ".stolen")
    os.rename(path + ".stolen", path)
    return "renamed"


def remove(path):
    """Remove a file."""
    os.unlink(path)
    return "removed"


def mode(path):
    """Change the mode of something to what it is."""
    os.chmod(path, os.stat(path).st_mode & 0o7777)
    return "mode changed"


def lock(path):
    """Take the lock on a file, alone."""
    descriptor = os.open(path, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return "locked"


def target(path):
    """Return where a link of /proc leads."""
    return os.readlink(path)


def send_signal(pid):
    """Send a signal that does no harm."""
    os.kill(int(pid), signal.SIGCONT)
    return "a signal was delivered"


def trace(pid):
    """Attach to a process as a debugger does."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, int(pid), None, None):  # PTRACE_ATTACH
        raise OSError(ctypes.get_errno(), "ptrace")
    os.waitpid(int(pid), 0)
    libc.ptrace(17, int(pid), None, None)  # PTRACE_DETACH
    return "attached"


def limit(pid):
    """Set a limit of a process to what it is."""
    resource.prlimit(int(pid), resource.RLIMIT_NOFILE, resource.prlimit(int(pid), resource.RLIMIT_NOFILE))
    return "limit set"


def nice(pid):
    """Change how a process is scheduled."""
    os.setpriority(os.PRIO_PROCESS, int(pid), os.getpriority(os.PRIO_PROCESS, int(pid)))
    return "priority set"


def memory(pid):
    """Read from a process's memory."""
    with open(f"/proc/{int(pid)}/maps") as maps:
        start = int(maps.readline().partition("-")[0], 16)
    with open(f"/proc/{int(pid)}/mem", "rb") as file:
        file.seek(start)
        return file.read(16).hex()


def unix(address):
    """Connect to a socket of this host by its path, or its abstract name, which begins with @."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WAIT_SECONDS)
        client.connect("\0" + address[1:] if address.startswith("@") else address)
        return "connected"


def tcp(address):
    """Connect to a port, say nothing that is a secret, and return what it answers."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_SECONDS) as client:
        client.sendall(b"GET /api/status HTTP/1.0\r\n\r\n")
        return client.recv(4096).decode("utf-8", "replace")


def zmtp(address):
    """Push messages to a socket of ZeroMQ, as a process that a kernel has forked would: here with guessed passwords."""
    where, _, text = address.partition(" ")
    host, _, port = where.rpartition(":")
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH"
    header = json.dumps({"msg_type": "stream", "msg_id": "1", "session": "1", "username": "x", "version": "5.3"})
    content = json.dumps({"name": "stdout", "text": text})
    with socket.create_connection((host, int(port)), WAIT_SECONDS) as client:
        client.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x04" + bytes([len(ready)]) + ready)
        for password in (b"", bytes(16), b"\xff" * 16, b"None"):
            parts = (password, b"stream", b"<IDS|MSG>", b"", header.encode(), b"{}", b"{}", content.encode())
            for number, part in enumerate(parts):
                client.sendall(bytes([number < len(parts) - 1, len(part)]) + part)
        return client.recv(4096).hex()


def main():
    """Try each action."""
    known = {each.__name__: each for each in (read, overwrite, create, listing, link, rename, remove, mode, lock)}
    known.update((each.__name__, each) for each in (target, send_signal, trace, limit, nice, memory, unix, tcp, zmtp))
    came = []
    for name, argument in json.load(sys.stdin):
        try:
            came.append({"did": known[name](argument), "error": None})
        except (OSError, ValueError) as err:
            came.append({"did": None, "error": f"{type(err).__name__}: {err}"})
    json.dump(came, sys.stdout)


if __name__ == "__main__":
    main()
