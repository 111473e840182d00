"""The extension as jupyter_server loads and stops it: routes, and one Panel behind all of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_server.extension.application import ExtensionApp

from rocmlab.lab.server import guard, handlers

if TYPE_CHECKING:
    from rocmlab.lab.server.panel import Panel

RECORDING = "RECORD_GPUS"


class PanelApp(ExtensionApp):
    """The GPU panel's half in the server."""

    name = "rocmlab"
    extension_url = "/rocmlab/"

    _panel: Panel | None = None

    def panel(self) -> Panel:
        """Return the one of this server; it is imported and made when a route is first asked."""
        if self._panel is None:
            from rocmlab.lab.server.panel import Panel

            server: Any = self.serverapp
            self._panel = Panel(server.kernel_manager, server.session_manager, Path(server.root_dir))
        return self._panel

    def initialize_handlers(self) -> None:
        """Add our routes."""
        server: Any = self.serverapp
        guard.install(server)
        self.handlers.extend(handlers.routes(self.panel, guard.take_secrets(server)))
        asked = os.environ.get(RECORDING) or "off"
        if asked == "on":
            server.io_loop.add_callback(lambda: self.panel().record())
        elif asked != "off":
            self.log.warning(
                "%s=%r is neither on nor off: the GPUs are read only while a page is open", RECORDING, asked
            )

    async def stop_extension(self) -> None:
        """End the streams, which lets their handlers finish before the server does."""
        if self._panel:
            await self._panel.close()
