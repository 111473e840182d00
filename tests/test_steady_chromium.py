"""The tests' Chromium hears nothing of the network's changes, and has all other sockets."""

from __future__ import annotations

import os
import subprocess
import sys

import engines
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="netlink is Linux's: run it on Linux")
SOCKETS = """\
import errno, socket
for family, kind, protocol in ((1, 1, 0), (2, 1, 0), (10, 2, 0), (16, 2, 15), (16, 2, 0)):
    try:
        socket.socket(family, kind, protocol).close()
        print("made", end=" ")
    except OSError as err:
        print(errno.errorcode[err.errno], end=" ")
"""


def test_only_the_sockets_that_tell_of_the_network_are_refused() -> None:
    """Unix, IPv4, IPv6 and udev's sockets are made; the routing socket is not, in the program and what it starts."""
    done = subprocess.run(
        [engines.STEADY_CHROMIUM, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SOCKETS!r}])"],
        env={**os.environ, "CHROMIUM": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["made", "made", "made", "made", "EAFNOSUPPORT"]


def test_features_that_are_switched_off_are_in_one_list() -> None:
    """Chromium would take the last of several."""
    given = ["--disable-features=A,B", "page", "--disable-features=C"]
    command = [engines.STEADY_CHROMIUM, *given]

    shown = subprocess.check_output(command, env={**os.environ, "CHROMIUM": "/bin/echo"}, text=True)

    assert shown.split() == ["--disable-features=A,B,C", "page"]
