"""`rocmlab serve`: metrics of this host's GPUs for Prometheus, without Jupyter."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from rocmlab.base import live
from rocmlab.base.errors import RocmlabError
from rocmlab.cli.main import command_parser
from rocmlab.devices import is_simulated, system_root

PORT = 9417
NAMES = ("rocmlab", "amd", "both")


def main(command: str, arguments: Sequence[str]) -> int:
    """Serve until Ctrl-C or SIGTERM."""
    chosen = build_parser(command).parse_args(arguments)
    token = _token(chosen.token_file)
    from rocmlab.telemetry import metrics
    from rocmlab.telemetry.metrics_server import MetricsServer
    from rocmlab.telemetry.metrics_source import MetricsSource

    metrics.check_library()

    source = MetricsSource(system_root(), _names(chosen.names))
    server = MetricsServer(chosen.address, chosen.port, source.exposition, token)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        gpus = source.observer.find()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        simulated = " SIMULATED" if is_simulated(system_root()) else ""
        print(f"metrics of {len(gpus)}{simulated} GPU{'s' * (len(gpus) != 1)}: {server.url}", flush=True)
        if not server.is_local and not token:
            print(
                f"anyone who reaches {chosen.address} can read them, names of notebooks and users included; "
                "--token-file FILE asks for a token",
                file=sys.stderr,
            )
        ended.wait()
        server.shutdown()
    finally:
        server.server_close()
        source.observer.close()
    return 0


def build_parser(command: str) -> argparse.ArgumentParser:
    """Return the parser of `rocmlab serve`."""
    parser = command_parser(
        command,
        example="--address 0.0.0.0 --token-file token",
        epilog="docs/monitoring.md lists the names, and how to point a Prometheus here.",
    )
    parser.add_argument(
        "--port", type=_port, default=PORT, metavar="N", help=f"port to listen on, 0 for any free one (default: {PORT})"
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="address to listen on (default: 127.0.0.1, this host alone)",
    )
    parser.add_argument(
        "--names",
        choices=NAMES,
        help="rocmlab's own names, those of AMD's exporter, or both (default: GPU_METRICS_NAMES, else rocmlab)",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="require the token in this file, as `Authorization: Bearer …`"
    )
    return parser


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text} is not a port: a number from 0 to 65535")


def _names(asked: str | None) -> str:
    names = asked or live.get("GPU_METRICS_NAMES") or "rocmlab"
    if names not in NAMES:
        raise RocmlabError(
            f"invalid GPU_METRICS_NAMES value {names!r}", "", f"choose one of: {', '.join(NAMES)}"
        )  # fmt: skip
    return names


def _token(file: str | None) -> str:
    if file is None:
        return ""
    try:
        token = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as err:
        raise RocmlabError(f"--token-file {file} cannot be read", str(err), "name a file that holds the token") from err
    if not token or not token.isprintable():
        raise RocmlabError(
            f"--token-file {file} contains no token",
            "it is empty, or has several lines",
            f"python3 -c 'import secrets; print(secrets.token_hex(32))' > {file}",
        )
    return token
