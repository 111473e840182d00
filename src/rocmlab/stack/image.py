"""The image of a lab in a container: built from the project's Dockerfile, named, and kept for a way back."""

from __future__ import annotations

import os
import re
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from rocmlab import __version__
from rocmlab.base import extras
from rocmlab.base.errors import RocmlabError
from rocmlab.base.formatting import amount
from rocmlab.packages import system
from rocmlab.stack import described, envfile, image_kind, image_size, looks, process, released, shipped, source
from rocmlab.stack.lab import Lab, Say
from rocmlab.stack.process import EngineSilent
from rocmlab.stack.progress import BuildProgress, PullProgress
from rocmlab.stack.settings import FOR_FRAMEWORKS, Settings, qualified

# For the base image unpacked and our layers.
NEEDED_BYTES = {"rocm": 60e9, "cuda": 25e9, "cpu": 8e9, "slim": 10e9, "debian": 25e9}
PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")  # which the build needs as well
PASSED_INTO_THE_LAB = (  # where `.env` has them; the same as those of compose.yaml's `environment`, but for proxies
    *FOR_FRAMEWORKS,
    *("ALLOWED_HOSTS", "HIP_VISIBLE_DEVICES", "LAB_BASE_URL", "NB_UMASK", "ROCMLAB_LAB", "ROCMLAB_USER"),
    "ROCR_VISIBLE_DEVICES",
)
SECRETS = {"ca_bundle": "CA_BUNDLE", "pip_config": "PIP_CONFIG"}  # by name in the container: the variable with its path
HOME = "/home/jovyan"  # in the container: what the lab shows, work/ and share/
LOOKS = ("ps", "inspect")  # of the engine's commands, and `image inspect`
INSIDE = ("exec", "logs", "info")  # change neither images nor which containers there are
UNREACHABLE = re.compile(
    r"no such host|timeout|connection refused|network is unreachable|TLS handshake|dial tcp|certificate", re.I
)


class BaseImageUnreachable(RocmlabError):
    """No registry answers, so a host without a GPU can continue natively."""


class ImageLab(Lab):
    """A lab whose image an engine builds from the project's Dockerfile."""

    program = ""  # the engine's command
    product = ""  # its name, in messages
    root_template = ""  # of its `info`: where it keeps images and volumes

    def __init__(self, settings: Settings, values: dict[str, str], engine_root: str = "") -> None:
        super().__init__(settings, values)
        self.engine_root = engine_root  # where the engine keeps images
        self.backend = values["ROCMLAB_BACKEND"]
        self.image = values["ROCMLAB_IMAGE"]
        self.previous_image = f"{self.image}-previous"
        self.healthy = settings.state / "healthy-image"  # has the id of the image whose lab has answered last
        self.slim_targets: tuple[str, ...] = ()  # what a slim image would be for, where the full one is used
        self.base_targets = image_kind.made_for(values.get("BASE_IMAGE", ""))  # of a base that is made here
        # Of which NEEDED_BYTES has the size.
        self.kind = image_kind.DEBIAN if self.base_targets else values.get("ROCMLAB_IMAGE_KIND", self.backend)
        self.has_built = False  # by this very process

    @cached_property
    def environment(self) -> dict[str, str]:
        """The environment of every call of the engine: ours, with the settings in force on top.

        What is passed into the lab comes from `.env` alone: a variable of this terminal, which the next one lacks,
        would make each `make up` a new container.
        """
        kept = {name: value for name, value in os.environ.items() if name not in PASSED_INTO_THE_LAB}
        for name in PROXIES:  # programs of this host also take these names in lower case
            if value := kept.get(name) or kept.get(name.lower()):
                kept[name] = value
        # What `.env` says of a slim image is not for a single command with another backend or image.
        image = {
            "ROCMLAB_IMAGE_KIND": "full",
            "ROCMLAB_IMAGE_GFX": "",
            "ROCMLAB_IMAGE_APT": " ".join(self.apt_packages),
        }
        return {**kept, **image, **self.values}

    @cached_property
    def apt_packages(self) -> tuple[str, ...]:
        """What `apt.txt` next to the notebooks adds to the image; `prepare` reports a file that cannot be used."""
        try:
            return system.read(self.notebooks)
        except RocmlabError:
            return ()

    @property
    def inputs(self) -> str:
        """A digest of all the image is made from; the image carries it as the label `rocmlab.inputs`."""
        names = ("BASE_IMAGE", "TORCH_INDEX", "JAX_PACKAGES", "ROCMLAB_BACKEND")
        facts = {name: self.values.get(name, "") for name in names}
        facts["BASE_IMAGE"] = qualified(facts["BASE_IMAGE"])  # the same for Docker, which needs no registry's name
        facts |= {name: value for name, value in self.values.items() if name.startswith("ROCMLAB_IMAGE_")}
        facts |= {name: self.values[name] for name in (extras.SETTING,) if name in self.values}
        facts |= {"CLUSTER": "1"} if self.settings.is_in_cluster else {}
        facts |= {"APT": " ".join(self.apt_packages)} if self.apt_packages else {}
        return source.digest(self.settings.project, source.IMAGE_SOURCES, facts)

    def engine(self, *arguments: str, timeout_seconds: float = 60) -> tuple[int, str]:
        """Run a short command of the engine; see `process.capture`. One that only looks goes through `looks.ask`."""
        command = [self.program, *arguments]
        if arguments[0] in LOOKS or arguments[:2] == ("image", "inspect"):
            return looks.ask(command, self.environment, timeout_seconds=timeout_seconds)
        with nullcontext() if arguments[0] in INSIDE else looks.changing():
            return process.capture(command, env=self.environment, timeout_seconds=timeout_seconds)

    def is_prepared(self) -> bool:
        """Return whether the image is built from exactly the present files and base."""
        return self.image_label(self.image, released.INPUTS) == self.inputs

    def image_label(self, image: str, name: str) -> str:
        """Return a label of an image, empty if it or the image is missing."""
        labels = (self._image(image).get("Config") or {}).get("Labels") or {}
        return str(labels.get(name, "")).strip()

    def is_built(self) -> bool:
        """Return whether any version of the image is here."""
        return self.image_id(self.image) != ""

    def disk(self) -> Path:
        """Return the folder where the engine keeps images."""
        return Path(self.engine_root) if self.engine_root else self.settings.project

    def folders(self) -> list[Path]:
        """Return the share, or where the engine keeps volumes, and the notebooks."""
        if self.share_folder:
            return [self.share_folder, self.notebooks]
        volumes = self.disk()
        if not self.engine_root:
            code, output = self.engine("info", "--format", self.root_template, timeout_seconds=10)
            volumes = Path(output.strip()) if code == 0 and output.strip() else volumes
        return [volumes, self.notebooks]

    @property
    def share_folder(self) -> Path | None:
        """The share, where it is a folder of this host; None: it is a volume of the engine's."""
        share = self.values["SHARE"]
        return self.settings.path(share) if "/" in share else None

    def seen_inside(self, path: Path) -> Path:
        """Return where the container has a folder of this host, in the notebooks or the share, or one of its own.

        The host has no folder for a share in a volume, so a path may also be that of the container.
        """
        share = self.share_folder
        for folder, inside in ((self.notebooks, "work"), (share, "share")):
            for seen in {folder, folder.resolve()} if folder else ():
                found = next((each for each in (path, path.resolve()) if each.is_relative_to(seen)), None)
                if found:
                    return Path(HOME, inside, found.relative_to(seen))
        own = next((name for name in ("work", "share") if path.is_relative_to(Path(HOME, name))), None)
        if own and not path.exists():
            return path
        raise RocmlabError(
            f"{path} cannot be seen by the lab",
            f"the container has {self.notebooks} as {HOME}/work, and SHARE={self.values['SHARE']} as {HOME}/share",
            f"make the environment in a terminal of JupyterLab, and name it as it is there: {HOME}/share/my-env",
        )

    def has_base(self) -> bool:
        """Return whether the base image is here."""
        return self.image_id(self.values["BASE_IMAGE"]) != ""

    def image_id(self, name: str) -> str:
        """Return an image's id, empty if it is missing."""
        return str(self._image(name).get("Id", ""))

    def _image(self, name: str) -> dict[str, Any]:
        """Return the engine's description of an image, empty if it is missing or the engine does not answer.

        Raises:
            EngineSilent: the engine answers, and it is no description.
        """
        code, text = self.engine("image", "inspect", name)
        if code == 0 and not (found := described.single(text)):
            raise unreadable(self.program, f"image {name}")
        return found if code == 0 else {}

    def keep_previous(self, image: str) -> None:
        """Keep an image as the previous one, unless another one has worked and this one has not."""
        known = envfile.read(self.healthy).strip()
        if image and known in ("", image):
            self.engine("tag", image, self.previous_image)

    def exchange_images(self) -> None:
        """Give the previous image the name of the present one, and vice versa; raise RocmlabError if there is none."""
        present, previous = self.image_id(self.image), self.image_id(self.previous_image)
        if not previous:
            raise RocmlabError(f"the image {self.previous_image} is missing", "it was removed", "make up")
        self.name_images(previous, present)

    def name_images(self, present: str, previous: str) -> None:
        """Name two images by their ids, but for empty ones; raise RocmlabError if the engine does not."""
        for image, name in ((present, self.image), (previous, self.previous_image)):
            code, output = self.engine("tag", image, name) if image else (0, "")
            if code:
                raise RocmlabError(f"the image {image} could not be named {name}", output.strip()[-400:], "make up")

    def prepare(self, say: Say, *, always: bool = False, only_lab: bool = False) -> None:
        """Build the image unless it is current, or `always`, for what the digest leaves out (the notebooks' copy)."""
        system.read(self.notebooks)
        ids = [self.values.get(name, "") for name in ("NB_UID", "NB_GID")]
        if all(text.isdigit() for text in ids):  # else start.sh reports what is wrong
            shipped.hand_over(self.settings, self.notebooks, int(ids[0]), int(ids[1]), say)
        if self.is_prepared() and not always:
            return
        self.check_disk()
        if not always and released.is_chosen(self.settings) and self._pull_released(say):
            return
        self._pull_base(say)
        say(f"building image {self.image} on {self.values['BASE_IMAGE']}")
        log = self.settings.state / "build.log"
        created = _time_of_build(os.environ).strftime("%Y-%m-%dT%H:%M:%SZ")
        self.environment |= {"INPUTS": self.inputs, "ROCMLAB_VERSION": __version__, "ROCMLAB_CREATED": created}
        self.environment["ROCMLAB_REVISION"] = source.revision(self.settings.project)
        self.keep_previous(self.image_id(self.image))
        show = self._progress(self._dockerfile())
        command, project = self._build_command(), self.settings.project
        with looks.changing():
            code, last = process.follow(command, log=log, show=show, env=self.environment, cwd=project)
        if code:
            reason = show.error(last)
            raise RocmlabError(
                f"building {self.image} failed",
                reason,
                f"fix the error above, then `make up`; complete log: {log}",
            )
        say(f"image {self.image} is built")
        self.has_built = True  # what has lost its name is removed when the new one's lab has answered

    def _pull_released(self, say: Say) -> bool:
        """Use the released image; print what was used and why, and return whether it was this one."""
        try:
            release = released.of(self.settings, self.kind)
            environment = released.environment_of(self.environment, self.settings.project)
            name = release.verified(self.inputs, environment)
            sizes = image_size.layers(self._manifest, name)
            say(f"pulling {name}" + (f" ({amount(sum(sizes.values()))} to download)" if sizes else ""))
            log, shown = self.settings.state / "pull.log", PullProgress(sizes)
            command = [self.program, "pull", name]
            with looks.changing():
                code, last = process.follow(command, log=log, show=shown, env=self.environment)
            if code:
                raise released.NotUsed(f"{name} could not be pulled: {last[-1] if last else 'no output'}")
            if self.image_label(name, released.INPUTS) != self.inputs:
                raise released.NotUsed(f"the label {released.INPUTS} of {name} is not what its signature says")
        except released.NotUsed as err:
            say(f"the image is built here, not pulled: {err}")
            return False
        self.keep_previous(self.image_id(self.image))
        self.name_images(name, "")
        self.engine("image", "rm", name)  # the name alone: with it, the image would never be removed as unused
        say(f"{self.image} is the released {name}, made from the same files and settings; signed by {release.shown}")
        self.has_built = True
        return True

    def _dockerfile(self) -> str:
        """Return the text of the Dockerfile that is built."""
        return (self.settings.project / "docker/Dockerfile").read_text(encoding="utf-8")

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
        if (self.is_built() and self.has_base()) or not self.engine_root or not Path(self.engine_root).exists():
            return  # only our layers change, or the engine's disk is not visible from here
        needed, free = NEEDED_BYTES[self.kind], shutil.disk_usage(self.engine_root).free
        needed = min(needed, 8e9) if self.has_base() else needed
        if free < needed:
            raise RocmlabError(
                f"the disk of {self.product} has {free / 1e9:.0f} GB free",
                f"{self.engine_root} needs about {needed / 1e9:.0f} GB for the {self.backend} image",
                f"{self.program} system prune, or move the engine's storage to a larger disk",
            )

    def _manifest(self, image: str) -> str:
        """Return an image's manifest from its registry, as JSON; empty where the engine does not report it."""
        return ""

    def _announced(self, base: str, download_bytes: int) -> list[str]:
        """Return what a user should know before gigabytes are pulled."""
        size = f"{amount(download_bytes)} to download" if download_bytes else "its registry does not report how much"
        lines = [f"pulling {base} ({size})"]
        if self.kind == "slim":
            lines.append("  then AMD's wheels of PyTorch and ROCm, about 2 GB for one target")
        lines.append(f"  the {self.backend} image needs about {NEEDED_BYTES[self.kind] / 1e9:.0f} GB of disk with it")
        if Path(self.engine_root).exists() and self.engine_root:
            lines[-1] += f"; {shutil.disk_usage(self.engine_root).free / 1e9:.0f} GB are free in {self.engine_root}"
        if self.kind == "rocm" and self.slim_targets:
            targets = ", ".join(self.slim_targets)
            lines.append(
                f"  make up IMAGE=slim downloads about 3 GB and needs 10: PyTorch for {targets}, no TensorFlow"
            )
        return lines

    def _pull_base(self, say: Say) -> None:
        base = self.values["BASE_IMAGE"]
        if self.has_base():
            return
        if self.base_targets:
            self._make_base(base, say)
            return
        sizes = image_size.layers(self._manifest, base)
        for line in self._announced(base, sum(sizes.values())):
            say(line)
        shown, log, command = PullProgress(sizes), self.settings.state / "pull.log", [self.program, "pull", base]
        with looks.changing():
            code, last = process.follow(command, log=log, show=shown, env=self.environment)
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

    def _make_base(self, base: str, say: Say) -> None:
        """Make the base image of Debian's packages; raise RocmlabError where that is not possible."""
        command = ["scripts/make-rocm-base", base, ",".join(self.base_targets)]
        if os.geteuid():
            rootless = "make up RUNTIME=docker, since root's Podman and yours do not share images"
            raise RocmlabError(
                f"the base image {base} is missing, and only root can make it",
                "its packages are unpacked with their owners",
                f"sudo {' '.join(command)}, then make up" if self.program == "docker" else rootless,
            )
        say(f"making {base} of Debian's packages and TensorFlow for ROCm (2.5 GB to download)")
        log, environment = self.settings.state / "base.log", {**self.environment, "ENGINE": self.program}
        project = self.settings.project
        with looks.changing():
            code, last = process.follow(command, log=log, show=lambda _: None, env=environment, cwd=project)
        if code:
            found = dict(line.strip().partition(": ")[::2] for line in last)
            raise RocmlabError(
                found.get("error", f"{command[0]} failed"),
                found.get("why", last[-1] if last else f"it printed nothing (exit code {code})"),
                f"{found.get('fix', 'see the log')}; complete log: {log}",
            )


def unreadable(program: str, what: str) -> EngineSilent:
    """Return the error of an engine that answers, and not with a description; which may have secrets in it."""
    why = f"`{program} inspect` printed something else"
    return EngineSilent(f"the engine does not describe the {what}", why, f"{program} version, then retry")


def _time_of_build(environment: Mapping[str, str]) -> datetime:
    """Return SOURCE_DATE_EPOCH, which makes two builds the same; without it now.

    Raises:
        RocmlabError: it is no time.
    """
    text = environment.get("SOURCE_DATE_EPOCH")
    try:
        return datetime.fromtimestamp(int(text), timezone.utc) if text else datetime.now(timezone.utc)
    except (ValueError, OverflowError, OSError):
        why, fix = "it is a time in seconds since 1970", "export SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)"
        raise RocmlabError(f"SOURCE_DATE_EPOCH={text} is not a number", why, f"{fix}; or unset it") from None
