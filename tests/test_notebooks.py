"""The notebooks run from any folder, and what is committed with them is what they show."""

from __future__ import annotations

import html
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat", reason="needs the extra notebooks")
pytest.importorskip("nbclient", reason="needs the extra notebooks")

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NUMBER = re.compile(r"[-+\u2212]?\d+(?:\.\d+)?")

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def words_and_numbers(text: str) -> tuple[str, list[float]]:
    """A text, or the text of HTML, with a mark for each number, and the numbers."""
    plain = html.unescape(re.sub(r"<[^>]*>", " ", text))
    numbers = [float(found.replace("\u2212", "-")) for found in NUMBER.findall(plain)]
    return " ".join(NUMBER.sub("#", plain).split()), numbers


def shown(cell: Any) -> list[tuple[str, str, list[float]]]:
    """Kind, words and numbers of each output; of a picture only that it is there."""
    found = []
    for output in cell.outputs:
        if output.output_type == "stream":
            found.append((output.name, *words_and_numbers(output.text)))
        for kind, content in sorted(output.get("data", {}).items()):
            of_picture = kind.startswith("image/") or "image/png" in output.data
            found.append((kind, *(("", []) if of_picture else words_and_numbers(content))))
    return found


def test_there_are_five() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@each_notebook
def test_outputs_are_committed(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    assert {"image/png", "text/html"} <= kinds


@each_notebook
def test_nothing_tells_of_the_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"} and set(notebook.metadata.language_info) == {
        "name"
    }
    assert not any(cell.metadata for cell in notebook.cells)
    for cell in code_cells(notebook):
        texts = [o.get("text", "") + "".join(map(str, o.get("data", {}).values())) for o in cell.outputs]
        told = cell.source + "".join(text for text in texts if "iVBOR" not in text)
        assert not re.search(r"(?<![\w.:/<])/(?:home|tmp|root|usr|work|Users|opt)/|0x[0-9a-f]{6,}", told)


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks_execute", FOLDER / "execute.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.real_model
@pytest.mark.notebooks
@pytest.mark.timeout(600)
@each_notebook
def test_it_shows_from_another_folder_what_is_committed(path: Path, tool: ModuleType, tmp_path: Path) -> None:
    committed = code_cells(nbformat.read(path, as_version=4))
    fresh = code_cells(tool.executed(path, tmp_path))
    for place, (before, now) in enumerate(zip(committed, fresh, strict=True), start=1):
        expected, found = shown(before), shown(now)
        assert [o[:2] for o in found] == [o[:2] for o in expected], f"cell {place}; `make notebooks` makes them anew"
        for (_, _, numbers), (_, _, wanted) in zip(found, expected, strict=True):
            assert numbers == pytest.approx(wanted, rel=0.02, abs=0.01), f"cell {place}"


def test_a_cell_that_complains_is_an_error(tool: ModuleType, tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell("import warnings\nwarnings.warn('look out')")],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    path = tmp_path / "one.ipynb"
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match=r"one\.ipynb, cell 0 wrote to stderr: .*look out"):
        tool.executed(path, tmp_path)
    assert nbformat.read(path, as_version=4).cells[0].execution_count is None
