"""The tables of results are those of the JSON files, and figures are added by one command."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_tables", ROOT / "benchmarks" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_readme_and_results_show_what_the_files_hold(tables: ModuleType) -> None:
    for path, text in tables.written(tables.RESULTS).items():
        assert path.read_text(encoding="utf-8") == text, f"run: python benchmarks/tables.py ({path.name} is older)"


def test_another_figure_would_be_another_page(tables: ModuleType, tmp_path: Path) -> None:
    for path in tables.RESULTS.glob("quality-*.json"):
        found = json.loads(path.read_text("utf-8"))
        found["configurations"]["default"]["nDCG@10"]["mean"] = 0.12345
        (tmp_path / path.name).write_text(json.dumps(found), encoding="utf-8")
    for path, text in tables.written(tmp_path).items():
        assert ".123" in text and ".123" not in path.read_text(encoding="utf-8")


def run(rows: dict[str, dict[str, float]], questions: int = 3, **settings: Any) -> dict[str, Any]:
    """What quality.py writes, as far as it is read."""
    measured = {
        name: {"measures": {m: {"mean": v, "low": v - 0.1, "high": v + 0.1, "n": questions} for m, v in row.items()}}
        for name, row in rows.items()
    }
    report = {"data": "toy", "questions": questions, "first": next(iter(rows)), "configurations": measured}
    return {"settings": {"target": "query", **settings}, "reports": [report]}


def test_figures_are_joined_with_those_that_are_there(tables: ModuleType, tmp_path: Path) -> None:
    tables.add(run({"a": {"nDCG@10": 0.5, "RR": 0.25}, "b": {"nDCG@10": 0.75}}), tmp_path)
    (path,) = tables.add(run({"b": {"nDCG@10": 0.25}, "c": {"F1": 0.5}}), tmp_path)
    rows = json.loads(path.read_text("utf-8"))["configurations"]
    means = {name: {measure: found["mean"] for measure, found in row.items()} for name, row in rows.items()}
    assert means == {"a": {"nDCG@10": 0.5, "RR": 0.25}, "b": {"nDCG@10": 0.25}, "c": {"F1": 0.5}}
    assert path.name == "quality-toy.json" and "values" not in path.read_text("utf-8")


def test_differences_from_what_was_measured_anew_are_dropped(tables: ModuleType, tmp_path: Path) -> None:
    first = run({"a": {"RR": 0.5, "F1": 0.5}, "b": {"RR": 0.25, "F1": 0.25}})
    for found in first["reports"][0]["configurations"]["b"]["measures"].values():
        found["difference"] = {"mean": -0.25, "low": -0.5, "high": 0.0, "n": 3}
    tables.add(first, tmp_path)
    (path,) = tables.add(run({"a": {"RR": 0.75}}), tmp_path)
    row = json.loads(path.read_text("utf-8"))["configurations"]["b"]
    assert "difference" not in row["RR"] and row["RR"]["mean"] == 0.25
    assert row["F1"]["difference"]["from"] == "a"


@pytest.mark.parametrize("other", [{"questions": 4}, {"target": "reference"}])
def test_figures_of_another_run_are_not_mixed_in(tables: ModuleType, tmp_path: Path, other: dict[str, Any]) -> None:
    tables.add(run({"a": {"RR": 0.5}}), tmp_path)
    with pytest.raises(SystemExit, match="quality-toy.json holds figures of .*--replace"):
        tables.add(run({"b": {"RR": 0.5}}, **other), tmp_path)
    (path,) = tables.add(run({"b": {"RR": 0.5}}, **other), tmp_path, replace=True)
    assert list(json.loads(path.read_text("utf-8"))["configurations"]) == ["b"]
