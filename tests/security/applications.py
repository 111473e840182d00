"""A web application of the lab's user, as someone would have it behind `/proxy/PORT/`: one page, and a WebSocket."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

PROGRAM = r"""
import base64, hashlib, http.server, os
TEXT = os.environ["PAGE"].encode()
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Upgrade"):
            self.send_response(101)
            key = hashlib.sha1(self.headers["Sec-WebSocket-Key"].encode() + GUID).digest()
            for pair in {"Upgrade": "websocket", "Connection": "Upgrade",
                         "Sec-WebSocket-Accept": base64.b64encode(key).decode()}.items():
                self.send_header(*pair)
            self.end_headers()
            self.rfile.read()
            return
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(200)
        self.send_header("Content-Length", str(len(TEXT)))
        self.send_header("X-Frame-Options", "ALLOWALL")
        self.end_headers()
        self.wfile.write(TEXT)
    do_POST = do_GET
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""


@contextlib.contextmanager
def application(text: str) -> Iterator[int]:
    """Serve a text, and give the port."""
    environment = {**os.environ, "PAGE": text}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield int(process.stdout.readline())
        finally:
            process.terminate()
