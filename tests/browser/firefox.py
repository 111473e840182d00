"""Firefox as it is distributed, driven over WebDriver BiDi: it needs no geckodriver and no patched Firefox."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import websocket

WAIT_SECONDS = 60.0
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Escape": "\ue00c", "Space": " ", "Shift": "\ue008"}
PREFERENCES = {
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "browser.startup.page": 0,
    "captivedetect.canonicalURL": "",
    "datareporting.policy.dataSubmissionEnabled": False,
    "extensions.blocklist.enabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "remote.prefs.recommended": True,
    "services.settings.server": "data:,",
    "toolkit.telemetry.reportingpolicy.firstRun": False,
}
FIND = """(selector, text) => [...document.querySelectorAll(selector)].filter(each =>
    each.getClientRects().length && new RegExp(text).test(each.innerText ?? each.textContent))"""


class Firefox:
    """One window of a Firefox, and what its console says: errors and warnings, with the files they come from."""

    def __init__(self, address: str) -> None:
        self.console: list[str] = []
        self._socket = websocket.create_connection(f"{address}/session", timeout=WAIT_SECONDS, suppress_origin=True)
        self._number = 0
        wanted = {"unhandledPromptBehavior": {"default": "accept"}}  # leaving a notebook that has not been saved
        self.version = self.ask("session.new", capabilities={"alwaysMatch": wanted})["capabilities"]["browserVersion"]
        self.ask("session.subscribe", events=["log.entryAdded"])
        self._window = self.ask("browsingContext.getTree")["contexts"][0]["context"]

    def close(self) -> None:
        """End the Firefox."""
        with contextlib.suppress(OSError, websocket.WebSocketException):
            self.ask("browser.close")
        self._socket.close()

    def ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        """Send a command and return its result; what the console said until then is kept."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "method": method, "params": arguments}))
        while True:
            answer = json.loads(self._socket.recv())
            if answer.get("method") == "log.entryAdded":
                entry = answer["params"]
                if entry["level"] in ("error", "warn"):
                    frames = (entry.get("stackTrace") or {"callFrames": []})["callFrames"]
                    self.console.append("\n  at ".join([entry["text"] or "", *(each["url"] for each in frames)]))
            if answer.get("id") == self._number:
                assert answer["type"] == "success", f"{method}: {answer}"
                found: dict[str, Any] = answer["result"]
                return found

    def size(self, width: int, height: int) -> None:
        """Give the page this size."""
        self.ask("browsingContext.setViewport", context=self._window, viewport={"width": width, "height": height})

    def dark(self, dark: bool) -> None:
        """Prefer dark colours, as a user's desktop does."""
        name = "layout.css.prefers-color-scheme.content-override"
        self._tell_firefox(f'Services.prefs.setIntPref("{name}", {int(not dark)})')
        self.until("wanted => String(matchMedia('(prefers-color-scheme: dark)').matches) === wanted", str(dark).lower())

    def goto(self, address: str) -> None:
        """Open a page, and give it the focus.

        A new window has it in the address bar. Neither `browsingContext.activate` nor a click of BiDi's moves it, as a
        user's click does: the page would get keys, but no event of the focus, without which JupyterLab has no current
        notebook and runs no cell.
        """
        self.ask("browsingContext.navigate", context=self._window, url=address, wait="interactive")
        self._tell_firefox("gBrowser.selectedBrowser.focus()")
        self.until("() => document.hasFocus()")

    def evaluate(self, function: str, *arguments: str) -> Any:
        """Call a JavaScript function with texts, and return what it returns, which JSON has."""
        wrapped = f"async (...all) => JSON.stringify(await ({function})(...all) ?? null)"
        answer = self.ask(
            "script.callFunction",
            functionDeclaration=wrapped,
            arguments=[{"type": "string", "value": each} for each in arguments],
            target={"context": self._window},
            awaitPromise=True,
        )
        assert answer["type"] == "success", answer["exceptionDetails"]["text"]
        return json.loads(answer["result"]["value"])

    def until(self, function: str, *arguments: str) -> Any:
        """Wait until a function returns something that is true, and return that."""
        end = time.monotonic() + WAIT_SECONDS
        while not (found := self.evaluate(function, *arguments)):
            if time.monotonic() > end:
                shown = self.evaluate("() => document.body.innerText")
                raise AssertionError(f"{function} {arguments}: the page shows {shown}; its console {self.console}")
            time.sleep(0.1)
        return found

    def texts(self, selector: str, text: str = "") -> list[str]:
        """Return the texts of the elements that are shown, by a selector and a pattern, without special spaces."""
        found = self.evaluate(f"(...all) => ({FIND})(...all).map(each => each.innerText)", selector, text)
        return [each.replace("\xa0", " ") for each in found]

    def wait_for(self, selector: str, text: str = "") -> None:
        """Wait until an element is shown."""
        self.until(f"(...all) => ({FIND})(...all).length", selector, text)

    def wait_gone(self, selector: str, text: str = "") -> None:
        """Wait until no such element is shown."""
        self.until(f"(...all) => !({FIND})(...all).length", selector, text)

    def click(self, selector: str, text: str = "") -> None:
        """Click on an element with the mouse, when it is shown, stands still, and nothing covers it."""
        where = f"""async (...all) => {{
            const place = () => {{
                const node = ({FIND})(...all)[0];
                node?.scrollIntoView({{block: "nearest"}});
                const box = node?.getBoundingClientRect();
                return box && [Math.round(box.x + box.width / 2), Math.round(box.y + box.height / 2), node];
            }};
            const before = place();
            await new Promise(done => setTimeout(done, 50));
            const now = place();
            if (!before || !now || before[0] !== now[0] || before[1] !== now[1]) return null;
            return now[2].contains(document.elementFromPoint(now[0], now[1])) ? now.slice(0, 2) : null;
        }}"""
        x, y = self.until(f"{where}", selector, text)
        steps = [
            {"type": "pointerMove", "x": x, "y": y},
            {"type": "pointerDown", "button": 0},
            {"type": "pointerUp", "button": 0},
        ]
        self._act({"type": "pointer", "id": "mouse", "actions": steps})

    def press(self, *keys: str) -> None:
        """Press keys together."""
        values = [KEYS.get(key, key) for key in keys]
        steps = [{"type": "keyDown", "value": each} for each in values]
        steps += [{"type": "keyUp", "value": each} for each in reversed(values)]
        self._act({"type": "key", "id": "keyboard", "actions": steps})

    def picture(self, file: Path) -> None:
        """Save what is shown."""
        answer = self.ask("browsingContext.captureScreenshot", context=self._window)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _tell_firefox(self, expression: str) -> None:
        """Evaluate what BiDi has no command for in Firefox's own window."""
        window = self.ask("browsingContext.getTree", **{"moz:scope": "chrome"})["contexts"][0]["context"]
        answer = self.ask("script.evaluate", expression=expression, target={"context": window}, awaitPromise=False)
        assert answer["type"] == "success", answer

    def _act(self, source: dict[str, Any]) -> None:
        self.ask("input.performActions", context=self._window, actions=[source])


def until(condition: Callable[[], bool]) -> None:
    """Wait for something outside of the page."""
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Firefox]:
    """Run Firefox without a display, with a fresh profile and nothing of the user's."""
    profile, log = folder / "profile", folder / "firefox.log"
    profile.mkdir(parents=True)
    lines = [f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items()]
    (profile / "user.js").write_text("".join(lines))
    program = engines.firefox()
    assert program
    command = [program, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    command += ["--remote-allow-system-access"]  # for the focus and the colours
    environment = {**os.environ, "HOME": str(folder), "MOZ_CRASHREPORTER_DISABLE": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    try:
        found = Firefox(_address(process, log))
        try:
            yield found
        finally:
            found.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(WAIT_SECONDS / 2)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return where Firefox listens, when it does."""
    end = time.monotonic() + WAIT_SECONDS
    while not (found := re.search(r"WebDriver BiDi listening on (ws://\S+)", log.read_text(errors="replace"))):
        assert process.poll() is None, log.read_text(errors="replace")
        assert time.monotonic() < end, log.read_text(errors="replace")
        time.sleep(0.1)
    return found[1]
