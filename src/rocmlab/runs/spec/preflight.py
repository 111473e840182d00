"""What can be known of a notebook before it runs: is it readable, is its kernel here, does it know the parameters."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rocmlab.base.errors import RocmlabError
from rocmlab.runs.jobs import Job, Request, Source, stem
from rocmlab.runs.spec import defaults, keys, resources
from rocmlab.runs.spec.selection import Found

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpec

LAB_KERNELS = ("tensorflow", "torch")  # the first that is here is the lab's default, as in JupyterLab
TOP_KEYS = ("cells", "metadata", "nbformat", "nbformat_minor")  # of a notebook in format 4
LANGUAGE_KEYS = (("kernelspec", "language"), ("language_info", "name"))
FITTING: dict[str | None, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def examine(found: Sequence[Found], parameters: Mapping[str, Any], kernel: str | None = None) -> list[Job]:
    """Return a job for each notebook, of one point; see `jobs_of`.

    Args:
        found: what the command line means.
        parameters: given to every notebook.
        kernel: the kernel to use instead of each notebook's own.
    """
    requests = [
        Request(
            word=each.word,
            notebook=str(each.notebook) if each.notebook else None,
            parameters=dict(parameters),
            kernel=kernel,
            problem=each.problem,
        )
        for each in found
    ]
    return jobs_of(requests)


def jobs_of(requests: Sequence[Request]) -> list[Job]:
    """Return a job for each request; what stands in the way of one is its `problem`, and no concern of the others."""
    reader = _Reader()
    return [_examine(request, reader) for request in requests]


class _Reader:
    """Reads each notebook and each kernelspec once, however many jobs they are for."""

    def __init__(self) -> None:
        from jupyter_client.kernelspec import KernelSpecManager

        # Not the kernel of the runner's own interpreter: it has no framework.
        self.specs = KernelSpecManager(ensure_native_kernel=False).find_kernel_specs()
        self.image = keys.image()
        self._notebooks: dict[str, Any] = {}
        self._kernels: dict[str | None, KernelSpec | RocmlabError] = {}
        self._known: dict[tuple[str, str | None], Mapping[str, Any] | RocmlabError | None] = {}
        self._defaults: dict[tuple[str, str], Mapping[str, Any] | RocmlabError] = {}
        self.inputs = keys.Inputs()

    def notebook(self, path: str) -> Any:  # noqa: ANN401  a NotebookNode
        """Return a notebook.

        Raises:
            RocmlabError: it cannot be read.
        """
        return _once(self._notebooks, path, lambda: read(Path(path)))

    def kernel(self, name: str | None) -> Any:  # noqa: ANN401  a KernelSpec
        """Return a kernelspec.

        Raises:
            RocmlabError: there is none of that name.
        """
        return _once(self._kernels, name, lambda: _kernel(name, self.specs))

    def kernel_name(self, asked: str | None, notebook: Any) -> tuple[str | None, str | None]:  # noqa: ANN401
        """Return the kernel for a notebook, and a warning where it is not the one that the notebook names.

        Notebooks from elsewhere name a kernel of another machine, mostly `python3`: those in Python get the lab's
        default kernel. A kernel that the lab could have, such as `torch`, is not replaced.
        """
        own = notebook.metadata.get("kernelspec", {}).get("name")
        default = next((name for name in (*LAB_KERNELS, "python3") if name in self.specs), None)
        is_known = own in self.specs or own in LAB_KERNELS
        if asked or not own or is_known or not default or not _is_python(notebook, own):
            return asked or own, None
        return default, f"its kernel {own!r} was not found; it runs with the lab's default kernel {default!r}"

    def defaults(self, path: str, language: str) -> Mapping[str, Any]:
        """Return what a notebook's own cell sets its parameters to."""
        made: Mapping[str, Any] = _once(
            self._defaults, (path, language), lambda: defaults.of(self.notebook(path), language)
        )
        return made

    def known(self, path: str, kernel: str, language: str) -> Mapping[str, Any] | None:
        """Return the parameters that a notebook declares; None where papermill cannot tell."""
        known: Mapping[str, Any] | None = _once(
            self._known, (path, kernel), lambda: _declared(self.notebook(path), kernel, language)
        )
        return known


def _left(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in defaults.items() if name not in given}


def _once(kept: dict[Any, Any], key: object, make: Callable[[], Any]) -> Any:  # noqa: ANN401  what `make` returns
    if key not in kept:
        try:
            kept[key] = make()
        except RocmlabError as err:
            kept[key] = err
    if isinstance(kept[key], RocmlabError):
        raise kept[key]
    return kept[key]


def _examine(request: Request, reader: _Reader) -> Job:
    asked = request.notebook or request.word
    own_name = stem(asked) if request.name is None else request.name
    job = Job(
        own_name,
        asked,
        request.parameters,
        request.kernel,
        timeout_seconds=request.timeout_seconds,
        request=request,
    )
    if request.notebook is None:
        return replace(job, problem=request.problem)
    try:
        notebook = reader.notebook(request.notebook)
        own = resources.of(notebook)
        name, warning = reader.kernel_name(request.kernel, notebook)
        spec = reader.kernel(name)  # raises where there is no name
        language = str(spec.language or "python")
        if request.parameters:
            known = reader.known(request.notebook, str(name), language)
            if known is not None:
                _check_parameters(request.parameters, known, request.source)
        made = replace(
            job,
            kernel=name,
            warning=warning,
            language=language,
            **request.resources(own)._asdict(),
            defaults=_left(reader.defaults(request.notebook, language), request.parameters),
        )
        key = keys.of(made, notebook, spec, reader.image, reader.inputs)
    except RocmlabError as err:
        return replace(job, problem=err.problem)
    return replace(made, key=key)


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
            warnings.simplefilter("ignore")  # nbformat warns of cells without an id, and adds one
            notebook = nbformat.reads(without_outputs(text), as_version=4)
            nbformat.validate(notebook)
    except nbformat.ValidationError as err:
        raise RocmlabError(f"{path.name} is not a valid notebook", str(err).splitlines()[0], fix) from err
    except Exception as err:  # nbformat lets through whatever a wrong JSON value causes
        raise RocmlabError(f"{path.name} is not a notebook", str(err).strip().splitlines()[0][:200], fix) from err
    return notebook


def without_outputs(text: str) -> str:
    """Return a notebook of format 4 without what its execution discards: old outputs, and keys that it cannot have."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("nbformat") != 4 or not isinstance(found.get("cells"), list):
        return text
    for cell in found["cells"]:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            cell |= {"outputs": [], "execution_count": None}
    return json.dumps({name: value for name, value in found.items() if name in TOP_KEYS})


def _is_python(notebook: Any, kernel: str) -> bool:  # noqa: ANN401  a NotebookNode
    named = [notebook.metadata.get(key, {}).get(name) for key, name in LANGUAGE_KEYS]
    return "python" in named or (not any(named) and kernel in ("python", "python2", "python3"))


def _kernel(kernel: str | None, specs: Mapping[str, str]) -> KernelSpec:
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
        return KernelSpecManager().get_kernel_spec(kernel)
    except (OSError, ValueError) as err:
        raise RocmlabError(f"the kernelspec of {kernel!r} cannot be read", str(err), f"repair {specs[kernel]}") from err


def _declared(notebook: Any, kernel: str, language: str) -> Mapping[str, Any] | None:  # noqa: ANN401  a NotebookNode
    """Return the parameters that a notebook declares, by papermill; None where it cannot read them in this language."""
    from papermill.inspection import inspect_notebook
    from papermill.translators import papermill_translators
    from papermill.utils import find_first_tagged_cell_index

    notebook = copy.deepcopy(notebook)
    # papermill reads the language from the notebook, and stripped notebooks may not have it
    notebook.metadata["language_info"] = {**notebook.metadata.get("language_info", {}), "name": language}
    notebook.metadata["kernelspec"] = {**notebook.metadata.get("kernelspec", {}), "name": kernel}
    known: Mapping[str, Any] = inspect_notebook(notebook)
    tagged = find_first_tagged_cell_index(_tagged(notebook), "parameters") >= 0
    if tagged and not _can_inspect(papermill_translators.find_translator(kernel, language)):
        return None
    return known


def _check_parameters(parameters: Mapping[str, Any], known: Mapping[str, Any], source: Source) -> None:
    unknown = [name for name in parameters if name not in known]
    if not unknown:
        _check_types(parameters, known, source)
        return
    existing = ", ".join(f"{name}={each['default']}" for name, each in known.items())
    why = f"it has these: {existing}" if known else "it has no cell tagged `parameters`"
    plural = "s" if len(unknown) > 1 else ""
    raise RocmlabError(
        f"it has no parameter{plural} {', '.join(unknown)}",
        why,
        "correct the name, or name only notebooks that have it",
    )


def _check_types(parameters: Mapping[str, Any], known: Mapping[str, Any], source: Source) -> None:
    """Compare values with the types that the notebook declares; a parameter without a plain type takes anything."""
    for name, value in parameters.items():
        declared = known[name].get("inferred_type_name")
        fits = FITTING.get(declared)
        if fits and (not isinstance(value, fits) or (isinstance(value, bool) and declared != "bool")):
            raise RocmlabError(
                f"{name}={value} is not of type {declared}",
                f"the notebook declares {name}: {declared} = {known[name]['default']}",
                _written(name, known[name]["default"], source),
            )


def _written(name: str, value: str, source: Source) -> str:
    """Return how a value is given where the job's parameters stand."""
    if source == "words":
        return f"-p {name}={value}"
    return f"write {value} in the column {name}" if source == "csv" else f"parameters: {{{name}: {value}}}"


def _tagged(notebook: Any) -> Any:  # noqa: ANN401  a NotebookNode
    for cell in notebook.cells:
        cell.metadata.setdefault("tags", [])
    return notebook


def _can_inspect(translator: Any) -> bool:  # noqa: ANN401  a translator class of papermill
    """Return whether papermill can list the parameters of this language; where not, none of them is checked."""
    from papermill.translators import Translator

    return bool(translator.inspect.__func__ is not Translator.inspect.__func__)
