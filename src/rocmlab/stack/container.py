"""A lab in a container, whichever engine runs it: what Docker's and Podman's labs have in common."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import ports, ray_node, record
from rocmlab.cluster.node.record import Record
from rocmlab.stack import container_port, envfile, process, rescue, server, shipped, source
from rocmlab.stack.lab import Lab, Say, not_answering
from rocmlab.stack.process import EngineSilent
from rocmlab.stack.progress import BuildProgress, PullProgress
from rocmlab.stack.server import Holder
from rocmlab.stack.settings import Settings
from rocmlab.stack.sockets import Listener

NEEDED_BYTES = {"rocm": 60e9, "cuda": 25e9, "cpu": 8e9}  # for the base image unpacked and our layers
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")  # which the build needs as well
PASSED_INTO_THE_LAB = (  # where `.env` has them; the same as those of compose.yaml's `environment`, but for proxies
    *("ALLOWED_HOSTS", "AMD_LOG_LEVEL", "GPU_MAX_HW_QUEUES", "HF_TOKEN"),
    *("HIP_VISIBLE_DEVICES", "HSA_ENABLE_SDMA"),
    *("HSA_OVERRIDE_GFX_VERSION", "MIOPEN_FIND_MODE", "NB_UMASK", "NCCL_DEBUG", "ROCR_VISIBLE_DEVICES", "TZ"),
    *(f"HSA_OVERRIDE_GFX_VERSION_{node}" for node in range(1, 10)),
)
UNREACHABLE = re.compile(
    r"no such host|timeout|connection refused|network is unreachable|TLS handshake|dial tcp|certificate", re.I
)


class BaseImageUnreachable(RocmlabError):
    """No registry answers, so a host without a GPU can go on natively."""


class ContainerLab(Lab):
    """One container with JupyterLab, made from the project's Dockerfile."""

    program = ""  # the engine's command
    terminal_flags: tuple[str, ...] = ()  # of its `run`: with a terminal
    piped_flags: tuple[str, ...] = ()  # without one
    stdin_flags: tuple[str, ...] = ()  # with standard input, and no terminal
    product = ""  # its name, in messages
    owner_label = ""  # of the container: its project folder
    root_template = ""  # of its `info`: where it keeps images and volumes

    def __init__(self, settings: Settings, values: dict[str, str], engine_root: str = "") -> None:
        super().__init__(settings, values)
        self.engine_root = engine_root  # where the engine keeps images
        self.backend = values["ROCMLAB_BACKEND"]
        self.image = values["ROCMLAB_IMAGE"]
        self.has_built = False  # by this very process
        self.sockets_inside: set[Listener] = set()  # that listen on PORT in the host's network, and are the container's

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of every call of the engine: ours, with the settings in force on top.

        What is passed into the lab comes from `.env` alone: a variable that happens to be set in this terminal and not
        in the next one would make each `make up` a new container.
        """
        kept = {name: value for name, value in os.environ.items() if name not in PASSED_INTO_THE_LAB}
        return {**kept, **self.values}

    @property
    def inputs(self) -> str:
        """A digest of all the image is made from; the image carries it as the label `rocmlab.inputs`."""
        names = ("BASE_IMAGE", "TORCH_INDEX", "JAX_PACKAGES", "ROCMLAB_BACKEND")
        facts = {name: self.values.get(name, "") for name in names}
        facts |= {"CLUSTER": "1"} if self.settings.is_in_cluster else {}
        return source.digest(self.settings.project, source.IMAGE_SOURCES, facts)

    def engine(self, *arguments: str, timeout_seconds: float = 60) -> tuple[int, str]:
        """Run a short command of the engine; see `process.capture`."""
        return process.capture([self.program, *arguments], env=self.environment, timeout_seconds=timeout_seconds)

    # -- image ---------------------------------------------------------------------------------------------------

    def is_prepared(self) -> bool:
        """Return whether the image is built from exactly the present files and base."""
        code, label = self.engine(
            "image", "inspect", "--format", '{{index .Config.Labels "rocmlab.inputs"}}', self.image
        )
        return code == 0 and label.strip() == self.inputs

    def is_built(self) -> bool:
        """Return whether any version of the image is here."""
        return self.image_id(self.image) != ""

    def disk(self) -> Path:
        """Return the folder where the engine keeps images."""
        return Path(self.engine_root) if self.engine_root else self.settings.project

    def folders(self) -> list[Path]:
        """Return the share, or where the engine keeps volumes, and the notebooks."""
        project, share = self.settings.project, self.values["SHARE"]
        notebooks = project / Path(self.settings.get("NOTEBOOKS_DIR")).expanduser()
        return [project / Path(share).expanduser() if "/" in share else self._volumes_folder(), notebooks]

    def _volumes_folder(self) -> Path:
        if self.engine_root:
            return self.disk()
        code, output = self.engine("info", "--format", self.root_template, timeout_seconds=10)
        return Path(output.strip()) if code == 0 and output.strip() else self.disk()

    def has_base(self) -> bool:
        """Return whether the base image is here."""
        return self.image_id(self.values["BASE_IMAGE"]) != ""

    def image_id(self, name: str) -> str:
        """Return an image's id, empty if it is not here."""
        code, output = self.engine("image", "inspect", "--format", "{{.Id}}", name)
        return output.strip() if code == 0 else ""

    @property
    def previous_image(self) -> str:
        """The name of the image before the present one."""
        return f"{self.image}-previous"

    @property
    def healthy(self) -> Path:
        """The file with the id of the image whose lab has answered last."""
        return self.settings.state / "healthy-image"

    def keep_previous(self, image: str) -> None:
        """Keep an image as the previous one, unless another one has worked and this one has not."""
        known = envfile.read(self.healthy).strip()
        if image and known in ("", image):
            self.engine("tag", image, self.previous_image)

    def exchange_images(self) -> None:
        """Give the previous image the name of the present one, and vice versa.

        Raises:
            RocmlabError: there is no previous image, or the engine reports an error.
        """
        present, previous = self.image_id(self.image), self.image_id(self.previous_image)
        if not previous:
            raise RocmlabError(f"the image {self.previous_image} is not here", "it was removed", "make up")
        self.name_images(previous, present)

    def name_images(self, present: str, previous: str) -> None:
        """Name two images by their ids, but for empty ones; raise RocmlabError if the engine does not."""
        for image, name in ((present, self.image), (previous, self.previous_image)):
            code, output = self.engine("tag", image, name) if image else (0, "")
            if code:
                raise RocmlabError(f"the image {image} could not be named {name}", output.strip()[-400:], "make up")

    def prepare(self, say: Say, *, always: bool = False) -> None:
        """Build the image unless it is current, or `always`, for what the digest leaves out (the notebooks' copy).

        Raises:
            RocmlabError: the base image could not be pulled, the disk is too full, or the build failed.
        """
        self._hand_over_notebooks(say)
        if self.is_prepared() and not always:
            return
        self.check_disk()
        self._pull_base(say)
        say(f"building image {self.image} on {self.values['BASE_IMAGE']}")
        log = self.settings.state / "build.log"
        created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.environment |= {"INPUTS": self.inputs, "ROCMLAB_VERSION": __version__, "ROCMLAB_CREATED": created}
        code, revision = process.capture(["git", "-C", str(self.settings.project), "rev-parse", "HEAD"])
        self.environment["ROCMLAB_REVISION"] = revision.strip() if code == 0 else ""
        self.keep_previous(self.image_id(self.image))
        dockerfile = self.settings.project / "docker/Dockerfile"
        show = self._progress(dockerfile.read_text(encoding="utf-8"))
        command = self._build_command()
        code, last = process.follow(command, log=log, show=show, env=self.environment, cwd=self.settings.project)
        if code:
            reason = show.error(last)
            raise RocmlabError(
                f"building {self.image} failed",
                reason,
                f"fix the error above, then `make up`; complete log: {log}",
            )
        say(f"image {self.image} is built")
        self.has_built = True  # what has lost its name is removed when the new one's lab has answered

    def _hand_over_notebooks(self, say: Say) -> None:
        """Let the lab's user save the project's own notebooks, where root cloned them; see `shipped`."""
        ids = [self.values.get(name, "") for name in ("NB_UID", "NB_GID")]
        if all(text.isdigit() for text in ids):  # else start.sh reports what is wrong
            chosen = self.settings.project / os.path.expanduser(self.values["NOTEBOOKS_DIR"])
            shipped.hand_over(self.settings, chosen, int(ids[0]), int(ids[1]), say)

    def _progress(self, dockerfile: str) -> BuildProgress:
        """Return what makes a few lines of a build's many."""
        return BuildProgress(dockerfile)

    @abstractmethod
    def _build_command(self) -> list[str]:
        """Return the command that builds the image, with plain progress."""

    def _prune(self) -> None:
        """Remove our images that have lost their name to a newer one and are used by no container."""
        self.engine("image", "prune", "--force", "--filter", f"label=rocmlab.backend={self.backend}")

    def check_disk(self) -> None:
        """Raise RocmlabError unless what has still to be pulled and built fits on the engine's disk."""
        if self.is_built() or not Path(self.engine_root).exists():
            return  # only our layers change, or the engine's disk cannot be seen from here
        needed, free = NEEDED_BYTES[self.backend], shutil.disk_usage(self.engine_root).free
        needed = min(needed, 8e9) if self.has_base() else needed
        if free < needed:
            raise RocmlabError(
                f"the disk of {self.product} has {free / 1e9:.0f} GB free",
                f"{self.engine_root} needs about {needed / 1e9:.0f} GB for the {self.backend} image",
                f"{self.program} system prune, or move the engine's storage to a larger disk",
            )

    def _pull_base(self, say: Say) -> None:
        base = self.values["BASE_IMAGE"]
        if self.has_base():
            return
        say(f"pulling {base}")
        shown = PullProgress()
        code, last = process.follow(
            [self.program, "pull", base], log=self.settings.state / "pull.log", show=shown, env=self.environment
        )
        if code == 0:
            return
        last_line = last[-1] if last else f"{self.program} pull: no output"
        if UNREACHABLE.search(last_line):
            raise BaseImageUnreachable(
                f"could not pull the base image {base}",
                f"no image registry answers: {last_line}",
                f"check the network, or choose a local image ({self.program} images): make up BASE_IMAGE=name:tag",
            )
        raise RocmlabError(
            f"could not pull the base image {base}", last_line, "choose another one: make up BASE_IMAGE=name:tag"
        )

    # -- container -----------------------------------------------------------------------------------------------

    @abstractmethod
    def _filters(self) -> list[str]:
        """Return the options with which the engine's `ps` lists the lab's container alone."""

    def _list(self, *, running_only: bool) -> list[str]:
        return ["ps", "--quiet", "--no-trunc", *self._filters(), *([] if running_only else ["--all"])]

    def container(self, *, running_only: bool = True) -> str | None:
        """Return the id of the lab's container, or None; None also where the engine does not answer."""
        code, output = self.engine(*self._list(running_only=running_only))
        return output.split()[0] if code == 0 and output.split() else None

    def query(self, *arguments: str, timeout_seconds: float = 60) -> str:
        """Return what the engine answers; raise EngineSilent if it fails or does not answer in time."""
        code, output = self.engine(*arguments, timeout_seconds=timeout_seconds)
        if code:
            raise EngineSilent(
                f"the engine does not answer `{self.program} {arguments[0]}`",
                output.strip()[-400:] or f"exit code {code}",
                f"check that `{self.program} ps` answers, then retry",
            )
        return output

    def known_container(self, *, running_only: bool = True) -> str | None:
        """Return the id of the lab's container, or None if there is none: for what would end or remove it.

        Raises:
            EngineSilent: the engine does not answer.
        """
        found = self.query(*self._list(running_only=running_only)).split()
        return found[0] if found else None

    @abstractmethod
    def _remove(self) -> tuple[int, str]:
        """Remove the container and its network; return the engine's exit code and its output."""

    def stop(self, say: Say) -> None:
        """Remove the container and its network; the volume stays."""
        self._rescue(say)
        code, output = self._remove()
        if code:
            fix = f"{self.program} ps, then retry: make down"
            raise RocmlabError("the lab could not be stopped", output.strip()[-400:], fix)

    @abstractmethod
    def _bring_up(self) -> tuple[int, str]:
        """Bring the container to the configured state; return the engine's exit code and what it printed."""

    def _check_owner(self) -> None:
        """Make sure that the container of our name is ours, and not that of a clone that was copied with its `.env`."""
        container = self.known_container(running_only=False)
        owner = self._label(container, self.owner_label) if container else ""
        if owner and Path(owner).resolve() != self.settings.project.resolve() and Path(owner, "compose.yaml").exists():
            name = self.values["COMPOSE_PROJECT_NAME"]
            raise RocmlabError(
                f"the lab {name} belongs to the clone {owner}",
                "both have the same COMPOSE_PROJECT_NAME in .env, as after a copy of the whole folder",
                f"make up COMPOSE_PROJECT_NAME={name}-2 PORT={self.port + 1}",
            )

    def _label(self, container: str, name: str) -> str:
        return self.query("inspect", "--format", f'{{{{index .Config.Labels "{name}"}}}}', container).strip()

    @abstractmethod
    def _is_current(self, container: str) -> bool:
        """Return whether a container is what the settings and the present image ask for, and not an earlier one."""

    @abstractmethod
    def _once(self, *arguments: str, flags: Sequence[str] = ()) -> tuple[list[str], Mapping[str, str]]:
        """Return the command that runs something in a container of its own, and the environment of that command."""

    def _run_once(self, arguments: Sequence[str], *, has_terminal: bool) -> int:
        """Run `rocmlab <arguments>` in a container of its own."""
        flags = self.terminal_flags if has_terminal else self.piped_flags
        command, environment = self._once("rocmlab", *arguments, flags=flags)
        return process.attach(command, env=environment, cwd=self.settings.project)

    def _rescue(self, say: Say) -> None:
        """Keep what a container of an earlier version has in its own layer; before any container is removed."""
        if container := self.known_container(running_only=False):
            rescue.take(self.engine, self.query, self.program, container, self.settings.state, say)

    def _adopt(self, say: Say) -> None:
        """Move what earlier versions kept outside the share into the home on the share."""
        arguments = ("/opt/rocmlab/bin/python", "-m", "rocmlab.stack.homes")
        rescue.give(*self._once(*arguments, flags=self.stdin_flags), self.settings.state, say)

    def is_running(self) -> bool:
        """Return whether the container runs."""
        return self.container() is not None

    def is_current(self) -> bool:
        """Return whether the container runs with these settings and the present image."""
        container = self.container()
        return container is not None and self._is_current(container)

    def is_known_to_run(self) -> bool:
        """Return whether the container runs; raise EngineSilent if the engine does not answer."""
        return self.known_container() is not None

    def one_off_containers(self) -> list[str]:
        """Return the ids of running containers of single runs that end with the lab; may raise EngineSilent."""
        return []

    def is_restarting(self) -> bool:
        """Return whether the engine is starting the container again, because it exited by itself."""
        container = self.container(running_only=False)
        code, output = self.engine("inspect", "--format", "{{.State.Restarting}}", container or "")
        return code == 0 and output.strip() == "true"

    def capture_inside(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a short program in the running container."""
        return self.engine("exec", self.container() or "", *command, timeout_seconds=15)

    def start(self, say: Say, *, force: bool = False) -> bool:
        """Bring the container to the configured state and wait until JupyterLab answers.

        `force` also stops and starts a lab that runs as configured and does not answer.

        Returns:
            Whether a container was started.

        Raises:
            EngineSilent: the engine does not answer; nothing was changed.
            RocmlabError: the port is taken, the engine refuses, or the lab dies at start; nothing that this call has
                started is left running. Or the lab ran before as configured and does not answer; it runs on.
        """
        self._check_owner()
        if not server.is_free(self.port) and not self._publishes_port():
            server.check_free(self.port)
        self._rescue(say)
        self._adopt(say)
        before = self._started()
        code, output = self._bring_up()
        if code:
            self._undo(before)
            raise self._refusal(output)
        restarts = self._restarts()
        if server.wait(self.port, self.answers, lambda: self._lives(restarts)):
            if self.has_built:  # the container of the image before this one is gone now
                self._prune()
            if (image := self.image_id(self.image)) != envfile.read(self.healthy).strip():
                envfile.write(self.healthy, image + "\n")
            return self._is_another(before)
        container = self.container(running_only=False)
        last = self.engine("logs", "--tail", "15", container)[1].strip() if container else "the container was removed"
        if self._undo(before):
            raise RocmlabError(
                "JupyterLab exited during startup", f"last log lines:\n{last}", "fix the error above, then `make up`"
            )
        if not force:
            raise not_answering(f"last log lines:\n{last}")
        self.stop(say)
        return self.start(say)

    def _undo(self, before: str) -> bool:
        """Remove what this call has started, and return True; a container that ran before it, untouched, runs on."""
        with suppress(RocmlabError):  # the engine does not answer: the caller knows what is wrong
            if before and before == self._started() and not self.is_restarting():
                return False
            self.stop(lambda _: None)
        return True

    def _started(self) -> str:
        """Return which container runs, and since when; an error if the engine does not answer."""
        container = self.known_container()
        return self.query("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container) if container else ""

    def _is_another(self, before: str) -> bool:
        """Return whether this call has started the container that runs; True where the engine does not answer."""
        try:
            return before != self._started()
        except EngineSilent:
            return True

    def _restarts(self) -> str | None:
        """Return how often the engine has restarted the container, as it does where start.sh reports an error.

        None: the engine does not answer.
        """
        try:
            container = self.known_container(running_only=False)
            return self.query("inspect", "--format", "{{.RestartCount}}", container).strip() if container else ""
        except EngineSilent:
            return None

    def _lives(self, restarts: str | None) -> bool:
        """Return whether the container runs and was not restarted; True where the engine does not answer."""
        try:
            if self.known_container() is None:
                return False
        except EngineSilent:
            return True
        now = self._restarts()
        return None in (restarts, now) or now == restarts

    def _publishes_port(self) -> bool:
        return container_port.find(self.engine, self.container(), self.port) != container_port.CLOSED

    def _listening(self) -> Holder:
        return container_port.holder(
            self.engine, self.container, self.port, self.settings.state, self.values, self.sockets_inside
        )

    def _refusal(self, output: str) -> RocmlabError:
        last_line = output.strip().splitlines()[-1] if output.strip() else f"{self.program}: no output"
        if "gathering device information" in last_line or re.search(r"stat /dev/\S+: no such file", last_line):
            return RocmlabError(
                "the engine cannot pass a GPU's device node",
                last_line,
                "make doctor shows which node is missing and why; then `make up`",
            )
        if "CDI device" in last_line:
            return RocmlabError(
                "the engine does not know the GPU by its CDI name",
                last_line,
                "sudo scripts/rocmlab cdi --output /etc/cdi/amd.json, then `make up`\n"
                "or, without CDI: make up GPU_PASSTHROUGH=nodes",
            )
        return RocmlabError("the engine could not start the lab", last_line, "fix the error above, then `make up`")

    def clean(self, say: Say) -> None:
        """Stop the lab and remove its image; the share stays."""
        self.stop(say)
        self.engine("image", "rm", "--force", self.previous_image)
        code, _ = self.engine("image", "rm", "--force", self.image)
        say(f"removed image {self.image}" if code == 0 else f"no image {self.image} to remove")
        if "/" not in self.values["SHARE"]:
            remove = f"{self.program} volume rm {self.volume}"
            say(f"kept the volume {self.volume} (remove it and all results with: {remove})")

    # -- inside --------------------------------------------------------------------------------------------------

    def inside(self) -> tuple[list[str], Mapping[str, str]] | None:
        """Return what runs rocmlab in the running container as the lab's own user, or None where none runs."""
        container = self.container()
        if container is None:
            return None
        return [self.program, "exec", container, "start.sh", "rocmlab"], self.environment

    def node_record(self) -> Record | None:
        """Return what the lab's Ray node says of itself; None where it says nothing."""
        folder = ray_node.usual_folder(ports.parse(self.settings.get("CLUSTER_PORT")), int(self.values["NB_UID"]))
        code, text = self.engine("exec", self.container() or "", "cat", f"{folder}/node.json")
        return record.parse(text) if code == 0 else None

    def run(self, arguments: Sequence[str]) -> int:
        """Run `rocmlab <arguments>` in the running lab, or in a container of its own if the lab is down."""
        has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        container = self.container()
        if container and self._is_current(container):
            return self._run_in(container, arguments, has_terminal=has_terminal)
        return self._run_once(arguments, has_terminal=has_terminal)

    def _run_in(self, container: str, arguments: Sequence[str], *, has_terminal: bool) -> int:
        """Run in a running container; without a terminal `exec` passes no signals on, so we do."""
        if has_terminal:
            command = [self.program, "exec", "--interactive", "--tty", container, "start.sh", "rocmlab", *arguments]
            return process.attach(command, env=self.environment)
        record = f"/tmp/rocmlab-run-{secrets.token_hex(8)}"
        program = 'echo $$ >"$0" && exec rocmlab "$@"'
        command = [self.program, "exec", container, "start.sh", "bash", "-c", program, record, *arguments]
        try:
            return process.attach(command, env=self.environment, interrupt=lambda: self._terminate(container, record))
        finally:
            self.engine("exec", container, "rm", "-f", record)

    def _terminate(self, container: str, record: str) -> None:
        self.engine("exec", container, "bash", "-c", 'kill -TERM "$(cat "$0")"', record)

    def shell(self) -> int:
        """Open a login shell in the running lab."""
        container = self.container()
        if container is None:
            raise RocmlabError("the lab is not running", "a shell needs its container", "make up")
        return process.attach(
            [self.program, "exec", "--interactive", "--tty", container, "start.sh", "bash"], env=self.environment
        )

    def logs(self, follow: bool) -> int:
        """Print the container's log."""
        container = self.container(running_only=False)
        if container is None:
            raise RocmlabError("no log found", "the lab's container was removed, and its log with it", "make up")
        return process.attach(
            [self.program, "logs", *(["--follow"] if follow else []), container], env=self.environment
        )

    @property
    def volume(self) -> str:
        """The volume's full name, where the share is one."""
        return f"{self.values['COMPOSE_PROJECT_NAME']}_{self.values['SHARE']}"

    @property
    def copy_out(self) -> str:
        """The command that copies the runs from the share to the project folder."""
        return "docker compose cp lab:/home/jovyan/share/runs ./runs"

    def share(self) -> str:
        """Say where the share is."""
        share = self.values["SHARE"]
        if "/" in share:
            return str((self.settings.project / share).resolve())
        return f"{self.product} volume {self.volume}"
