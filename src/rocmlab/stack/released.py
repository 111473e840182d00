"""The released image in place of a build (PULL=on): only where cosign verifies it, and it is what would be built.

A signature has an annotation: the digest of all that the image was made from. Where that is not ours, the image is not
pulled at all: other files, another base, other settings. What was used, and why, is always one line.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rocmlab import __version__
from rocmlab.base.errors import RocmlabError
from rocmlab.stack import process, source
from rocmlab.stack.settings import Settings

SETTING, FROM, KEY = "PULL", "PULL_FROM", "PULL_KEY"
INPUTS = "rocmlab.inputs"  # the label of an image, and the annotation of its signature
NAMES = {"cpu": "cpu", "cuda": "cuda", "rocm": "rocm", "slim": "rocm-slim"}  # by kind: as .github/workflows/release.yml
REGISTRY = "ghcr.io"  # where that workflow pushes to
ISSUER = "https://token.actions.githubusercontent.com"
REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
ORIGIN = re.compile(r"(?:https://|ssh://git@|git@)github\.com[/:]([\w.-]+/[\w.-]+?)(?:\.git)?/?", re.ASCII)
VERIFY_SECONDS = 120.0
INSTALL = "install it (Debian 13, Fedora, Homebrew: the package cosign; others: docs.sigstore.dev)"


class NotUsed(Exception):
    """Why the released image is not used, as the end of a sentence."""


@dataclass(frozen=True)
class Release:
    """A released image, and who must have signed it."""

    image: str  # with its tag
    signer: tuple[str, ...]  # options of cosign
    shown: str  # the signer, for a reader

    def verified(self, inputs: str, environment: Mapping[str, str]) -> str:
        """Return the image by its digest: signed by whom it must be, and made from these inputs.

        Raises:
            NotUsed: it is not.
        """
        cosign = shutil.which("cosign", path=environment.get("PATH"))
        if cosign is None:
            raise NotUsed(f"cosign, which verifies it, is missing: {INSTALL}")
        command = [cosign, "verify", "--output", "json", *self.signer, self.image]
        code, output, errors = process.outputs(command, env=environment, timeout_seconds=VERIFY_SECONDS)
        if code:
            lines = [line for line in errors.splitlines() if line.strip() and not line.startswith("WARNING")]
            raise NotUsed(f"{self.image} is not verified as signed by {self.shown}: {_reason(lines)}")
        found = dict(_signed(output))
        digests = [digest for digest, annotation in found.items() if annotation == inputs]
        if not digests:
            raise NotUsed(f"{self.image} is made from other files or settings than yours")
        return f"{self.image.rpartition(':')[0]}@{digests[0]}"


def of(settings: Settings, kind: str) -> Release:
    """Return the release for a kind of image.

    Raises:
        NotUsed: there is none.
        RocmlabError: a setting for it is wrong.
    """
    if kind not in NAMES:
        raise NotUsed(f"no {kind} image is released")
    key, place = settings.get(KEY), settings.get(FROM)
    if key:
        path = settings.path(key)
        if not place or not path.is_file():
            what = f"{KEY}={key} is not a file" if place else f"{FROM} is not set"
            why = f"with a key of yours, {FROM} names registry and path of the images, and {KEY} the public key's file"
            raise RocmlabError(what, why, f"make up {FROM}=registry.example/rocmlab {KEY}=cosign.pub; or {SETTING}=off")
        by_key = ("--key", str(path), "--insecure-ignore-tlog=true")  # who signs with a key may be offline
        return Release(f"{place.rstrip('/')}/{NAMES[kind]}:{__version__}", by_key, f"the key {path}")
    repository = place or _origin(settings.project)
    if not repository:
        raise NotUsed(f"this folder is no clone of a GitHub repository, and {FROM} names none")
    if not REPOSITORY.fullmatch(repository):
        why = f"it is a repository on GitHub, OWNER/NAME; with {KEY} also a registry and a path in it"
        raise RocmlabError(f"invalid {FROM}={repository}", why, f"make up {FROM}=OWNER/rocmlab; or {SETTING}=off")
    workflow = f"https://github.com/{repository}/.github/workflows/release.yml@refs/tags/v{__version__}"
    by_workflow = ("--certificate-oidc-issuer", ISSUER, "--certificate-identity", workflow)
    return Release(f"{REGISTRY}/{repository.lower()}/{NAMES[kind]}:{__version__}", by_workflow, workflow)


def is_chosen(settings: Settings) -> bool:
    """Return whether the user allows it.

    Raises:
        RocmlabError: PULL is neither on nor off.
    """
    value = settings.get(SETTING)
    if value not in ("on", "off"):
        why = "on: a released image may be pulled in place of a build; off: it is built"
        raise RocmlabError(f"invalid {SETTING}={value}", why, f"make up {SETTING}=on")
    return value == "on"


def environment_of(values: Mapping[str, str], project: Path) -> dict[str, str]:
    """Return the environment of cosign: as the engine's, and the authorities of CA_BUNDLE."""
    bundle = values.get("CA_BUNDLE", "")
    given = {"SSL_CERT_FILE": str(project / os.path.expanduser(bundle))} if bundle else {}
    return {**given, **values}


def _origin(project: Path) -> str:
    """Return the repository on GitHub that a clone comes from, whose code it runs already; empty: none."""
    code, top = source.git(project, "rev-parse", "--show-toplevel")
    if code or Path(top.strip()).resolve() != project.resolve():
        return ""  # of a repository that this folder lies in
    code, address = source.git(project, "remote", "get-url", "origin")
    found = ORIGIN.fullmatch(address.strip()) if code == 0 else None
    return found[1] if found else ""


def _signed(output: str) -> list[tuple[str, str]]:
    """Return digest and inputs of each verified signature."""
    try:
        payloads = json.loads(output)
    except ValueError:
        return []
    found = []
    for payload in payloads if isinstance(payloads, list) else []:
        try:
            digest, annotations = payload["critical"]["image"]["docker-manifest-digest"], payload["optional"] or {}
        except (KeyError, TypeError):
            continue
        if re.fullmatch(r"sha256:[0-9a-f]{64}", str(digest)):
            found.append((str(digest), str(annotations.get(INPUTS, ""))))
    return found


def _reason(lines: list[str]) -> str:
    """Return why cosign failed, without its usual beginning."""
    return re.sub(r"^(Error|error|main\.go:\d+): ", "", lines[-1] if lines else "no output")[:300]
