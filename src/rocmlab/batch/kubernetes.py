"""An exported run as Indexed Jobs for Kubernetes, one for each number of GPUs, and a Job that collects.

Needs Kubernetes 1.29 or newer for `backoffLimitPerIndex` (stable since 1.33). Source: the reference of batch/v1 Job.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from rocmlab.batch.commands import IN_THE_IMAGE
from rocmlab.batch.layout import Group, Layout
from rocmlab.runs.jobs import EXIT_CODES
from rocmlab.runs.outcome.retries import MAY_PASS

FILE = "kubernetes.yaml"
RESOURCES = {"rocm": "amd.com/gpu", "cuda": "nvidia.com/gpu"}
MAX_NAME_CHARACTERS = 40  # letters, so that a pod's host name, with the index behind it, fits into 63
KEPT_SECONDS = 7 * 86400  # of a Job that has ended
WAIT_SECONDS = 7 * 86400  # for the last job, by the one that collects
GRACE_SECONDS = 60  # to save a notebook
USERS_GROUP = 100  # of the image's user

Document = dict[str, Any]


def documents(layout: Layout, folder: Path, args: argparse.Namespace) -> list[Document]:
    """Return the Jobs; the pods see the run's folder, which is in the share, at the same path.

    Raises:
        RocmlabError: the pods would not see a notebook.
    """
    layout.check_seen("the pods see")
    return [*(_indexed(group, layout, folder, args) for group in layout.groups), _collecting(layout, folder, args)]


def text(made: list[Document]) -> str:
    """Return the documents as YAML."""
    import yaml  # type: ignore[import-untyped]

    return str(yaml.safe_dump_all(made, sort_keys=False, explicit_start=True, width=120))


def name(run: str, ending: str) -> str:
    """Return a name that Kubernetes takes: small letters, digits and `-`, the end of a run's name if it is long."""
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    return f"r{plain}"[: MAX_NAME_CHARACTERS - len(ending) - 1].rstrip("-") + f"-{ending}"


def _indexed(group: Group, layout: Layout, folder: Path, args: argparse.Namespace) -> Document:
    arguments = ["export", "job", str(folder), "--first", str(group.first)]
    spec = {
        "completionMode": "Indexed",
        "completions": group.count,
        "parallelism": min(group.count, args.parallel or group.count),
        "backoffLimitPerIndex": layout.retries,
        "maxFailedIndexes": group.count,  # one that fails does not end the others
        "podFailurePolicy": {"rules": _rules()},
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": _template(arguments, group.gpus, layout, args),
    }
    return _job(name(layout.run, f"{group.gpus}gpu"), layout, args, spec)


def _rules() -> list[Document]:
    """Return which ends are retried. Kubernetes takes the first rule that fits."""
    passing = sorted(EXIT_CODES[status] for status in MAY_PASS)
    lasting = sorted({2, *(code for code in EXIT_CODES.values() if code and code not in passing)})
    return [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},  # a drained node
        {"action": "Count", "onExitCodes": {"containerName": "rocmlab", "operator": "In", "values": passing}},
        {"action": "FailIndex", "onExitCodes": {"containerName": "rocmlab", "operator": "In", "values": lasting}},
    ]


def _collecting(layout: Layout, folder: Path, args: argparse.Namespace) -> Document:
    arguments = ["export", "collect", str(folder), "--wait", str(WAIT_SECONDS)]
    spec = {
        "backoffLimit": 3,
        "podFailurePolicy": {  # 1 means that a notebook has failed, which no retry fixes
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "rocmlab", "operator": "In", "values": [1, 2]},
                },
            ]
        },
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": _template(arguments, 0, layout, args, is_small=True),
    }
    return _job(name(layout.run, "collect"), layout, args, spec)


def _job(called: str, layout: Layout, args: argparse.Namespace, spec: Document) -> Document:
    metadata: Document = {"name": called}
    if args.namespace:
        metadata["namespace"] = args.namespace
    metadata["labels"] = _labels(layout)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _labels(layout: Layout) -> dict[str, str]:
    return {"app.kubernetes.io/name": "rocmlab", "rocmlab/run": name(layout.run, "run")}


def _template(
    arguments: list[str], gpus: int, layout: Layout, args: argparse.Namespace, *, is_small: bool = False
) -> Document:
    share = [{"name": "share", "mountPath": layout.share}, {"name": "shm", "mountPath": "/dev/shm"}]
    environment = {"ROCMLAB_SHARE": layout.share, "ROCMLAB_BACKEND": layout.backend if gpus else "cpu"}
    environment["HOME"] = "/tmp"  # nothing of it outlives a pod, and the image's own home is on a share
    container = {
        "name": "rocmlab",
        "image": args.image,
        "command": [IN_THE_IMAGE],
        "args": arguments,
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "resources": _resources(gpus, layout.backend, args, is_small=is_small),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": share,
    }
    spec: Document = {
        "restartPolicy": "Never",  # which a failure policy demands: each attempt is a new pod, perhaps elsewhere
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "automountServiceAccountToken": False,
        "securityContext": _security(args),
        **({"nodeSelector": dict(args.node_selector)} if args.node_selector and gpus else {}),
        "containers": [container],
        "volumes": [
            {"name": "share", "persistentVolumeClaim": {"claimName": args.claim}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _size(args.shm)}},
        ],
    }
    return {"metadata": {"labels": _labels(layout)}, "spec": spec}


def _security(args: argparse.Namespace) -> Document:
    """Return who the pod is. The device plugin passes the nodes as they are, so their group must also be its own."""
    groups = {"supplementalGroups": sorted(set(args.group))} if args.group else {}
    return {
        "runAsUser": args.user,
        "runAsGroup": USERS_GROUP,
        "runAsNonRoot": True,
        "fsGroup": USERS_GROUP,
        "fsGroupChangePolicy": "OnRootMismatch",
        **groups,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _resources(gpus: int, backend: str, args: argparse.Namespace, *, is_small: bool) -> Document:
    if is_small:
        return {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
    requests: dict[str, str] = {}
    if args.cpus:
        requests["cpu"] = str(args.cpus)
    if args.job_memory:
        requests["memory"] = _size(args.job_memory)
    limits = {name: value for name, value in requests.items() if name == "memory"}
    if gpus:
        limits[RESOURCES[backend]] = str(gpus)
    return {kind: values for kind, values in (("requests", requests), ("limits", limits)) if values}


def _size(count: int) -> str:
    return f"{-(-count // 2**20)}Mi"
