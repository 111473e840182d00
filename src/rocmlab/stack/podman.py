"""The lab in a container of Podman's, rootful or rootless, by the `podman` command alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from rocmlab.base import host_limits, hosts, lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import envfile, live, looks, podman_engine, process, tls, tokens
from rocmlab.stack.container import ContainerLab
from rocmlab.stack.gpus import Passed
from rocmlab.stack.image import PASSED_INTO_THE_LAB, PROXIES, SECRETS
from rocmlab.stack.podman_engine import Podman
from rocmlab.stack.progress import BuildProgress, PodmanProgress
from rocmlab.stack.requirements import TORCH_VERSION
from rocmlab.stack.setting_table import DEFAULTS, NAMES
from rocmlab.stack.settings import Settings

BUILD_ARGUMENTS = {  # by name in the Dockerfile: the variable
    "BASE_IMAGE": "BASE_IMAGE",
    "BACKEND": "ROCMLAB_BACKEND",
    "IMAGE": "ROCMLAB_IMAGE_KIND",
    "GFX": "ROCMLAB_IMAGE_GFX",
    "TORCH_VERSION": "TORCH_VERSION",
    "TORCH_INDEX": "TORCH_INDEX",
    "JAX_PACKAGES": "JAX_PACKAGES",
    "APT_PACKAGES": "ROCMLAB_IMAGE_APT",
    "EXTRAS": "EXTRAS",
    "VERSION": "ROCMLAB_VERSION",
    "REVISION": "ROCMLAB_REVISION",
    "CREATED": "ROCMLAB_CREATED",
    "INPUTS": "INPUTS",
}
OF_COMPOSE = {"SHM_SIZE": "8gb", "NB_UID": "1000", "NB_GID": "100", "PIDS_LIMIT": "8192"}  # its defaults
SIMULATED_HOST = "/opt/simulated-host"
WSL_LIBRARIES = "/usr/lib/wsl"


class PodmanLab(ContainerLab):
    """One container with the settings of compose.yaml, and the image of the same Dockerfile.

    Rootless, the user who runs Podman is the lab's user inside (--userns keep-id), so that notebooks and share stay
    theirs, and keeps their own groups, which open the GPU's nodes (--group-add keep-groups).
    """

    program = "podman"
    product = "Podman"
    owner_label = "rocmlab.project"
    root_template = "{{.Store.GraphRoot}}"
    terminal_flags = ("--interactive", "--tty")

    def __init__(self, settings: Settings, values: dict[str, str], podman: Podman, passed: Passed) -> None:
        super().__init__(settings, values, podman.root)
        self.podman = podman
        self.passed = passed
        self.name = f"{values['COMPOSE_PROJECT_NAME']}-lab"

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of every `podman` call; the lab's own variables are given by name, see `variables`."""
        kept = podman_engine.environment_for(super().environment)
        return {name: value for name, value in kept.items() if name != "ROCMLAB_ROOT"}

    @cached_property
    def variables(self) -> dict[str, str]:
        """What Compose would read: `.env` but for the settings in it, those in force, and what was derived of them."""
        others = {name: value for name, value in self.settings.read_env().items() if name not in NAMES}
        chosen = {name: value for name, value in self.settings.chosen.items() if name in NAMES}
        return {**DEFAULTS, **OF_COMPOSE, "TORCH_VERSION": TORCH_VERSION, **others, **chosen, **self.values}

    def _progress(self, dockerfile: str) -> BuildProgress:
        return PodmanProgress(dockerfile)

    def _dockerfile(self) -> str:
        """Return the text without an option that Podman 4 refuses; it would save a second before the first verdict."""
        return re.sub(r" --start-interval=\S+", "", super()._dockerfile())

    def _build_command(self) -> list[str]:
        project, given = self.settings.project, {**self.variables, **self.environment}
        dockerfile = self.settings.state / "Containerfile"
        envfile.write(dockerfile, self._dockerfile(), mode=0o644)
        command = ["podman", "build", "--format", "docker", "--file", str(dockerfile), "--tag", self.image]
        for argument, variable in BUILD_ARGUMENTS.items():
            command += ["--build-arg", f"{argument}={given.get(variable, '')}"]
        if epoch := given.get("SOURCE_DATE_EPOCH"):  # without a value it would be one in the image's history
            command += ["--build-arg", f"SOURCE_DATE_EPOCH={epoch}"]
        wheels = given.get("WHEELS") or str(project / "docker/wheels")
        command += ["--build-context", f"wheels={(project / wheels).resolve()}"]
        for secret, path in self._secrets():
            command += ["--secret", f"id={secret},src={path}"]
        return [*command, "--layers", *self._label_option(), str(project)]

    def _label_option(self) -> list[str]:
        """Return what lets the build read the project where SELinux labels containers."""
        return ["--security-opt", "label=disable"] if self.podman.has_selinux else []

    def _secrets(self) -> list[tuple[str, str]]:
        paths = [(secret, self.variables.get(variable, "")) for secret, variable in SECRETS.items()]
        return [(secret, str(self.settings.path(path))) for secret, path in paths if path]

    def options(self) -> list[str]:
        """Return what makes the container, but for its name, its port, its labels and its restart policy."""
        variables = self.variables
        options = [f"--volume={self.share_folder or self.volume}:/home/jovyan/share"]
        options.append(f"--volume={self.notebooks}:/home/jovyan/work")
        options.append(f"--volume={live.ensure_folder(self.settings)}:{live.INSIDE}:ro")
        options += [f"--volume={path}:/run/secrets/{secret}:ro" for secret, path in self._secrets()]
        for name in tokens.NAMES:  # for the lab's user alone, whose uid inside is the owner's outside
            options.append(f"--volume={tokens.path(self.settings, name)}:/run/secrets/{name.lower()}:ro")
        if root := variables.get("ROCMLAB_ROOT"):
            options.append(f"--volume={root}:{SIMULATED_HOST}:ro")
            if Path(root, "dev").is_dir():  # writable: its nodes are plain files, which programs open for writing
                options.append(f"--volume={root}/dev:{SIMULATED_HOST}/dev")
        if folder := variables.get("ROCMLAB_LEASES"):
            options.append(f"--volume={folder}:{SIMULATED_HOST if root else ''}{lease_folder.USUAL}")
        if folder := variables.get("ROCMLAB_LIMITS"):
            options.append(f"--volume={folder}:{host_limits.FOLDER}:ro")
        if self.is_bound:
            options.append(f"--volume={tls.path_of(self.settings).parent}:/run/rocmlab/tls:ro")
        if "/dev/dxg" in self.passed.nodes:
            options.append(f"--volume={WSL_LIBRARIES}:{WSL_LIBRARIES}:ro")
        options += [f"--env={name}" for name in self.lab_environment()]
        options += [f"--shm-size={variables['SHM_SIZE']}", "--stop-timeout=20", "--http-proxy=false"]
        options += [f"--device={node}" for node in self.passed.nodes]
        return options + self._limits() + self._identity() + self._label_option()

    def _limits(self) -> list[str]:
        """Return what bounds the container; Podman fails where the kernel gives it no controller for a limit."""
        variables, controllers = self.variables, self.podman.controllers
        options = ["--log-driver=k8s-file", f"--log-opt=max-size={variables['LOG_MAX_SIZE']}"]
        if "pids" in controllers:
            options.append(f"--pids-limit={variables['PIDS_LIMIT']}")
        memory = variables.get("MEMORY_LIMIT") or "0"
        if "memory" in controllers and memory != "0":
            options += [f"--memory={memory}", f"--memory-swap={memory}"]
        return options

    def _identity(self) -> list[str]:
        """Return who the lab is inside, and in which groups."""
        if self.podman.is_rootless:
            groups = ["--group-add=keep-groups"] if self.passed.nodes else []
            bounds = ["--cap-drop=all", "--security-opt=no-new-privileges"]  # rootful, the entry point does it
            return ["--userns=keep-id:uid=1000,gid=100", "--user=1000:100", *bounds, *groups]
        groups = list(dict.fromkeys((self.variables["RENDER_GID"], self.variables["VIDEO_GID"])))
        return [f"--group-add={group}" for group in groups] if self.backend == "rocm" else []

    def lab_environment(self) -> dict[str, str]:
        """Return the variables inside, the same as under Compose, by name: HF_TOKEN may be among them."""
        variables = self.variables
        given = {name: variables[name] for name in ("NB_UID", "NB_GID")}
        given["ROCMLAB_RUNTIME"] = "podman"  # the image says docker
        given |= {name: variables[name] for name in PASSED_INTO_THE_LAB if name in variables}
        proxies = {**self.environment, **variables}
        given |= {name: proxies[name] for name in PROXIES if name in proxies}
        if self.is_bound:
            given |= {name: variables[name] for name in ("BIND", "TLS_PORT", hosts.BOUND)}
        if variables.get("ROCMLAB_ROOT"):
            given["ROCMLAB_ROOT"] = SIMULATED_HOST
        masked = {**given, **dict(self.passed.environment)}
        return {name: value for name, value in masked.items() if value is not None}

    @property
    def is_bound(self) -> bool:
        """Whether the lab answers other machines too."""
        return bool(self.values.get(hosts.BOUND))

    def _call_environment(self) -> dict[str, str]:
        return {**self.environment, **self.lab_environment()}

    def _digest(self) -> str:
        """Return what distinguishes one configuration from another: options, variables, port, and the image itself."""
        facts = [self.options(), sorted(self.lab_environment().items()), self.port, self.image_id(self.image)]
        facts.append(tokens.digest(self.values))
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _filters(self) -> list[str]:
        return ["--filter", f"name=^{re.escape(self.name)}$"]

    def _is_current(self, container: str) -> bool:
        return self.describe(container).labels.get("rocmlab.configuration") == self._digest()

    def _bring_up(self) -> tuple[int, str]:
        running = self.known_container()
        if running and self._is_current(running):
            return 0, ""
        self._make_folders()
        code, output = self._remove()
        if code:
            return code, output
        tokens.write(self.settings, self.values)
        command = ["podman", "run", "--detach", f"--name={self.name}", "--restart=unless-stopped", "--pull=never"]
        command += [f"--publish=127.0.0.1:{self.port}:8888"]
        if self.is_bound:
            bind = tls.address(self.settings)
            where = f"[{bind}]" if ":" in bind else bind
            command += [f"--publish={where}:{tls.server_port(self.settings)}:8443"]
        command += [f"--label=rocmlab.configuration={self._digest()}"]
        command += [f"--label=rocmlab.project={self.settings.project.resolve()}"]
        command += [*self.options(), self.image]
        with looks.changing():
            return process.capture(command, env=self._call_environment(), timeout_seconds=900)

    def _make_folders(self) -> None:
        """Make the folders that are mounted where they are missing, as Docker's engine does and Podman never does.

        Raises:
            RocmlabError: one cannot be made; the container that runs was not touched.
        """
        for name, folder in (("SHARE", self.share_folder), ("NOTEBOOKS_DIR", self.notebooks)):
            try:
                if folder:
                    Path(folder).mkdir(parents=True, exist_ok=True)
            except OSError as err:
                why = err.strerror or str(err)
                raise RocmlabError(f"{name}={folder} cannot be made", why, f"make up {name}=/another/folder") from err

    @property
    def copy_out(self) -> str:
        """The command that copies the runs from the share to the project folder."""
        return f"podman cp {self.name}:/home/jovyan/share/runs ./runs"

    def _remove(self) -> tuple[int, str]:
        return self.engine("rm", "--force", "--ignore", "--time", "10", self.name, timeout_seconds=120)

    def _once(self, *arguments: str, flags: Sequence[str] = ()) -> tuple[list[str], Mapping[str, str]]:
        tokens.write(self.settings, self.values)
        command = ["podman", "run", "--rm", "--pull=never", *flags, *self.options(), self.image, *arguments]
        return command, self._call_environment()
