"""Every notebook keeps the house rules: stripped, titled, parameterised, short cells, a recorded result."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
IMPORT = re.compile(r"^(?:import|from) (?:tensorflow|keras|torch|jax|pyopencl)\b", re.MULTILINE)
# A cell that sets what a framework reads at its import.
SETS_ENVIRONMENT = re.compile(r"os\.environ(?:\.setdefault\(|\[.+\] = )")
MAX_HARNESS_SHARE = 0.15  # of the lines of code: parameters, environment, record
PARAMETER = re.compile(r"(\w+): (?:str|int|float|bool)(?: \| None)? = \S.*?  # \S.*")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    """Return each notebook, one after another."""
    return request.param


@pytest.fixture
def notebook(path):
    """Return the notebook as nbformat reads it."""
    return nbformat.read(path, as_version=nbformat.NO_CONVERT)


@pytest.fixture
def code(notebook):
    """Return the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_is_here():
    """The rules below are checked on all of them, and no number appears twice."""
    numbers = [path.stem[:2] for path in NOTEBOOKS]

    assert sorted(set(numbers)) == numbers
    assert numbers[:12] == [f"{number:02}" for number in range(12)]


def test_nbstripout_has_nothing_to_do(tmp_path):
    """It verifies all of them, as copies."""
    copies = [shutil.copy(path, tmp_path) for path in NOTEBOOKS]

    command = [sys.executable, "-m", "nbstripout", "--keep-id", "--verify", *copies]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_are_those_of_the_oldest_python(tmp_path):
    """A kernel's Python is the base image's, 3.10 or newer, and mypy knows which names of it came later."""
    statement = re.compile(r"^(?:import [\w.]+|from [\w.]+ import [\w, ]+)(?: as \w+)?$", re.MULTILINE)
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    found = {line for cell in cells for line in statement.findall(cell.source)}
    own = sorted(line for line in found if line.split()[1].partition(".")[0] in sys.stdlib_module_names)
    (tmp_path / "imports.py").write_text("\n".join(own))

    command = [sys.executable, "-m", "mypy", "--python-version=3.10", "--cache-dir=/dev/null", "imports.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert len(own) > 10
    assert done.returncode == 0, done.stdout


def test_notebook_is_valid_and_current(notebook):
    """The format is nbformat 4.5, where every cell has an id, and no id appears twice."""
    nbformat.validate(notebook)

    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)


def test_notebook_is_stripped(notebook, code):
    """There are no outputs, counts or traces of a run."""
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert all(set(cell.metadata) <= {"tags"} for cell in notebook.cells)
    assert {"kernelspec", "language_info"} <= set(notebook.metadata) <= {"kernelspec", "language_info", "rocmlab"}


def test_kernel_is_one_of_the_labs(notebook):
    """The notebook opens with a kernel that the lab has."""
    assert notebook.metadata.kernelspec.name in ("tensorflow", "torch")


def test_first_cell_tells_title_lesson_and_needs(notebook):
    """A reader learns first what it is about, what they learn and what it needs."""
    first = notebook.cells[0]

    assert first.cell_type == "markdown"
    assert re.match(r"# \S", first.source)
    assert "**You learn**" in first.source
    assert "**It needs**" in first.source


def test_one_parameters_cell_typed_and_explained(code):
    """The first code cell, and no other, is tagged `parameters`; each line has a type and says what it means."""
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == code[:1]

    found = [PARAMETER.fullmatch(line) for line in tagged[0].source.splitlines()]

    assert all(found), tagged[0].source
    assert {"device", "seed", "quick"} <= {match[1] for match in found}


def test_papermill_reads_every_parameter(code):
    """`papermill --help-notebook` shows them all: it does not understand a line with another `=` in it."""
    for line in code[0].source.splitlines():
        assert line.count("=") == 1, line


def test_the_backend_is_chosen_before_keras_is_imported(code):
    """A notebook that offers Keras' backends chooses one in a cell above `import keras`, and records which it was."""
    if not re.search(r"^backend: ", code[0].source, re.MULTILINE):
        return
    sources = [cell.source for cell in code]
    chosen = next(number for number, source in enumerate(sources) if "= backends.use(backend)" in source)
    imported = next(number for number, source in enumerate(sources) if "\nimport keras\n" in f"\n{source}\n")

    assert chosen < imported
    assert "framework=" in sources[-1] or "**backends.facts(used" in sources[-1]


def test_every_parameter_is_used(code):
    """A parameter that changes nothing would mislead."""
    rest = "\n".join(cell.source for cell in code[1:])

    for line in code[0].source.splitlines():
        assert re.search(rf"\b{line.split(':')[0]}\b", rest), line


def test_cells_are_short(code):
    """No code cell is longer than 25 lines, and there are not more than about 20 of them."""
    assert max(len(cell.source.splitlines()) for cell in code) <= 25
    assert len(code) <= 20


def test_framework_is_set_up_before_it_is_imported(code):
    """The environment a framework reads at import is set in a cell above the import."""
    sources = [cell.source for cell in code]
    set_up = next(number for number, source in enumerate(sources) if SETS_ENVIRONMENT.search(source))
    imports = [number for number, source in enumerate(sources) if IMPORT.search(source) and "%%writefile" not in source]

    assert imports
    assert min(imports) > set_up


def test_no_cell_prints_a_setting(code):
    """A cell that ends by setting a variable has no output: the value itself says nothing to a reader."""
    for cell in code:
        last = cell.source.splitlines()[-1]
        assert not last.startswith("os.environ.setdefault(") or last.partition("  #")[0].endswith(";"), cell.id


def test_last_cell_records_and_then_raises(code):
    """The last cell records the result with its acceptance, then fails if that was missed: in this order."""
    last = code[-1].source

    recorded, asserted = last.index("rocmlab.record("), last.index("\nassert ")
    assert recorded < asserted
    given = ("workload=", "acceptance=")
    environment = () if re.search(r"\*\*(backends\.)?facts\b", last) else ("versions=", "device", "simulated=")
    for word in (*given, *environment):
        assert word in last


def test_most_of_the_code_is_the_method(code):
    """Parameters, environment and record are less than 15 % of the lines of code; blank lines do not count."""
    lines = {cell.id: sum(bool(line.strip()) for line in cell.source.splitlines()) for cell in code}

    harness = {cell.id for cell in code if SETS_ENVIRONMENT.search(cell.source)} | {code[0].id, code[-1].id}

    assert sum(lines[name] for name in harness) < MAX_HARNESS_SHARE * sum(lines.values())


def test_first_cell_names_where_it_was_tested(notebook):
    """A reader sees on which devices and versions the notebook was run."""
    assert re.search(r"\*\*Tested on\*\* \S", notebook.cells[0].source)


def test_the_test_set_does_not_choose_the_epoch(code):
    """Validation data are a set of their own; no result is the best of several on test data."""
    for cell in code:
        assert not re.search(r"validation_data\W{0,3}= ?\(?\w*test", cell.source), cell.id
        assert "[-3:]" not in cell.source, cell.id
