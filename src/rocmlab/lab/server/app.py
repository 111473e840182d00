"""The extension as jupyter_server loads and stops it: routes, and one Panel behind all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_server.extension.application import ExtensionApp
from tornado.ioloop import PeriodicCallback
from tornado.web import HTTPError

from rocmlab.base import hosts, live
from rocmlab.lab.closing import close_all
from rocmlab.lab.recorder.recorder import OutputsHandler, Recorder
from rocmlab.lab.server import ending, executing, guard, handlers, leased, tls
from rocmlab.lab.server.idle import CULLING
from rocmlab.lab.server.logfile import LogFile
from rocmlab.lab.server.login import Login
from rocmlab.lab.server.notices import NoticesHandler

if TYPE_CHECKING:
    from rocmlab.lab.extension import Culling
    from rocmlab.lab.holding import Holding
    from rocmlab.lab.server.activity import Activity
    from rocmlab.lab.server.panel import Panel

TOP = "/home/jovyan"  # of the image
RECORDING = "RECORD_GPUS"
LOOK_SECONDS = 3.0  # at the settings: one `stat`


class PanelApp(ExtensionApp):
    """The GPU panel's half in the server."""

    name = "rocmlab"
    extension_url = "/rocmlab/"

    _panel: Panel | None = None
    _watch: PeriodicCallback | None = None
    _gpus_watch: PeriodicCallback | None = None
    _culling: Culling | None = None
    _holding: Holding | None = None
    _tls: tls.Listener | None = None
    _log_file: LogFile | None = None
    _recorder: Recorder | None = None
    _login: Login | None = None
    _activity: Activity | None = None
    _applied_recording = "off"

    def panel(self) -> Panel:
        """Return the one of this server; it is imported and created at the first request."""
        if self._panel is None:
            from rocmlab.lab.server.panel import Panel

            server: Any = self.serverapp
            self._panel = Panel(server.kernel_manager, server.session_manager, Path(server.root_dir))
        return self._panel

    def initialize_handlers(self) -> None:
        """Add our routes, and reject what would be saved where nothing persists."""
        server: Any = self.serverapp
        if has_only_links(os.environ):
            server.contents_manager.register_pre_save_hook(reject_at_top)
        guard.install(server)
        executing.install(server.kernel_manager)
        self.handlers.extend(handlers.routes(self.panel, guard.take_secrets(server)))
        self._tls = tls.of(server)
        self._log_file = LogFile.of()
        self._recorder = Recorder(server)
        self._recorder.install()
        self.handlers.append((r"/rocmlab/api/outputs/([\w-]+)", OutputsHandler, {"recorder": self._recorder}))
        if hosts.is_behind_hub(os.environ):
            from rocmlab.lab.server.activity import Activity

            self._activity = Activity(server)
            self.handlers.append((r"/rocmlab/api/notices", NoticesHandler))
        else:
            self._login = Login(server)
        server.io_loop.add_callback(self._watch_settings)

    def _watch_settings(self) -> None:
        """Follow the settings that change without a restart; on the event loop."""
        self._apply_settings()
        self._watch = PeriodicCallback(self._apply_settings, LOOK_SECONDS * 1000)
        self._watch.start()
        self._gpus_watch = PeriodicCallback(self._follow_gpus, LOOK_SECONDS * 1000)
        self._gpus_watch.start()

    def _apply_settings(self) -> None:
        if self._login is not None:
            self._login.follow()
        if self._tls is not None:
            self._tls.follow()
        if self._activity is not None:
            self._activity.follow()
        if self._log_file is not None:
            self._log_file.follow()
        found = live.values()
        if (recording := found.get(RECORDING) or "off") != self._applied_recording:
            self._applied_recording = recording
            self._apply_recording(recording)
        culling = found.get(CULLING) or "0"
        if self._culling is None and culling != "0":
            from rocmlab.lab.extension import Culling

            self._culling = Culling(self.serverapp)
        if self._culling is not None:
            self._culling.apply(culling)
        server: Any = self.serverapp
        if self._holding is None and server.kernel_manager.list_kernel_ids():  # only they hold something
            from rocmlab.lab.holding import Holding

            self._holding = Holding(server)
            self._holding.start()

    def _follow_gpus(self) -> None:
        """Count what notebooks take of GPUs from the first lease on, and keep a history where GPUs are of amdgpu.

        Elsewhere nothing is imported for either.
        """
        server: Any = self.serverapp
        if has_amdgpu(os.environ):
            self.panel().keep_history()
        if leased.has_any(server.kernel_manager):
            self.panel().follow_costs()

    def _apply_recording(self, value: str) -> None:
        if value == "on":
            self.panel().record()
            return
        if self._panel is not None:
            self._panel.stop_recording()
        if value != "off":
            self.log.warning(
                "%s=%r is neither on nor off: the GPUs are read only while a page is open", RECORDING, value
            )

    async def stop_extension(self) -> None:
        """End the streams, and let the handlers finish before the server does."""
        ending.leave_threads(self.log)
        stopped = (self._watch, self._gpus_watch, self._culling, self._holding, self._tls)
        closings = [each.stop for each in stopped if each is not None]
        closings += [each.close for each in (self._recorder, self._panel) if each is not None]
        # After an error here jupyter_server would not end.
        await close_all([*closings, ending.finish_requests], self.log)


def has_amdgpu(environment: Mapping[str, str]) -> bool:
    """Return whether the driver is there; by one look, for which `rocmlab.devices` is not imported."""
    return os.path.isdir(f"{environment.get('ROCMLAB_ROOT') or '/'}/sys/bus/pci/drivers/amdgpu")


def has_only_links(environment: Mapping[str, str]) -> bool:
    """Return whether the top level only shows work/ and share/; a hub mounts a home that persists in its place."""
    runtime = environment.get("ROCMLAB_RUNTIME")
    return runtime == "native" or (runtime in ("docker", "podman") and not os.access(TOP, os.W_OK))


def reject_at_top(*, path: str, **_: object) -> None:
    """Reject a save at the top level with status 403, which JupyterLab shows; the folder's mode would not stop root."""
    name = path.strip("/")
    if "/" not in name:
        raise HTTPError(
            403,
            f"{name} was not saved: this level holds only work/ and share/, and anything else in it would be lost. "
            "Open the folder work (or share) and save it there; what you typed is still in the browser.",
        )
