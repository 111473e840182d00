"""The lab in a container, by way of `docker compose` and the files of this project."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from rocmlab import __version__
from rocmlab.errors import RocmlabError
from rocmlab.stack import fingerprint, process, server
from rocmlab.stack.engine import Engine
from rocmlab.stack.lab import Say
from rocmlab.stack.progress import BuildProgress, PullProgress
from rocmlab.stack.settings import Settings

NEEDED_BYTES = {"rocm": 60e9, "cuda": 25e9, "cpu": 8e9}  # for the base image unpacked and our layers
SERVICE = "lab"
PASSED_INTO_THE_LAB = {  # those of compose.yaml's `environment`, but for proxies, which the build needs as well
    *("AMD_LOG_LEVEL", "GPU_MAX_HW_QUEUES", "HF_TOKEN", "HIP_VISIBLE_DEVICES", "HSA_ENABLE_SDMA"),
    *("HSA_OVERRIDE_GFX_VERSION", "MIOPEN_FIND_MODE", "NB_UMASK", "NCCL_DEBUG", "ROCR_VISIBLE_DEVICES", "TZ"),
}
UNREACHABLE = re.compile(
    r"no such host|timeout|connection refused|network is unreachable|TLS handshake|dial tcp|certificate", re.I
)


class DockerLab:
    """The service `lab` of compose.yaml and its overlays."""

    def __init__(self, settings: Settings, values: dict[str, str], engine: Engine) -> None:
        self.settings = settings
        self.values = values  # every variable the Compose files read
        self.engine = engine
        self.backend = values["ROCMLAB_BACKEND"]
        self.image = values["ROCMLAB_IMAGE"]
        self.port = int(values["PORT"])
        self.token = values["JUPYTER_TOKEN"]
        self.has_built = False  # by this very process

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of every `docker` call: ours, with the settings in force on top.

        What Compose passes into the lab comes from `.env` alone: a variable that happens to be set in this terminal and
        not in the next one would make each `make up` a new container.
        """
        kept = {name: value for name, value in os.environ.items() if name not in PASSED_INTO_THE_LAB}
        return {**kept, **self.values}

    @property
    def inputs(self) -> str:
        """A digest of all the image is made from; the image carries it as the label `rocmlab.inputs`."""
        facts = {name: self.values.get(name, "") for name in ("BASE_IMAGE", "TORCH_INDEX", "ROCMLAB_BACKEND")}
        return fingerprint.digest(self.settings.project, fingerprint.IMAGE_SOURCES, facts)

    def _docker(self, *arguments: str, timeout_seconds: float = 60) -> tuple[int, str]:
        return process.capture(["docker", *arguments], env=self.environment, timeout_seconds=timeout_seconds)

    def _compose(self, *arguments: str) -> list[str]:
        return ["docker", "compose", "--project-directory", str(self.settings.project), *arguments]

    # -- image ---------------------------------------------------------------------------------------------------

    def is_prepared(self) -> bool:
        """Tell whether the image is built from exactly the present files and base."""
        code, label = self._docker(
            "image", "inspect", "--format", '{{index .Config.Labels "rocmlab.inputs"}}', self.image
        )
        return code == 0 and label.strip() == self.inputs

    def has_image(self) -> bool:
        """Tell whether any version of the image is here."""
        return self._docker("image", "inspect", "--format", "{{.Id}}", self.image)[0] == 0

    def has_base(self) -> bool:
        """Tell whether the base image is here."""
        return self._docker("image", "inspect", "--format", "{{.Id}}", self.values["BASE_IMAGE"])[0] == 0

    def prepare(self, say: Say, *, always: bool = False) -> None:
        """Build the image unless it is current, or `always`, for what the digest leaves out (the notebooks' copy).

        Raises:
            RocmlabError: the base image cannot be had, the disk is too full, or the build failed.
        """
        if self.is_prepared() and not always:
            return
        self._check_disk()
        self._pull_base(say)
        say(f"building image {self.image} on {self.values['BASE_IMAGE']}")
        log = self.settings.state / "build.log"
        created = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.environment |= {"INPUTS": self.inputs, "ROCMLAB_VERSION": __version__, "ROCMLAB_CREATED": created}
        code, revision = process.capture(["git", "-C", str(self.settings.project), "rev-parse", "HEAD"])
        self.environment["ROCMLAB_REVISION"] = revision.strip() if code == 0 else ""
        dockerfile = self.settings.project / "docker/Dockerfile"
        show = BuildProgress(dockerfile.read_text(encoding="utf-8"))
        code, last = process.follow(
            self._compose("--progress", "plain", "build", SERVICE),
            log=log,
            show=show,
            env=self.environment,
            cwd=self.settings.project,
        )
        if code:
            reason = show.error(last)
            raise RocmlabError(
                f"building {self.image} failed",
                reason,
                f"mend that and run `make up` again; everything printed: {log}",
            )
        say(f"image {self.image} is built")
        self.has_built = True
        self._prune()

    def _prune(self) -> None:
        """Remove images of ours that have lost their name to a newer one and are used by no container."""
        self._docker("image", "prune", "--force", "--filter", f"label=rocmlab.backend={self.backend}")

    def _check_disk(self) -> None:
        if self.has_image() or not Path(self.engine.root).exists():
            return  # only our layers change, or the engine's disk cannot be seen from here
        needed, free = NEEDED_BYTES[self.backend], shutil.disk_usage(self.engine.root).free
        needed = min(needed, 8e9) if self.has_base() else needed
        if free < needed:
            raise RocmlabError(
                f"the disk of the Docker engine has {free / 1e9:.0f} GB free",
                f"{self.engine.root} needs about {needed / 1e9:.0f} GB for the {self.backend} image",
                "docker system prune, or move the engine's data-root to a larger disk",
            )

    def _pull_base(self, say: Say) -> None:
        base = self.values["BASE_IMAGE"]
        if self.has_base():
            return
        say(f"pulling {base}")
        shown = PullProgress()
        code, last = process.follow(
            ["docker", "pull", base], log=self.settings.state / "pull.log", show=shown, env=self.environment
        )
        if code == 0:
            return
        said = last[-1] if last else "docker pull printed nothing"
        if UNREACHABLE.search(said):
            raise BaseImageUnreachable(
                f"the base image {base} cannot be had",
                f"no image registry answers: {said}",
                "check the network, or name an image that is here (docker images): make up BASE_IMAGE=name:tag",
            )
        raise RocmlabError(f"the base image {base} cannot be had", said, "name another: make up BASE_IMAGE=name:tag")

    # -- container -----------------------------------------------------------------------------------------------

    def container(self, *, running_only: bool = True) -> str | None:
        """Return the id of the lab's container, or None."""
        project = self.values["COMPOSE_PROJECT_NAME"]
        filters = [
            f"label=com.docker.compose.project={project}",
            f"label=com.docker.compose.service={SERVICE}",
        ]
        filters.append("label=com.docker.compose.oneoff=False")
        flags = [part for one in filters for part in ("--filter", one)] + ([] if running_only else ["--all"])
        code, output = self._docker("ps", "--quiet", "--no-trunc", *flags)
        return output.split()[0] if code == 0 and output.split() else None

    def is_running(self) -> bool:
        """Tell whether the container runs."""
        return self.container() is not None

    def start(self, say: Say) -> bool:
        """Bring the container to the configured state and wait until JupyterLab answers.

        Returns:
            Whether a container was started.

        Raises:
            RocmlabError: the port is taken, the engine refuses, or the lab dies at start; nothing is left running.
        """
        self._check_owner()
        if not server.is_free(self.port) and not self._publishes_port():
            server.check_free(self.port)
        before = self._started()
        code, output = process.capture(
            self._compose("--progress", "quiet", "up", "--detach", "--no-build", SERVICE),
            env=self.environment,
            timeout_seconds=300,
        )
        if code:
            self.stop(lambda _: None)
            raise self._refusal(output)
        restarts = self._restarts()
        if server.wait(self.port, self.token, lambda: self.is_running() and self._restarts() == restarts):
            if self.has_built:  # the container of the image before this one is gone now
                self._prune()
            return before != self._started()
        container = self.container(running_only=False)
        last = self._docker("logs", "--tail", "15", container)[1].strip() if container else "the container is gone"
        self.stop(lambda _: None)
        raise RocmlabError("the lab did not start", f"its last words:\n{last}", "mend that, and run `make up` again")

    def _check_owner(self) -> None:
        """Make sure that the container of our name is ours, and not that of a clone that was copied with its `.env`."""
        container = self.container(running_only=False)
        label = '{{index .Config.Labels "com.docker.compose.project.working_dir"}}'
        owner = Path(self._docker("inspect", "--format", label, container)[1].strip()) if container else None
        if owner and owner.resolve() != self.settings.project.resolve() and (owner / "compose.yaml").exists():
            name = self.values["COMPOSE_PROJECT_NAME"]
            raise RocmlabError(
                f"the lab {name} belongs to the clone {owner}",
                "both have the same COMPOSE_PROJECT_NAME in .env, as after a copy of the whole folder",
                f"make up COMPOSE_PROJECT_NAME={name}-2 PORT={self.port + 1}",
            )

    def _started(self) -> str:
        """Return which container runs, and since when."""
        container = self.container()
        return self._docker("inspect", "--format", "{{.Id}} {{.State.StartedAt}}", container)[1] if container else ""

    def _restarts(self) -> str:
        """Return how often the engine has started the container anew: it dies and comes back where start.sh refuses."""
        container = self.container(running_only=False)
        return self._docker("inspect", "--format", "{{.RestartCount}}", container)[1].strip() if container else ""

    def _publishes_port(self) -> bool:
        container = self.container()
        if container is None:
            return False
        code, output = self._docker("port", container)
        return code == 0 and f"127.0.0.1:{self.port}" in output

    def _refusal(self, output: str) -> RocmlabError:
        said = output.strip().splitlines()[-1] if output.strip() else "docker compose printed nothing"
        if "gathering device information" in said:
            return RocmlabError(
                "the engine cannot pass a GPU's device node",
                said,
                "see that ls -l /dev/kfd /dev/dri shows it, then run `make up` again",
            )
        return RocmlabError("the engine refused to start the lab", said, "mend that and run `make up` again")

    def stop(self, say: Say) -> None:
        """Remove the container and the network; the volume stays."""
        code, output = process.capture(
            self._compose("--progress", "quiet", "down", "--remove-orphans", "--timeout", "10"),
            env=self.environment,
            timeout_seconds=120,
        )
        if code:
            raise RocmlabError("the lab could not be stopped", output.strip()[-400:], "docker compose down")

    def clean(self, say: Say) -> None:
        """Stop the lab and remove its image; the share stays."""
        self.stop(say)
        code, _ = self._docker("image", "rm", "--force", self.image)
        say(f"removed image {self.image}" if code == 0 else f"no image {self.image} to remove")
        share = self.values["SHARE"]
        if "/" not in share:
            volume = f"{self.values['COMPOSE_PROJECT_NAME']}_{share}"
            say(f"kept the volume {volume} (remove it and all results with: docker compose down -v)")

    # -- inside --------------------------------------------------------------------------------------------------

    def devices(self) -> list[dict[str, Any]]:
        """Ask the running lab, as its own user, which devices it sees."""
        container = self.container()
        if container is None:
            return []
        code, output = self._docker("exec", container, "start.sh", "rocmlab", "devices", "--json")
        if code:
            raise RocmlabError("the lab does not say which devices it sees", output.strip()[-400:], "make logs")
        found: list[dict[str, Any]] = json.loads(output)["devices"]
        return found

    def run(self, arguments: Sequence[str]) -> int:
        """Run `rocmlab <arguments>` in the running lab, or in a container of its own if the lab is down."""
        terminal = ["--interactive", "--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
        container = self.container()
        if container and self._is_current(container):
            return self._run_in(container, terminal, arguments)
        command = ["run", "--rm", *([] if terminal else ["-T"]), SERVICE, "rocmlab", *arguments]
        return process.attach(
            self._compose("--progress", "quiet", *command), env=self.environment, cwd=self.settings.project
        )

    def _run_in(self, container: str, terminal: Sequence[str], arguments: Sequence[str]) -> int:
        """Run in a running container; without a terminal `docker exec` passes no signals on, so we do."""
        if terminal:
            command = ["docker", "exec", *terminal, container, "start.sh", "rocmlab", *arguments]
            return process.attach(command, env=self.environment)
        record = f"/tmp/rocmlab-run-{secrets.token_hex(8)}"
        program = 'echo $$ >"$0" && exec rocmlab "$@"'
        command = ["docker", "exec", container, "start.sh", "bash", "-c", program, record, *arguments]
        try:
            return process.attach(command, env=self.environment, interrupt=lambda: self._terminate(container, record))
        finally:
            self._docker("exec", container, "rm", "-f", record)

    def _terminate(self, container: str, record: str) -> None:
        self._docker("exec", container, "bash", "-c", 'kill -TERM "$(cat "$0")"', record)

    def _is_current(self, container: str) -> bool:
        """Tell whether a container is what the settings and the present image ask for, and not an earlier one."""
        label = '{{.Image}} {{index .Config.Labels "com.docker.compose.config-hash"}}'
        _, running = self._docker("inspect", "--format", label, container)
        _, image = self._docker("image", "inspect", "--format", "{{.Id}}", self.image)
        code, asked = process.capture(self._compose("config", "--hash", SERVICE), env=self.environment)
        return code == 0 and running.split() == [image.strip(), asked.split()[-1]]

    def logs(self, follow: bool) -> int:
        """Print the container's log."""
        if self.container(running_only=False) is None:
            raise RocmlabError("there is no log", "the lab's container is gone, and its log with it", "make up")
        return process.attach(
            self._compose("logs", "--no-log-prefix", *(["--follow"] if follow else []), SERVICE),
            env=self.environment,
        )

    def shell(self) -> int:
        """Open a login shell in the running lab."""
        container = self.container()
        if container is None:
            raise RocmlabError("the lab is not running", "a shell needs its container", "make up")
        return process.attach(
            ["docker", "exec", "--interactive", "--tty", container, "start.sh", "bash"], env=self.environment
        )

    def share(self) -> str:
        """Say where the share is."""
        share = self.values["SHARE"]
        if "/" in share:
            return str((self.settings.project / share).resolve())
        return f"Docker volume {self.values['COMPOSE_PROJECT_NAME']}_{share}"


class BaseImageUnreachable(RocmlabError):
    """No registry answers, so a host without a GPU can go on natively."""
