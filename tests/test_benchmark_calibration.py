"""The benchmark of calibration on made-up questions: its table, its plot, and that halves stay apart."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tiny import DOCUMENTS, tiny

from gradrerank import GradReranker


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "calibration.py"
    spec = importlib.util.spec_from_file_location("benchmark_calibration", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write(path: Path, gold: int) -> Path:
    lines = []
    for n in range(4):
        documents = [{"id": f"{i}", "text": f"{t} {n}", "gold": i == gold} for i, t in enumerate(DOCUMENTS)]
        lines.append(json.dumps({"id": f"q{n}", "question": f"What of {n}?", "answers": [], "documents": documents}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_every_file_is_tested_on_what_it_was_not_fitted_on(
    bench: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [str(write(tmp_path / f"{name}.jsonl", gold)) for name, gold in (("one", 0), ("two", 3))]
    bench.main(files, GradReranker(tiny()))
    rows = [[cell.strip() for cell in r.split("│")] for r in capsys.readouterr().out.splitlines() if r.startswith("│")]
    assert [r[1:4] for r in rows if r[1] == "one"] == [
        ["one", "the other half", "share of gold"],
        ["one", "the other half", "isotonic"],
        ["one", "the other half", "platt"],
        ["one", "the other files", "isotonic"],
        ["one", "the other files", "platt"],
    ]
    assert len(rows) == 10 and all(r[6] == "20" for r in rows)
    # One document of five is gold in every question, so the share of gold is exactly right on average.
    assert rows[0][4:6] == ["0.000", "0.160"]


def test_reliability_is_drawn_into_a_file(bench: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bench.plot({"one": (np.array([0.1, 0.9]), np.array([0.0, 1.0]))}, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
