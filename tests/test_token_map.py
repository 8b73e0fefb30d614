"""Which document explains which word, and the loss along the gate path: against the scorers and finite differences."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GatesScorer, GradReranker
from gradrerank.errors import InvalidArgumentError

SOURCES = {"wiki": DOCUMENTS[:3], "web": DOCUMENTS[2:]}


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny("llama"), select_sources=False)


@pytest.mark.parametrize("target", [{}, {"target": "reference", "reference": "At nine, e\u0301 👩\u200d👧."}])
def test_tokens_spell_the_target_and_their_mean_is_the_score(reranker: GradReranker, target: dict[str, Any]) -> None:
    found = reranker.explain_tokens(QUERY, SOURCES, **target)
    result = reranker.rerank(QUERY, SOURCES, scorer="gates", **target)
    assert found.utilities.shape == (len(found.tokens), len(DOCUMENTS))
    scores = {d.text: d.score for d in result}
    for document, sources, utility in zip(found.documents, found.sources, found.utilities.mean(0), strict=True):
        assert utility == pytest.approx(scores[document.text], rel=1e-3, abs=1e-5)
        assert set(sources) == {name for name, texts in SOURCES.items() if document.text in texts}
    if not target:
        assert "".join(found.tokens) == f" {QUERY}" and found.target == "query"
    assert len(json.loads(json.dumps(found.to_dict()))["utilities"]) == len(found.tokens)
    table = pytest.importorskip("pandas") and found.to_pandas()
    assert table.shape == found.utilities.shape and list(table.index) == list(found.tokens)


def test_the_path_ends_in_the_losses_without_and_with_documents(reranker: GradReranker) -> None:
    path = reranker.gate_path(QUERY, SOURCES, points=6)
    assert path.points == pytest.approx([(k / 5) ** 2 for k in range(6)])
    generator = reranker.generator
    documents = generator.layout.documents([(None, t) for t in DOCUMENTS])
    memory = generator.remember(documents)
    ends = generator.losses(memory, generator.layout.query_continuation(QUERY), torch.tensor([[0.0] * 5, [1.0] * 5]))
    assert [path.losses[0], path.losses[-1]] == pytest.approx(ends.mean(-1).tolist(), rel=1e-5)
    assert path.together == pytest.approx(path.losses[0] - path.losses[-1])
    json.dumps(path.to_dict())


def test_the_area_under_the_slope_is_what_documents_do_together(reranker: GradReranker) -> None:
    path = reranker.gate_path(QUERY, SOURCES)
    scores = reranker.rerank(QUERY, SOURCES, scorer=GatesScorer(steps=64)).documents
    assert sum(d.score for d in scores) == pytest.approx(path.together, rel=0.05, abs=0.02)
    here = reranker.rerank(QUERY, SOURCES, scorer="gates").documents
    assert sum(path.utilities) == pytest.approx(sum(d.score for d in here), rel=1e-3, abs=1e-5)


def test_C01_without_documents_there_is_an_empty_map_and_path(reranker: GradReranker) -> None:
    found = reranker.explain_tokens(QUERY, {})
    assert found.utilities.shape == (0, 0) and not found.tokens
    path = reranker.gate_path(QUERY, {"a": [" "]})
    assert not path.losses and path.together == 0.0


@pytest.mark.parametrize("points", [1, 0, 2.5, True])
def test_points_of_the_path_are_at_least_two(reranker: GradReranker, points: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="points must be"):
        reranker.gate_path(QUERY, SOURCES, points=points)


def test_targets_are_checked_as_for_a_ranking(reranker: GradReranker) -> None:
    for ask in (reranker.explain_tokens, reranker.gate_path):
        with pytest.raises(InvalidArgumentError, match="needs reference"):
            ask(QUERY, SOURCES, target="reference")
        with pytest.raises(InvalidArgumentError, match="query"):
            ask("  ", SOURCES)
    assert np.isfinite(reranker.explain_tokens(QUERY, SOURCES, scorer="ablation").utilities).all()
