"""`rocmlab devices`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rocmlab.cli.main import verb_parser
from rocmlab.cli.table import device_lines
from rocmlab.devices import discover, is_simulated, system_root


def main(verb: str, arguments: Sequence[str]) -> int:
    """Print the devices; exit code 0 even where there is only the CPU."""
    parser = verb_parser(verb)
    parser.add_argument("--json", action="store_true", help="print everything known, as JSON")
    chosen = parser.parse_args(arguments)
    found = [device.as_dict() for device in discover()]
    if chosen.json:
        print(json.dumps({"simulated": is_simulated(system_root()), "devices": found}, indent=1))
    else:
        print("\n".join(device_lines(found)))
    return 0
