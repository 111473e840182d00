"""The command line: `rocmlab COMMAND`, the only place that prints results and decides the exit code."""

from rocmlab.cli.main import main

__all__ = ["main"]
