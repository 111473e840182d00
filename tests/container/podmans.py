"""Podman as root and as an ordinary user of this machine, each with a clone of the project of its own."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from clones import Clone, clone
from containers import docker

ROOTLESS_NEEDS = ("newuidmap", "crun", "slirp4netns")
# The private view of one process tree: control groups as version 2 only, which crun wants, and mounts that spread.
UNIFIED = """
mount --make-rshared / && umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"
"""
SLIM = """\
FROM {image} AS full
FROM {base}
COPY --from=full /usr/local/bin /usr/local/bin
COPY --from=full /opt/rocmlab /opt/rocmlab
COPY --from=full /etc/passwd /etc/bash.bashrc /etc/rocmlab-python /etc/
RUN chown root:root /home/jovyan && chmod 755 /home/jovyan
ENV {environment}
WORKDIR /home/jovyan
EXPOSE 8888
ENTRYPOINT ["tini", "-g", "--", "start.sh"]
CMD ["start-notebook.sh"]
"""


def has_hybrid_control_groups() -> bool:
    """Tell a machine with both versions of control groups mounted, where crun refuses to work."""
    return not Path("/sys/fs/cgroup/cgroup.controllers").exists()


def slim_image(image: str, context: Path) -> str:
    """Build the lab without frameworks from the same Dockerfile's layers: all that an engine runs, and small.

    Nothing is installed from an index: the storage of layers forgets those of an installation when it is full,
    and this build knows neither the certificates nor the pip settings of the one before.
    """
    base, slim = f"rocmlab-test/base-layers:{os.getpid()}", f"rocmlab-test/slim:{os.getpid()}"
    image_below = next(line for line in (context / ".env").read_text().splitlines() if line.startswith("BASE_IMAGE="))
    options = ["--target=base", f"--build-arg={image_below}", f"--file={context}/docker/Dockerfile"]
    docker("build", f"--tag={base}", *options, str(context), timeout_seconds=600)
    listed = docker("inspect", "--format", "{{range .Config.Env}}{{println .}}{{end}}", image).split()
    text = SLIM.format(image=image, base=base, environment=" ".join(listed))
    docker("build", f"--tag={slim}", "-", text=text, timeout_seconds=600)
    docker("image", "rm", base)
    return slim


@dataclass
class Host:
    """One user of this machine who has Podman, and that user's clone."""

    lab: Clone
    prefix: list[str]  # what makes a command that user's
    uid: int

    def run(self, *command: str, text: str | None = None, succeeds: bool = True) -> str:
        """Run a command as that user, in the clone, and return what it printed."""
        done = subprocess.run(
            [*self.prefix, *command],
            cwd=self.lab.folder,
            env=self.lab.environment,
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not succeeds or done.returncode == 0, done.stdout + done.stderr
        return done.stdout if succeeds else done.stdout + done.stderr

    def make(self, *words: str, succeeds: bool = True, **settings: str) -> str:
        """Run `make` as that user and return what it printed."""
        flags = [f"{name}={value}" for name, value in {**self.lab.settings, **settings}.items()]
        return self.run("sh", "-c", 'exec 2>&1; exec make "$@"', "sh", *words, *flags, succeeds=succeeds)

    def python(self, program: str, **settings: str) -> str:
        """Run Python with the clone's package as that user."""
        flags = [f"{name}={value}" for name, value in {**self.lab.settings, **settings}.items()]
        return self.run("env", "PYTHONPATH=src", *flags, "python3", "-", text=program)

    def inside(self, *command: str) -> str:
        """Run a command in the running lab as the lab does."""
        return self.run("podman", "exec", f"{self.lab.settings['COMPOSE_PROJECT_NAME']}-lab", "start.sh", *command)

    def command_inside(self, *command: str) -> list[str]:
        """Return what runs one there that reads from its standard input, as this user."""
        name = f"{self.lab.settings['COMPOSE_PROJECT_NAME']}-lab"
        return [
            *self.prefix,
            "env",
            "--unset=DOCKER_CONFIG",
            "podman",
            "exec",
            "--interactive",
            name,
            "start.sh",
            *command,
        ]

    def load(self, slim: str, backend: str = "cpu") -> None:
        """Give this user, whom the image is lent, a copy with the name and label that `make up` looks for.

        So there is nothing to build, and the layers come from Docker once. One that is there stays.
        """
        program = "from rocmlab.stack import project; print(project.plan(project.find()).lab.inputs)"
        inputs = self.python(program, BACKEND=backend).strip()
        name = f"{self.lab.settings['COMPOSE_PROJECT_NAME']}:{backend}"
        wanted = ("--filter", f"label=rocmlab.inputs={inputs}", "--filter", f"reference={name}")
        if self.run("podman", "images", "--quiet", *wanted).strip():
            return
        identity = self.run("podman", "images", "--quiet", slim).strip()
        labels = f"rocmlab.inputs={inputs} rocmlab.backend={backend}"
        text = f"FROM {identity}\nENV ROCMLAB_BACKEND={backend}\nLABEL {labels}\n"
        options = ["--pull=never", "--format=docker", "--layers=false", f"--tag={name}"]
        self.run("podman", "build", *options, "-", text=text)

    def forget(self, backend: str) -> None:
        """Remove the copy for a backend."""
        name = f"{self.lab.settings['COMPOSE_PROJECT_NAME']}:{backend}"
        self.run("podman", "image", "rm", "--force", name, succeeds=False)

    def copy(self, name: str) -> None:
        """Give this user an image that Docker has."""
        with tempfile.NamedTemporaryFile(prefix="rocmlab-image") as file:
            os.chmod(file.name, 0o644)
            docker("save", "--output", file.name, name)
            os.chmod(file.name, 0o644)
            self.run("podman", "load", "--input", file.name)

    @contextmanager
    def lent(self, name: str) -> Iterator[None]:
        """Give this user an image that Docker has, unless it is there, and take it away again."""
        has_it = self.run("podman", "images", "--quiet", name).strip()
        if not has_it:
            self.copy(name)
        try:
            yield
        finally:
            if not has_it:
                self.run("podman", "image", "rm", "--force", name, succeeds=False)


def configuration(folder: Path, oci_runtime: str) -> dict[str, str]:
    """Write Podman's configuration for a machine that may give less than Podman asks for; return the environment.

    Images, containers and locks are in the folder: those of the machine's owner, and what a run that was killed left
    (whose network is gone, so that each `podman ps` fails), are none of the tests'.
    """
    files, processes = (resource.getrlimit(kind)[1] for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC))
    given = {name: min(most, 4096) if most > 0 else 4096 for name, most in (("nofile", files), ("nproc", processes))}
    limits = [f"{name}={most}:{most}" for name, most in given.items()]
    (folder / "containers.conf").write_text(
        f"[containers]\ndefault_ulimits = {limits}\n".replace("'", '"')
        + f'[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "{oci_runtime}"\n'
        + f'tmp_dir = "{folder}/run/libpod"\nlock_type = "file"\n'
    )
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run/storage"\n'
    )
    return {"CONTAINERS_CONF": f"{folder}/containers.conf", "CONTAINERS_STORAGE_CONF": f"{folder}/storage.conf"}


def make_clone(folder: Path, environment: dict[str, str], name: str, base_image: str) -> Clone:
    """Copy the project; it uses Podman and is told nothing else."""
    found = clone(folder / "rocmlab", RUNTIME="podman", BACKEND="cpu", COMPOSE_PROJECT_NAME=name, BASE_IMAGE=base_image)
    found.environment = {key: value for key, value in found.environment.items() if key != "DOCKER_CONFIG"} | environment
    return found


@contextmanager
def rootful(base_image: str) -> Iterator[Host]:
    """Podman as root; with runc where crun refuses the machine's control groups."""
    with tempfile.TemporaryDirectory(prefix="rocmlab-podman") as name:
        folder = Path(name)
        oci_runtime = "runc" if has_hybrid_control_groups() and shutil.which("runc") else "crun"
        project = f"rocmlab-test-root-{os.getpid()}"
        lab = make_clone(folder, configuration(folder, oci_runtime), project, base_image)
        host = Host(lab, [], 0)
        assert host.run("podman", "info", "--format", "{{.Store.GraphRoot}}").strip() == f"{folder}/storage"
        try:
            yield host
        finally:
            host.run("podman", "rm", "--all", "--force", "--time", "0", succeeds=False)
            subprocess.run(["umount", f"{folder}/storage/overlay"], capture_output=True, check=False)


@contextmanager
def rootless(base_image: str, groups: Sequence[int] = ()) -> Iterator[Host]:
    """Podman as a user made for the test, who is in these groups (by number) and is gone afterwards."""
    lacking = [name for name in ROOTLESS_NEEDS if shutil.which(name) is None]
    closed = [path for path in ("/dev/net/tun",) if not Path(path).exists() or os.stat(path).st_mode & 0o006 != 0o006]
    if lacking or closed:
        pytest.skip(f"rootless Podman needs {', '.join([*lacking, *closed])} (nodes: of mode 0666): run .ci/run")
    user = f"rocmlab{os.getpid()}"
    subprocess.run(["useradd", "--create-home", "--shell", "/bin/bash", user], check=True, capture_output=True)
    known = pwd.getpwnam(user)
    folder = Path(tempfile.mkdtemp(prefix="rocmlab-podman"))
    folder.chmod(0o755)
    (folder / "run").mkdir()
    (folder / "storage").mkdir()
    environment = configuration(folder, "crun")
    environment |= {"HOME": known.pw_dir, "USER": user, "LOGNAME": user, "XDG_RUNTIME_DIR": f"{folder}/run"}
    lab = make_clone(folder, environment, f"rocmlab-test-{user}", base_image)
    for path in (folder / "run", folder / "storage", lab.folder, *lab.folder.rglob("*")):
        os.chown(path, known.pw_uid, known.pw_gid, follow_symlinks=False)
    listed = ",".join(map(str, (known.pw_gid, *groups)))
    become = ["setpriv", f"--reuid={known.pw_uid}", f"--regid={known.pw_gid}", f"--groups={listed}", "--"]
    private = ["unshare", "--mount", "bash", "-c", UNIFIED, "bash"] if has_hybrid_control_groups() else []
    host = Host(lab, [*private, *become], known.pw_uid)
    try:
        yield host
    finally:
        host.make("clean", succeeds=False)
        host.run("podman", "system", "reset", "--force", succeeds=False)
        host.run("podman", "system", "migrate", succeeds=False)  # ends the process that holds the user namespace
        subprocess.run(["userdel", "--remove", user], capture_output=True, check=False)
        shutil.rmtree(folder, ignore_errors=True)
