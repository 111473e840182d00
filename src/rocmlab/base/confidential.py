"""The names of our own secrets, in the one table that every start of a process uses.

Kernels, terminals, jobs, fork servers and Ray's workers run users' code, whose output is saved in notebooks and logs:
none of these names reaches them. HF_TOKEN is not in the table: it is the user's own, for use in notebooks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

TOKENS = ("JUPYTER_TOKEN", "METRICS_TOKEN", "CLUSTER_TOKEN", "RAY_AUTH_TOKEN")
FILES = ("JUPYTER_TOKEN_FILE", "METRICS_TOKEN_FILE")  # paths of files with a secret, which only the server reads
NAMES = (*TOKENS, *FILES, "GRAFANA_PASSWORD", "NOTIFY")  # the last: a webhook's address is a secret by itself


def without(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without our secrets."""
    return {name: value for name, value in environment.items() if name not in NAMES}


def forget() -> dict[str, str]:
    """Remove our secrets from the environment of this process, and return them by name."""
    return {name: os.environ.pop(name) for name in NAMES if name in os.environ}
