"""A lab in a container, whichever engine runs it: what Docker's and Podman's labs have in common."""

from __future__ import annotations

import os
import re
import secrets
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rocmlab.base import lease_folder
from rocmlab.base.errors import RocmlabError
from rocmlab.cluster.node import ports, ray_node, record
from rocmlab.cluster.node.record import Record
from rocmlab.stack import container_port, described, envfile, looks, process, project_folder, server
from rocmlab.stack.described import Described
from rocmlab.stack.image import ImageLab, unreadable
from rocmlab.stack.lab import Say, not_answering
from rocmlab.stack.process import EngineSilent
from rocmlab.stack.server import Holder
from rocmlab.stack.settings import Settings
from rocmlab.stack.sockets import Listener

HOME = "ROCMLAB_HOME=/"  # in the environment of an image whose home is on the share


class ContainerLab(ImageLab):
    """One container with JupyterLab, made from the lab's image."""

    terminal_flags: tuple[str, ...] = ()  # of the engine's `run`: with a terminal
    piped_flags: tuple[str, ...] = ()  # without one
    owner_label = ""  # of the container: its project folder
    image_flags: tuple[str, ...] = ()  # of the engine's `image rm`

    def __init__(self, settings: Settings, values: dict[str, str], engine_root: str = "") -> None:
        super().__init__(settings, values, engine_root)
        self.sockets_inside: set[Listener] = set()  # that listen on PORT in the host's network, and are the container's

    @abstractmethod
    def _filters(self) -> list[str]:
        """Return the options with which the engine's `ps` lists the lab's container alone."""

    def _listing(self) -> tuple[str, ...]:
        """Return the engine's command that lists the lab's running container."""
        return ("ps", "--quiet", "--no-trunc", *self._filters())

    def look_ahead(self) -> None:
        """Begin to ask which containers run and are left, and for the image."""
        for command in (self._listing(), (*self._listing(), "--all"), ("image", "inspect", self.image)):
            looks.begin([self.program, *command], self.environment)

    def container(self, *, running_only: bool = True) -> str | None:
        """Return the id of the lab's container, or None; None also where the engine does not answer."""
        try:
            return self.known_container(running_only=running_only)
        except EngineSilent:
            return None

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
        """Return the id of the lab's container, None if it has none; raise EngineSilent if there is no answer.

        Where one runs and another one is left, it is the one that runs.
        """
        command = self._listing()
        found = self.query(*command).split()
        if not found and not running_only:
            found = self.query(*command, "--all").split()
        return found[0] if found else None

    def describe(self, container: str) -> Described:
        """Return what the engine reports of a container; raise EngineSilent if it does not answer."""
        if found := described.container(self.query("inspect", container)):
            return found
        raise unreadable(self.program, f"container {container[:12]}")

    @abstractmethod
    def _remove(self) -> tuple[int, str]:
        """Remove the container and its network; return the engine's exit code and its output."""

    def stop(self, say: Say) -> None:
        """Remove the container and its network; the volume stays."""
        self._check_owner()
        self._check_home()
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
        owner = self.describe(container).labels.get(self.owner_label) if container else None
        if owner and project_folder.is_another(owner, self.settings.project):
            name = self.values["COMPOSE_PROJECT_NAME"]
            raise RocmlabError(
                f"the lab {name} belongs to the clone {owner}",
                "both have the same COMPOSE_PROJECT_NAME in .env, as after a copy of the whole folder",
                f"make up COMPOSE_PROJECT_NAME={name}-2 PORT={self.port + 1}",
            )

    @abstractmethod
    def _is_current(self, container: str) -> bool:
        """Return whether a container is up to date with the settings and the current image."""

    @abstractmethod
    def _once(self, *arguments: str, flags: Sequence[str] = ()) -> tuple[list[str], Mapping[str, str]]:
        """Return the command that runs something in a container of its own, and the environment of that command."""

    def _check_home(self) -> None:
        """Make sure that removing the container loses no file: its user's home is on the share."""
        container = self.known_container(running_only=False)
        if container and not any(each.startswith(HOME) for each in self.describe(container).variables):
            name = container[:12]
            raise RocmlabError(
                f"the home in the container {name} is not on the share",
                "a development version made it, and files next to work/ and share/ would be removed with it",
                f"{self.program} cp {name}:/home/jovyan ./old-home && {self.program} rm --force {name}, then retry",
            )

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
        looks.forget()  # it may have begun in the last two seconds
        with suppress(EngineSilent):
            container = self.known_container(running_only=False)
            return container is not None and self.describe(container).is_restarting
        return False

    def capture_inside(self, command: Sequence[str]) -> tuple[int, str]:
        """Run a short program in the running container."""
        return self.engine("exec", self.container() or "", *command, timeout_seconds=15)

    def start(self, say: Say, *, force: bool = False) -> bool:
        """Bring the container to the configured state, wait until it answers, and return whether it was started.

        Where it cannot start, nothing that this call has started is left running. A lab that ran as configured before
        and does not answer runs on, unless `force` stops it. An engine that does not answer changes nothing.
        """
        self._check_owner()
        if not server.is_free(self.port) and not self._publishes_port():
            server.check_free(self.port)
        self._check_home()
        self._make_leases_folder()
        looks.forget("ps")  # by another command, before this one had the project's lock
        before = self.known_container()
        code, output = self._bring_up()
        if code:
            self._undo(before)
            raise self._refusal(output)
        if server.wait(self.speaks, self.answers, self._watch()):
            if self.has_built:  # the container of the image before this one is gone now
                self._prune()
            with suppress(EngineSilent):
                if (found := self._running()) and found.image != envfile.read(self.healthy).strip():
                    envfile.write(self.healthy, found.image + "\n")
                return found is None or found.id != before
            return True
        container = self.container(running_only=False)
        last = self.engine("logs", "--tail", "15", container)[1].strip() if container else "the container was removed"
        if self._undo(before):
            raise RocmlabError(
                "JupyterLab did not start", f"last log lines:\n{last}", "fix the error above, then `make up`"
            )
        if not force:
            raise not_answering(f"last log lines:\n{last}")
        self.stop(say)
        return self.start(say)

    makes_mounts = False  # whether the engine, as root, makes the source of a mount where it is missing

    def _make_leases_folder(self) -> None:
        """Make the host's folder of leases where the lab needs it: it is gone after each boot.

        Where this user may not, an engine that runs as root does, and the entry point opens it for all users.
        """
        folder = Path(self.values.get("ROCMLAB_LEASES") or "/")
        if folder == Path("/") or (self.makes_mounts and not folder.exists() and not os.access(folder.parent, os.W_OK)):
            return
        lease_folder.ensure(folder)

    def _undo(self, before: str | None) -> bool:
        """Remove what this call has started, and return True; the container that ran before it runs on."""
        with suppress(RocmlabError):  # the engine does not answer: the caller knows what is wrong
            if before and before == self.known_container() and not self.is_restarting():
                return False
            self.stop(lambda _: None)
        return True

    def _watch(self) -> Callable[[], bool]:
        """Return what tells whether the container runs and has not been restarted since it was first asked.

        The engine restarts it if start.sh fails. True where the engine does not answer.
        """
        first: list[int] = []

        def lives() -> bool:
            looks.forget()
            try:
                container = self.known_container()
                if container is None:
                    return False
                restarts = self.describe(container).restarts
            except EngineSilent:
                return True
            first.append(restarts)
            return restarts == first[0]

        return lives

    def _publishes_port(self) -> bool:
        for _ in range(2):  # the second time by a new look: the engine may have started the container meanwhile
            with suppress(EngineSilent):
                if container_port.find(self._running(), self.port) != container_port.CLOSED:
                    return True
            if self.is_restarting():
                return True
        return False

    def holds_port(self) -> bool:
        """Return whether the container, or the engine that starts it again, listens on PORT.

        The engine opens the port first, and describes it when the container runs.
        """
        return super().holds_port() or self.is_restarting()

    def _running(self) -> Described | None:
        """Return the container that runs, None where none does; raise EngineSilent if the engine does not answer."""
        container = self.known_container()
        return self.describe(container) if container else None

    def _listening(self) -> Holder:
        def running() -> Described | None:
            looks.forget()  # what is found is kept, and decides who gets the token
            return self._running()

        return container_port.holder(
            self.engine, running, self.port, self.settings.state, self.values, self.sockets_inside
        )

    def _refusal(self, output: str) -> RocmlabError:
        last_line = output.strip().splitlines()[-1] if output.strip() else f"{self.program}: no output"
        if "gathering device information" in last_line or re.search(r"stat /dev/\S+: no such file", last_line):
            return RocmlabError(
                "the engine cannot pass a GPU's device node",
                last_line,
                "make doctor shows which node is missing and why; then `make up`",
            )
        folder = self.values.get("ROCMLAB_LEASES")
        if folder and folder in last_line:
            return RocmlabError.of(lease_folder.unusable(Path(folder), last_line))
        if "CDI device" in last_line:
            return RocmlabError(
                "the engine does not know the GPU by its CDI name",
                last_line,
                "sudo scripts/rocmlab cdi --output /etc/cdi/amd.json, then `make up`\n"
                "or, without CDI: make up GPU_PASSTHROUGH=nodes",
            )
        return RocmlabError("the engine could not start the lab", last_line, "fix the error above, then `make up`")

    def clean(self, say: Say) -> None:
        """Stop the lab and remove its image; the share is kept."""
        self.stop(say)
        self._remove_image(self.previous_image)
        if not self.is_built():
            say(f"no image {self.image} to remove")
        elif (why := self._remove_image(self.image)) is None:
            say(f"removed image {self.image}")
        else:
            say(f"kept image {self.image}: {why}")
        if self.share_folder is None:
            remove = f"{self.program} volume rm {self.volume}"
            say(f"kept the volume {self.volume} (remove it and all results with: {remove})")

    def _remove_image(self, image: str) -> str | None:
        """Remove an image, but never a container that uses it, as of a single run; return why it stays, else None."""
        code, output = self.engine("image", "rm", *self.image_flags, image)
        return None if code == 0 else (output.strip().splitlines() or ["it is in use"])[-1]

    def inside(self) -> tuple[list[str], Mapping[str, str]] | None:
        """Return what runs rocmlab in the running container as the lab's own user, or None where none runs."""
        container = self.container()
        if container is None:
            return None
        return [self.program, "exec", container, "start.sh", "rocmlab"], self.environment

    def node_record(self) -> Record | None:
        """Return the description of the lab's Ray node; None where it has none."""
        folder = ray_node.usual_folder(ports.parse(self.settings.get("CLUSTER_PORT")), int(self.values["NB_UID"]))
        code, text = self.engine("exec", self.container() or "", "cat", f"{folder}/node.json")
        return record.parse(text) if code == 0 else None

    def run(self, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> int:
        """Run `rocmlab <arguments>` in the running lab, or in a container of its own if the lab is down."""
        has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        given = [word for name, value in (variables or {}).items() for word in ("--env", f"{name}={value}")]
        container = self.container()
        if container and self._is_current(container):
            return self._run_in(container, arguments, given, has_terminal=has_terminal)
        flags = self.terminal_flags if has_terminal else self.piped_flags
        self._make_leases_folder()
        command, environment = self._once("rocmlab", *arguments, flags=[*flags, *given])
        with looks.changing():
            return process.attach(command, env=environment, cwd=self.settings.project)

    def _run_in(self, container: str, arguments: Sequence[str], given: Sequence[str], *, has_terminal: bool) -> int:
        """Run in a running container; without a terminal `exec` passes no signals on, so we do."""
        if has_terminal:
            exec_ = [self.program, "exec", "--interactive", "--tty", *given]
            command = [*exec_, container, "start.sh", "rocmlab", *arguments]
            return process.attach(command, env=self.environment)
        record = f"/tmp/rocmlab-run-{secrets.token_hex(8)}"
        program = 'echo $$ >"$0" && exec rocmlab "$@"'
        exec_ = [self.program, "exec", *given]
        command = [*exec_, container, "start.sh", "bash", "-c", program, record, *arguments]

        def terminate() -> None:
            self.engine("exec", container, "bash", "-c", 'kill -TERM "$(cat "$0")"', record)

        try:
            return process.attach(command, env=self.environment, interrupt=terminate)
        finally:
            self.engine("exec", container, "rm", "-f", record)

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
        """Return where the share is."""
        return str(self.share_folder or f"{self.product} volume {self.volume}")
