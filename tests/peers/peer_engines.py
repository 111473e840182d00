"""A pytest plugin: with PEER_ENGINE=ours papermill's and nbclient's tests run their notebooks with our engine."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest


@pytest.fixture(autouse=True, scope="session")
def _our_engine() -> None:
    if os.environ.get("PEER_ENGINE") != "ours":
        return
    import nbclient
    from papermill.engines import papermill_engines

    from rocmlab.notebook.adapter import RocmlabEngine

    for name in (None, "papermill", "nbclient"):
        papermill_engines.register(name, RocmlabEngine)
    nbclient.NotebookClient.execute = execute


def execute(client: Any, **_: Any) -> Any:
    """Run the notebook of nbclient's client with our engine, and raise what nbclient raises."""
    from nbclient.exceptions import CellExecutionError

    from rocmlab.notebook.adapter import RocmlabEngine

    folder = client.resources.get("metadata", {}).get("path") or "."
    with contextlib.ExitStack() as stack:
        if os.path.abspath(folder) != os.getcwd():
            stack.callback(os.chdir, os.getcwd())
            os.chdir(folder)
        options = {"interrupt_on_timeout": True} if client.interrupt_on_timeout else {}
        executed = RocmlabEngine.execute_notebook(
            client.nb,
            client.kernel_name or client.nb.metadata.get("kernelspec", {}).get("name", "python3"),
            progress_bar=False,
            execution_timeout=client.timeout,
            allow_errors=client.allow_errors,
            **options,
        )
    client.nb.update(executed)
    for cell in client.nb.cells:
        if cell.metadata.get("papermill", {}).get("status") == "failed":
            error = next(output for output in cell.outputs if output.output_type == "error")
            raise CellExecutionError.from_cell_and_msg(cell, error)
    return client.nb
