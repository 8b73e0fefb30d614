"""The benchmark of citations: its table from a small file, and its leave-one-out against a ranking's own."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import AblationScorer, Document, GradReranker
from gradrerank.evaluation import Question
from gradrerank.lm.pieces import split_into_pieces

METHODS = ["gates", "gates, answer alone", "leave-one-out", "embedding", "embedding with title", "random"]


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    path = Path(__file__).parent.parent / "benchmarks" / "citations.py"
    spec = importlib.util.spec_from_file_location("benchmark_citations", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["benchmark_citations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny("llama"), max_document_tokens=64)


class LetterCounts:
    """A sentence as its counts of letters."""

    def encode(self, texts: list[str]) -> np.ndarray:
        return np.array([[text.lower().count(chr(c)) + 0.01 for c in range(97, 123)] for text in texts])


def test_the_table_has_a_row_for_each_method(
    bench: ModuleType, reranker: GradReranker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = [{"id": str(i), "text": t, "title": f"T{i}", "gold": i == 0} for i, t in enumerate(DOCUMENTS)]
    rows = [{"id": str(n), "question": QUERY, "answers": ["at nine"], "documents": documents} for n in range(2)]
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    bench.main([str(data), "--max-document-tokens", "64"], reranker, LetterCounts())
    printed = capsys.readouterr().out
    assert "2 questions of questions.jsonl" in printed
    cells = {line.split("│")[1].strip(): line.split("│")[2:5] for line in printed.splitlines() if "│" in line}
    assert list(cells) == METHODS
    assert cells["random"][0].split()[0] == f"{1 / 6:.2f}"
    assert cells["embedding"][0].split()[0] == "1.00"


def test_leave_one_out_of_single_sentences_is_that_of_their_documents(
    bench: ModuleType, reranker: GradReranker
) -> None:
    texts = [DOCUMENTS[0], DOCUMENTS[3], DOCUMENTS[4]]
    documents = tuple(Document(text, id=str(i)) for i, text in enumerate(texts))
    question = Question("q", QUERY, ("at nine",), documents, ("wiki",) * 3)
    tokens = bench._tokens(reranker, question, 64)
    found = bench._leave_one_out(reranker, question, tokens, split_into_pieces(tokens, "sentence", 1))
    result = reranker.rerank(QUERY, documents, scorer=AblationScorer(), target="reference", reference="at nine")
    scores = {d.id: d.score for d in result}
    assert found == pytest.approx([scores[str(i)] for i in range(3)], rel=1e-3, abs=1e-5)
