"""Run in a container next to a cluster, by the image's Ray, without its token: what of the cluster can it use?

Usage: stranger.py ADDRESS PORT TOKEN. Prints JSON: by attempt, what came of it; only what is rejected is safe.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

RAY = "/opt/rocmlab/bin/ray"
CONNECT = """
import ray
ray.init(address="{address}:{port}", namespace="rocmlab", log_to_driver=False)
print("connected", ray.get(ray.remote(lambda: 6 * 7).options(num_cpus=0).remote(), timeout=20))
"""
SUBMITTED = ("--no-wait", "--", "true")
HTTP = {"dashboard": 1886, "agent": 5}  # offsets from the head's port
# Not /api/healthz, which tells anybody that the node is well, as a load balancer would ask.
PATHS = ("/", "/api/version", "/api/jobs/", "/nodes?view=summary", "/api/v0/nodes", "/logs", "/metrics")


def attempt(command: list[str], environment: dict[str, str]) -> str:
    """Run a program that should fail, and say how it ended."""
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return "refused: it waited for 90 s"
    last = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    return f"{'refused' if done.returncode else 'DONE'}: {last[0][-300:]}"


def ask(url: str, token: str) -> str:
    """Ask for a page, and say what the server makes of it."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=10) as answer:
            return f"ANSWERED {answer.status}: {answer.read(200)!r}"
    except urllib.error.HTTPError as err:
        return f"{'refused' if err.code in (401, 403) else 'ANSWERED'}: {err.code}"
    except OSError as err:
        return f"refused: {err}"


def main(address: str, port: str, token: str) -> None:
    """Try to join, to submit and to read; an empty token is none at all."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token} if token else {"RAY_AUTH_MODE": "disabled"}
    head = f"{address}:{port}"
    urls = {name: f"http://{address}:{int(port) + offset}" for name, offset in HTTP.items()}
    commands = {
        "join": [RAY, "start", f"--address={head}", "--num-cpus=1", "--object-store-memory=80000000"],
        "connect": [sys.executable, "-c", CONNECT.format(address=address, port=port)],
        "list": [RAY, "status", f"--address={head}"],
        **{f"submit to {name}": [RAY, "job", "submit", f"--address={urls[name]}", *SUBMITTED] for name in urls},
    }
    with ThreadPoolExecutor() as pool:  # most of their time they wait for Ray to give up
        found = {name: pool.submit(attempt, command, environment) for name, command in commands.items()}
        for name, url in urls.items():
            found |= {f"read {name} {path}": pool.submit(ask, url + path, token) for path in PATHS}
    print(json.dumps({name: came.result() for name, came in found.items()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
