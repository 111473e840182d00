"""What the attack needs from the folders of the other tests, and its table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "container"))
sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from attempts import TALLY


def pytest_configure(config: pytest.Config) -> None:
    """Make the cluster of the session known here, too."""
    config.pluginmanager.import_plugin("cluster_nodes")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was tried."""
    if TALLY.rows:
        terminalreporter.section("attack")
        for line in TALLY.lines():
            terminalreporter.write_line(line)
