"""What can be known of a notebook before it runs: is it readable, is its kernel here, does it know the parameters."""

from __future__ import annotations

import copy
import functools
import os
import re
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rocmlab.base.errors import RocmlabError
from rocmlab.kernels import kernelspec
from rocmlab.kernels.kernelspec import Kernelspec
from rocmlab.notebook.notebooks import without_outputs
from rocmlab.runs.jobs import Job, Request, Source, job_of
from rocmlab.runs.spec import keys, parameters, resources

LAB_KERNELS = ("tensorflow", "torch")  # the first that is here is the lab's default, as in JupyterLab
LANGUAGE_KEYS = (("kernelspec", "language"), ("language_info", "name"))
PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.IGNORECASE)
FITTING: dict[str | None, tuple[type, ...]] = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


def jobs_of(requests: Sequence[Request]) -> list[Job]:
    """Return a job for each request; what prevents one is its `problem`, and does not affect the others."""
    reader = _Reader()
    return [_examine(request, reader) for request in requests]


class _Reader:
    """Reads each notebook and each kernelspec once, however many jobs they are for."""

    def __init__(self) -> None:
        from jupyter_client.kernelspec import KernelSpecManager

        # Not the kernel of the runner's own interpreter: it has no framework.
        self.specs = KernelSpecManager(ensure_native_kernel=False).find_kernel_specs()
        self.image = keys.image()
        self.inputs = keys.Inputs()
        self._kept: dict[Hashable, Any] = {}  # what functions returned, or the error that they raised

    def once(self, read: Callable[..., Any], *arguments: Hashable) -> Any:  # noqa: ANN401  what `read` returns
        """Return what a function returns for these arguments, called only once.

        Raises:
            RocmlabError: that call did.
        """
        key = (read, arguments)
        try:
            kept = self._kept[key]
        except KeyError:
            try:
                kept = read(*arguments)
            except RocmlabError as err:
                kept = err
            self._kept[key] = kept
        if isinstance(kept, RocmlabError):
            raise kept.with_traceback(None)  # else it would grow each time
        return kept

    def kernel_name(self, named: str | None, notebook: Any) -> tuple[str | None, str | None]:  # noqa: ANN401
        """Return the kernel for a notebook, and a warning where it is not the one that the notebook names.

        Notebooks from elsewhere name a kernel of another machine, mostly `python3`: those in Python get the lab's
        default kernel. A kernel that the lab could have, such as `torch`, is not replaced.
        """
        own = notebook.metadata.get("kernelspec", {}).get("name")
        if named or not own:
            return named or own, None
        absent, default = self._labs
        is_known = own in self.specs or own in LAB_KERNELS
        if not default or not _is_python(notebook, own):
            return own, None
        if own in absent:
            return default, f"{absent[own]}; it runs with the kernel {default!r}, where Keras has its own backend"
        if is_known:
            return own, None
        return default, f"its kernel {own!r} was not found; it runs with the lab's default kernel {default!r}"

    @functools.cached_property
    def _labs(self) -> tuple[dict[str, str], str | None]:
        """Why kernels of the lab have no framework, and the default among those that have one."""
        here = [name for name in (*LAB_KERNELS, "python3") if name in self.specs]
        absent = {name: why for name in LAB_KERNELS if (why := self._absence(name))}
        return absent, next((name for name in here if name not in absent), None)

    def _absence(self, name: str) -> str | None:
        """Return why a kernel of the lab's has no framework; None where it has, or is not here."""
        try:
            return kernelspec.absence(self.once(self.kernel, name).specification)
        except RocmlabError:
            return None

    def kernel(self, name: str | None) -> Kernelspec:
        """Return a kernelspec.

        Raises:
            RocmlabError: there is none of that name.
        """
        here = ", ".join(sorted(self.specs)) or "none"
        if not name:
            raise RocmlabError("it does not name a kernel", f"available kernels: {here}", "choose one: --kernel NAME")
        if name not in self.specs:
            raise RocmlabError(
                f"its kernel {name!r} is not installed",
                f"available kernels: {here}",
                "choose one of them: --kernel NAME",
            )
        try:
            return kernelspec.find(name)
        except (OSError, ValueError) as err:
            what = f"the kernelspec of {name!r} cannot be read"
            raise RocmlabError(what, str(err), f"repair {self.specs[name]}") from err

    def gpus(self, kernel: str) -> tuple[int | Literal["all"] | None, str | None]:
        """Return how many GPUs a kernel is for, None where it names no number but one, and a warning about that.

        Raises:
            RocmlabError: its kernelspec has neither a number, nor `all`, nor the address of a GPU.
        """
        wanted = kernelspec.gpus(self.once(self.kernel, kernel).specification)
        if isinstance(wanted, str) and PCI_ADDRESS.fullmatch(wanted):
            only = f"for that one: --gpus {wanted}"
            return None, f"its kernel {kernel!r} is for one certain GPU, and a run chooses the GPUs itself; {only}"
        count = resources.gpus(wanted, f"its kernelspec {kernel!r} asks for gpus")
        return None if count == kernelspec.ONE else count, None

    def packages(self, kernel: str) -> Mapping[str, str]:
        """Return the versions of the user's own packages in a kernel."""
        return keys.packages(self.once(self.kernel, kernel).specification, os.environ)

    def defaults(self, path: Path, language: str) -> Mapping[str, Any]:
        """Return what a notebook's own cell sets its parameters to."""
        return parameters.defaults(self.once(read, path)[0], language)

    def declared(self, path: Path, kernel: str, language: str) -> Mapping[str, Any] | None:
        """Return the parameters that a notebook declares, by papermill; None where it cannot read this language."""
        from papermill.inspection import inspect_notebook
        from papermill.translators import Translator, papermill_translators
        from papermill.utils import find_first_tagged_cell_index

        notebook = copy.deepcopy(self.once(read, path)[0])
        # papermill reads the language from the notebook, and stripped notebooks may not have it
        notebook.metadata["language_info"] = {**notebook.metadata.get("language_info", {}), "name": language}
        notebook.metadata["kernelspec"] = {**notebook.metadata.get("kernelspec", {}), "name": kernel}
        known: Mapping[str, Any] = inspect_notebook(notebook)
        for cell in notebook.cells:
            cell.metadata.setdefault("tags", [])
        if find_first_tagged_cell_index(notebook, "parameters") < 0:
            return known
        translator = papermill_translators.find_translator(kernel, language)
        return known if translator.inspect.__func__ is not Translator.inspect.__func__ else None


def _examine(request: Request, reader: _Reader) -> Job:
    job, given = job_of(request), request.parameters
    if request.notebook is None:
        return job
    path = Path(request.notebook)
    try:
        notebook, content = reader.once(read, path)
        own = resources.of(notebook)
        name, warning = reader.kernel_name(request.kernel, notebook)
        spec: Kernelspec = reader.once(reader.kernel, name)
        if given and (known := reader.once(reader.declared, path, spec.name, spec.language)) is not None:
            _check_parameters(given, known, request.source)
        defaults = reader.once(reader.defaults, path, spec.language)
        for_gpus, note = reader.once(reader.gpus, spec.name)
        made = replace(
            job,
            kernel=spec.name,
            kernelspec=spec,
            warning=warning or note,
            **request.resources(own, for_gpus)._asdict(),
            defaults={name: value for name, value in defaults.items() if name not in given},
            content=content,
        )
        own_packages = reader.once(reader.packages, spec.name)
        key = keys.of(made, notebook, spec.specification, reader.image, reader.inputs, own_packages)
    except RocmlabError as err:
        return replace(job, problem=err.problem)
    return replace(made, key=key)


def read(path: Path) -> tuple[Any, str]:
    """Return a notebook, brought to the present format, and the text that is executed, which has no outputs.

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
            content = without_outputs(text)
            notebook = nbformat.reads(content, as_version=4)
            nbformat.validate(notebook)
    except nbformat.ValidationError as err:
        raise RocmlabError(f"{path.name} is not a valid notebook", str(err).splitlines()[0], fix) from err
    except Exception as err:  # nbformat lets through whatever a wrong JSON value causes
        raise RocmlabError(f"{path.name} is not a notebook", str(err).strip().splitlines()[0][:200], fix) from err
    return notebook, content


def _is_python(notebook: Any, kernel: str) -> bool:  # noqa: ANN401  a NotebookNode
    named = [notebook.metadata.get(key, {}).get(name) for key, name in LANGUAGE_KEYS]
    return "python" in named or (not any(named) and kernel in ("python", "python2", "python3"))


def _check_parameters(given: Mapping[str, Any], known: Mapping[str, Any], source: Source) -> None:
    """Compare names, and values with the types that the notebook declares; without a plain type it takes anything."""
    parameters.check_names(given, {name: f"{name}={each['default']}" for name, each in known.items()})
    for name, value in given.items():
        declared = known[name].get("inferred_type_name")
        fits = FITTING.get(declared)
        if fits and (not isinstance(value, fits) or (isinstance(value, bool) and declared != "bool")):
            raise RocmlabError(
                f"{name}={value} is not of type {declared}",
                f"the notebook declares {name}: {declared} = {known[name]['default']}",
                _written(name, known[name]["default"], source),
            )


def _written(name: str, value: str, source: Source) -> str:
    """Return how a value is given where the job's parameters are written."""
    if source == "words":
        return f"-p {name}={value}"
    return f"write {value} in the column {name}" if source == "csv" else f"parameters: {{{name}: {value}}}"
