"""The command behind the page on sensitivity: on small questions and tiny models, and the page itself."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from tiny import DOCUMENTS, tiny

from gradrerank import AblationScorer, GradReranker
from gradrerank.evaluation.markdown import fill
from gradrerank.evaluation.probes import OwnPathScorer, error_in_spreads, hashed_words, input_embeddings
from gradrerank.sources.embedding import embed

ROOT = Path(__file__).parents[1]
PAGE, FIGURES = ROOT / "docs" / "sensitivity.md", ROOT / "benchmarks" / "results" / "sensitivity.json"
NAMES = ["wordings", "gates", "depths", "sources", "iterations", "models", "linearisation", "meaning"]


@pytest.fixture(scope="module")
def command() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_sensitivity", ROOT / "benchmarks" / "sensitivity.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks for its module there
    spec.loader.exec_module(module)
    return module


def letters(texts: Any) -> Any:
    return np.array([[1.0 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts])


def make(model: str | None, **options: Any) -> GradReranker:
    return GradReranker(tiny("gemma3" if model else "llama"), encoder=letters, **options)


def write(path: Path, sources: list[str]) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for n, question in enumerate(("When does the ferry leave?", "How hot is boiling water?")):
            documents = [
                {"id": f"{i}", "text": text, "source": sources[i % len(sources)], "gold": i == n}
                for i, text in enumerate(DOCUMENTS)
            ]
            row = {"id": f"q{n}", "question": question, "answers": ["nine"], "documents": documents}
            file.write(json.dumps(row) + "\n")
    return path


def page(folder: Path) -> Path:
    places = "".join(f"<!-- table {name} -->\n<!-- end {name} -->\n\n" for name in ["sample", *NAMES])
    path = folder / "page.md"
    path.write_text("# Sensitivity\n\n" + places, encoding="utf-8")
    return path


def test_every_table_is_measured_written_and_resumed(command: ModuleType, tmp_path: Path) -> None:
    data = [write(tmp_path / "one.jsonl", ["wiki"]), write(tmp_path / "two.jsonl", ["wiki", "web"])]
    lines, out, written = tmp_path / "lines.jsonl", tmp_path / "out.json", page(tmp_path)
    arguments = [str(data[0]), f"{data[1]}:1", "--few", "1", "--second", "toy", "--resume", str(lines)]
    arguments += ["--out", str(out), "--write", str(written), "--questions", "2"]
    command.main(arguments, make)
    found = json.loads(out.read_text("utf-8"))
    assert list(found["tables"]) == NAMES
    for table in found["tables"].values():
        assert table["rows"] and all(len(row) == len(table["head"]) for row in table["rows"])
    text = written.read_text("utf-8")
    assert "one (2), two (1)" in text and "2 questions with several sources" in text
    assert "| `likelihood`, passages |" in text and "| `gates`, toy |" in text and "| hashed words | 0.5 |" in text
    for row in found["tables"]["linearisation"]["rows"]:
        if row[0] == "own gate, points: 4":
            assert row[2]["mean"] == pytest.approx(1.0) and row[1]["mean"] < 0.05
    documents = [int(row[2]) for row in found["tables"]["meaning"]["rows"]]
    assert sum(documents) == 2 * 3 * len(DOCUMENTS), "each document of each question once for each scorer"
    before = lines.read_bytes()
    command.main(arguments, make)
    assert lines.read_bytes() == before and json.loads(out.read_text("utf-8")) == found
    assert written.read_text("utf-8") == text
    assert not any(document in out.read_text("utf-8") for document in DOCUMENTS)


def test_the_page_is_written_from_figures_alone(command: ModuleType, tmp_path: Path) -> None:
    out, written = tmp_path / "out.json", page(tmp_path)
    cell = {"mean": 0.5, "low": 0.25, "high": 0.75, "n": 3}
    tables = {name: {"head": ["a", "b"], "rows": [["x", cell], ["y", {**cell, "sign": 1}]]} for name in NAMES}
    out.write_text(json.dumps({"sample": "Three questions.", "tables": tables}), encoding="utf-8")
    command.main(["--out", str(out), "--write", str(written)])
    text = written.read_text("utf-8")
    assert text.count("| x | .500 [.25, .75] |\n| y | +.500 [+.25, +.75] |") == len(NAMES)
    assert "Three questions." in text


def test_the_page_shows_the_figures_that_are_kept_beside_it(command: ModuleType) -> None:
    text, found = PAGE.read_text(encoding="utf-8"), json.loads(FIGURES.read_text(encoding="utf-8"))
    assert list(found["tables"]) == NAMES
    assert fill(text, command.blocks(found)) == text, "run: python benchmarks/sensitivity.py --out ... --write ..."


def test_the_path_of_the_own_gate_leads_to_leave_one_out() -> None:
    reranker = GradReranker(tiny(), encoder=letters, select_sources=False)
    read = {
        steps: {
            d.text: d.score
            for d in reranker.rerank(
                "When does the ferry leave?", DOCUMENTS, scorer=OwnPathScorer(steps) if steps else AblationScorer()
            )
        }
        for steps in (0, 1, 4, 32)
    }
    errors = [error_in_spreads(read[steps], read[0]) for steps in (1, 4, 32)]
    assert errors[0] > errors[1] > errors[2] and errors[2] < 1e-3


def test_an_error_without_a_spread_is_none() -> None:
    assert error_in_spreads({"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 3.0}) is None


def test_words_are_told_apart_by_how_rare_they_are() -> None:
    rows = embed(hashed_words, ["the ferry leaves", "a ferry", "the tram", "the house"])
    assert rows[0] @ rows[1] > rows[0] @ rows[2] > 0 == pytest.approx(rows[1] @ rows[2])


def test_input_embeddings_are_means_over_tokens() -> None:
    generator = GradReranker(tiny(), encoder=letters).generator
    (ids,) = [encoding.ids for encoding in generator.tokenizer.content(["The ferry leaves."])]
    rows = input_embeddings(generator, ["The ferry leaves.", ""])
    weight = generator.plain.get_input_embeddings().weight.detach().numpy()
    assert rows[0] == pytest.approx(weight[list(ids)].mean(0), abs=1e-6) and not rows[1].any()
