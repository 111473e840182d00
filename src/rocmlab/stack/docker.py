"""The lab in a container, by way of `docker compose` and the files of this project."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rocmlab.stack import envfile, gpus, looks, process
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.engine import Engine
from rocmlab.stack.image import SECRETS
from rocmlab.stack.process import EngineSilent
from rocmlab.stack.settings import Settings

SERVICE = "lab"
SECRET_MOUNT = r" --mount=type=secret,\S+"
TOKENS = ("JUPYTER_TOKEN", "METRICS_TOKEN", "CLUSTER_TOKEN")  # which Compose writes into the container


def without_secrets(dockerfile: str) -> str:
    """Return a Dockerfile without its steps' mounts of secrets."""
    lines = re.sub(rf"\n *(?:{SECRET_MOUNT})+ \\(?=\n)", "", dockerfile)
    return re.sub(SECRET_MOUNT, "", lines)


class DockerLab(ContainerLab):
    """The service `lab` of compose.yaml and its overlays."""

    program = "docker"
    product = "Docker"
    owner_label = "com.docker.compose.project.working_dir"
    root_template = "{{.DockerRootDir}}"
    piped_flags = ("-T",)
    image_flags = ("--force",)  # Docker then takes the name away, and leaves what uses the image; Podman ends that
    makes_mounts = True

    def __init__(self, settings: Settings, values: dict[str, str], engine: Engine) -> None:
        super().__init__(settings, values, engine.root)

    def compose(self, *arguments: str) -> list[str]:
        """Return a command of Compose for this project."""
        return ["docker", "compose", "--project-directory", str(self.settings.project), *arguments]

    def _manifest(self, image: str) -> str:
        code, text = self.engine("buildx", "imagetools", "inspect", "--raw", image, timeout_seconds=15)
        return text if code == 0 else ""

    @property
    def _has_secrets(self) -> bool:
        """Whether the build is given a file that must stay out of the image."""
        return any(self.values.get(variable) for variable in SECRETS.values())

    def _dockerfile(self) -> str:
        """Return the text; where there is no secret, no step of it may have one.

        Before each step that may, engines from 26.0 to about 27.2 read all files of the image so far: minutes on AMD's.
        Source: BuildKit 0.16, "exec: fix incorrect deps computation for special mounts".
        """
        text = super()._dockerfile()
        return text if self._has_secrets else without_secrets(text)

    def _build_command(self) -> list[str]:
        if not self._has_secrets:
            dockerfile = self.settings.state / "Dockerfile"
            envfile.write(dockerfile, self._dockerfile(), mode=0o644)
            self.environment["ROCMLAB_DOCKERFILE"] = str(dockerfile)
        return self.compose("--progress", "plain", "build", SERVICE)

    def _filters(self, *, is_one_off: bool = False) -> list[str]:
        labels = (f"project={self.values['COMPOSE_PROJECT_NAME']}", f"service={SERVICE}", f"oneoff={is_one_off}")
        return [part for label in labels for part in ("--filter", f"label=com.docker.compose.{label}")]

    def is_current(self) -> bool:
        """Return whether the container runs with these settings, the present image and the cluster's token."""
        return super().is_current() and not self._has_another_token()

    def one_off_containers(self) -> list[str]:
        """Return the ids of the running containers of `docker compose run`, which `down` removes as well."""
        return self.query("ps", "--quiet", "--no-trunc", *self._filters(is_one_off=True)).split()

    def _bring_up(self) -> tuple[int, str]:
        has_another_token = self._has_another_token()
        if not has_another_token and super().is_current():
            return 0, ""
        recreate = ["--force-recreate"] if has_another_token else []
        command = self.compose("--progress", "quiet", "up", "--detach", "--no-build", *recreate, SERVICE)
        with looks.changing():
            return process.capture(command, env=self.environment, timeout_seconds=300)

    def _has_another_token(self) -> bool:
        """Return whether a token of the running lab is not the one in `.env`: Compose does not see such a change.

        Where the engine does not report it, it is not taken for another one: that would end the lab.
        """
        container = self.container()
        if container is None:
            return False
        names = [name for name in TOKENS if self.settings.is_in_cluster or name != "CLUSTER_TOKEN"]
        files = [f"/run/secrets/{name.lower()}" for name in names]
        # A container of an earlier version has the token in its environment, and no such file.
        command = ("sh", "-c", 'for file; do cat "$file" 2>/dev/null || echo none; echo; done', "sh", *files)
        exec_ = [self.program, "exec", "--user", "root", container, *command]
        code, found = looks.ask(exec_, self.environment)  # it changes with a new container alone
        if code:
            return self.is_restarting()  # again and again, so that nothing runs in it
        return found.splitlines() != [self.values.get(name, "") for name in names]

    def _remove(self) -> tuple[int, str]:
        grace = "60" if self.settings.is_in_cluster else "10"  # Ray leaves tasks that run half a minute
        command = self.compose("--progress", "quiet", "down", "--remove-orphans", "--timeout", grace)
        with looks.changing():
            return process.capture(command, env=self.environment, timeout_seconds=120)

    def _once(self, *arguments: str, flags: Sequence[str] = ()) -> tuple[list[str], Mapping[str, str]]:
        return self.compose("--progress", "quiet", "run", "--rm", *flags, SERVICE, *arguments), self.environment

    def _is_current(self, container: str) -> bool:
        try:
            running = self.describe(container)
        except EngineSilent:
            return False
        written = (self.settings.env_path, self.settings.project / gpus.OVERLAY)  # by this process, perhaps just now
        facts = (frozenset(self.environment.items()), *(envfile.read(path) for path in written))
        code, wanted = looks.ask(self.compose("config", "--hash", SERVICE), self.environment, depends_on=facts)
        digest = running.labels.get("com.docker.compose.config-hash")
        return code == 0 and running.image == self.image_id(self.image) and wanted.split()[-1:] == [digest]
