"""Exit 0 when the lab's server answers: one request to {base_url}api of the server that wrote its address here.

Run with `python -S -E`: it needs the standard library only, and a check repeats for ever.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
from pathlib import Path


def check(server: dict[str, object]) -> None:
    """Ask the server; http.client knows no proxies.

    Raises:
        OSError: there is no answer.
        RuntimeError: the answer is not 200.
    """
    host = str(server["hostname"])
    address = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    if server["secure"]:
        # The certificate names the address in the browser, not the loopback.
        context = ssl._create_unverified_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            address, int(str(server["port"])), timeout=4, context=context
        )
    else:
        connection = http.client.HTTPConnection(address, int(str(server["port"])), timeout=4)
    connection.request("GET", f"{server['base_url']}api")
    status = connection.getresponse().status
    if status != 200:
        raise RuntimeError(f"{server['url']}api answered {status}")


def main() -> int:
    """Check the server that started last."""
    folder = Path(os.environ.get("JUPYTER_RUNTIME_DIR", "/tmp/jupyter-runtime"))
    records = sorted(folder.glob("jpserver-*.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        sys.stderr.write(f"no server has written its address to {folder}\n")
        return 1
    try:
        check(json.loads(records[-1].read_text()))
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as err:
        sys.stderr.write(f"{err}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
