"""The benchmark of sources on a tiny model and two made-up files: its tables, and its arithmetic."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tiny import DOCUMENTS, tiny

from gradrerank import GradReranker


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "sources.py"
    spec = importlib.util.spec_from_file_location("benchmark_sources", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=lambda texts: [[1.0, float(len(t) % 7), float("ferry" in t)] for t in texts])


def write(path: Path, **fields: list[str]) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for n in range(2):
            documents = [
                {"id": f"{i}", "text": text, "gold": i == 0, **{name: values[i] for name, values in fields.items()}}
                for i, text in enumerate(DOCUMENTS)
            ]
            question = "When does the ferry leave?" if n else "Who wrote the book?"
            file.write(json.dumps({"id": f"q{n}", "question": question, "answers": ["nine"], "documents": documents}))
            file.write("\n")
    return path


def test_recall_has_a_row_for_every_rule(
    bench: ModuleType, reranker: GradReranker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "five.jsonl", source=["a", "b", "c", "a", "b"])
    bench.main(["recall", str(data)], reranker)
    shown = capsys.readouterr().out
    rows = {line.split("│")[1].strip(): line for line in shown.splitlines() if line.startswith("│")}
    assert "2 questions" in shown
    assert {"f(A), lambda 0.1", "both, lambda 0.1", "gradient (utility)", "random", "keep all"} <= set(rows)
    assert rows["keep all"].count("1.000 [1.00, 1.00] (3.0)") == 3
    assert "0.333" in rows["random"] and "0.667" in rows["random"]


def test_misinformation_tells_labels_apart(
    bench: ModuleType, reranker: GradReranker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write(tmp_path / "labels.jsonl", label=["correct", "noise", "misinfo", "noise", "correct"])
    bench.main(["misinformation", str(data), "--targets", "query", "reference", "--questions", "1"], reranker)
    shown = capsys.readouterr().out
    assert "target query" in shown and "target reference" in shown and "1 questions" in shown
    assert "documents labelled misinfo: 1" in shown and "correct than in misinfo" in shown


def test_auc_counts_pairs(bench: ModuleType) -> None:
    high, low = np.array([3.0, 1.0, 2.0]), np.array([2.0, 0.0])
    expected = np.mean([1.0 if h > lo else 0.5 if h == lo else 0.0 for h, lo in itertools.product(high, low)])
    assert bench.auc(high, low) == pytest.approx(float(expected))


def test_agreement_is_the_cosine_with_all_others(bench: ModuleType) -> None:
    found = bench.agreement(np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 0.0]]))
    assert found == pytest.approx([1 / 2**0.5, 1 / 2**0.5, 0.0])
