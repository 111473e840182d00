"""Server extension: what the GPUs do and who has them, over HTTP below `{base_url}rocmlab/`; see docs/panel.md.

`jupyter_config.py` enables it in every lab. Nothing that reads a device is imported before the first request.
"""

from __future__ import annotations


def _jupyter_server_extension_points() -> list[dict[str, object]]:
    from rocmlab.lab.server.app import PanelApp

    return [{"module": "rocmlab.lab.server.app", "app": PanelApp}]
