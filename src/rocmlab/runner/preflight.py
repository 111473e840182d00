"""What can be known of a notebook before it runs: is it readable, is its kernel here, does it know the parameters."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rocmlab.errors import RocmlabError
from rocmlab.runner.jobs import Job, stem
from rocmlab.runner.selection import Found

FITTING: dict[str | None, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def examine(found: Sequence[Found], parameters: Mapping[str, Any], kernel: str | None = None) -> list[Job]:
    """Return a job for each notebook; what stands in the way of one is its `problem`, and no concern of the others.

    Args:
        found: what the command line means.
        parameters: given to every notebook.
        kernel: the kernel to use instead of each notebook's own.
    """
    from jupyter_client.kernelspec import KernelSpecManager

    # Not the kernel of the runner's own interpreter: it has no framework.
    specs = KernelSpecManager(ensure_native_kernel=False).find_kernel_specs()
    return [_examine(each, dict(parameters), kernel, specs) for each in found]


def _examine(found: Found, parameters: dict[str, Any], kernel: str | None, specs: Mapping[str, str]) -> Job:
    asked = str(found.notebook or found.word)
    job = Job(stem(asked), asked, parameters, kernel)
    if found.notebook is None:
        return replace(job, problem=found.problem)
    try:
        notebook = read(found.notebook)
        gpus = wanted_gpus(notebook)
        name = kernel or notebook.metadata.get("kernelspec", {}).get("name")
        language = _language(name, specs)
        if parameters:
            _check_parameters(notebook, parameters, name, language)
    except RocmlabError as err:
        return replace(job, problem=err.problem)
    return replace(job, kernel=name, language=language, gpus=gpus)


def read(path: Path) -> Any:  # noqa: ANN401  a NotebookNode
    """Return a notebook, brought to the present format.

    Raises:
        RocmlabError: it cannot be read, or is not a notebook.
    """
    import nbformat

    fix = "open it in JupyterLab and save it again, or restore it"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        raise RocmlabError(f"{path.name} cannot be read", str(err), fix) from err
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nbformat warns of cells without an id, and mends them
            notebook = nbformat.reads(text, as_version=4)
            nbformat.validate(notebook)
    except nbformat.ValidationError as err:
        raise RocmlabError(f"{path.name} is not a valid notebook", str(err).splitlines()[0], fix) from err
    except Exception as err:  # nbformat lets through whatever a wrong JSON value causes
        raise RocmlabError(f"{path.name} is not a notebook", str(err).strip().splitlines()[0][:200], fix) from err
    return notebook


def wanted_gpus(notebook: Any) -> int | Literal["all"] | None:  # noqa: ANN401  a NotebookNode
    """Return how many GPUs a notebook's metadata asks for (`{"rocmlab": {"gpus": "all"}}`), None if it says nothing.

    Raises:
        RocmlabError: the metadata says something else than `all` or a number.
    """
    ours = notebook.metadata.get("rocmlab", {})
    gpus = ours.get("gpus") if isinstance(ours, Mapping) else ours
    if gpus is None or gpus == "all":
        return "all" if gpus else None
    if isinstance(gpus, int) and not isinstance(gpus, bool) and gpus >= 0:
        return gpus
    raise RocmlabError(
        f"its metadata asks for rocmlab.gpus = {gpus!r}",
        "this is not a number of GPUs",
        'use {"rocmlab": {"gpus": "all"}}, or a number; 0 is the CPU',
    )


def _language(kernel: str | None, specs: Mapping[str, str]) -> str:
    from jupyter_client.kernelspec import KernelSpecManager

    here = ", ".join(sorted(specs)) or "none"
    if not kernel:
        raise RocmlabError("it names no kernel", f"these kernels exist: {here}", "choose one: --kernel NAME")
    if kernel not in specs:
        raise RocmlabError(
            f"its kernel {kernel!r} is not here",
            f"these kernels exist: {here}",
            "choose one of them: --kernel NAME",
        )
    try:
        return str(KernelSpecManager().get_kernel_spec(kernel).language or "python")
    except (OSError, ValueError) as err:
        raise RocmlabError(f"the kernelspec of {kernel!r} cannot be read", str(err), f"mend {specs[kernel]}") from err


def _check_parameters(notebook: Any, parameters: Mapping[str, Any], kernel: str, language: str) -> None:  # noqa: ANN401
    from papermill.inspection import inspect_notebook
    from papermill.translators import papermill_translators
    from papermill.utils import find_first_tagged_cell_index

    # papermill reads the language from the notebook, and stripped notebooks may not have it
    notebook.metadata["language_info"] = {**notebook.metadata.get("language_info", {}), "name": language}
    notebook.metadata["kernelspec"] = {**notebook.metadata.get("kernelspec", {}), "name": kernel}
    known = inspect_notebook(notebook)
    tagged = find_first_tagged_cell_index(_tagged(notebook), "parameters") >= 0
    if tagged and not _can_inspect(papermill_translators.find_translator(kernel, language)):
        return
    unknown = [name for name in parameters if name not in known]
    if not unknown:
        _check_types(parameters, known)
        return
    existing = ", ".join(f"{name}={each['default']}" for name, each in known.items())
    why = f"it has these: {existing}" if known else "it has no cell tagged `parameters`"
    plural = "s" if len(unknown) > 1 else ""
    raise RocmlabError(
        f"it has no parameter{plural} {', '.join(unknown)}", why, "correct -p, or name only notebooks that have it"
    )


def _check_types(parameters: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Compare values with the types that the notebook declares; a parameter without a plain type takes anything."""
    for name, value in parameters.items():
        declared = known[name].get("inferred_type_name")
        fits = FITTING.get(declared)
        if fits and (not isinstance(value, fits) or (isinstance(value, bool) and declared != "bool")):
            raise RocmlabError(
                f"{name}={value} is not of type {declared}",
                f"the notebook declares {name}: {declared} = {known[name]['default']}",
                f"-p {name}={known[name]['default']}",
            )


def _tagged(notebook: Any) -> Any:  # noqa: ANN401  a NotebookNode
    for cell in notebook.cells:
        cell.metadata.setdefault("tags", [])
    return notebook


def _can_inspect(translator: Any) -> bool:  # noqa: ANN401  a translator class of papermill
    """Tell whether papermill can list the parameters of this language; where it cannot, nothing can be said of them."""
    from papermill.translators import Translator

    return bool(translator.inspect.__func__ is not Translator.inspect.__func__)
