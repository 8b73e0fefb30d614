"""What retrieval adds to the score: scale-free, missing and constant scores, noise, and both names."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker
from gradrerank.context.retrieval import rank_correlation, retrieval_evidence
from gradrerank.errors import InvalidArgumentError, NoSignalWarning
from gradrerank.sources.pool import build_pool, read_sources


def candidates(**scores: list[float | None]) -> tuple:
    """One pool of distinct documents; each source lists them best first."""
    sources = {
        name: [Document(f"{name} {i}", id=f"{name}{i}", score=score) for i, score in enumerate(found)]
        for name, found in scores.items()
    }
    return build_pool(read_sources(sources)).candidates


def evidence(kind: str, found: tuple, utilities: list[float]) -> dict[str, float]:
    values = retrieval_evidence(kind, found, utilities, None)
    return {c.document.id: float(v) for c, v in zip(found, values, strict=True)}


def in_order(found: tuple) -> list[float]:
    """Utilities that agree with every source's own order."""
    return [-float(c.provenance[0].rank) for c in found]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.floats(-5, 5).map(lambda x: round(x, 2)), min_size=2, max_size=9),
    st.floats(0.01, 1000),
    st.floats(-100, 100),
)
def test_stretching_one_sources_scores_changes_nothing(scores: list[float], factor: float, shift: float) -> None:
    ordered = sorted(scores, reverse=True)
    plain = candidates(a=list(ordered), b=[3.0, 2.0, 1.0])
    stretched = candidates(a=[factor * x + shift for x in ordered], b=[3.0, 2.0, 1.0])
    utilities = in_order(plain)
    one, other = evidence("score", plain, utilities), evidence("score", stretched, utilities)
    assert other == pytest.approx(one, abs=1e-6)


def test_distances_are_turned() -> None:
    near = candidates(a=[0.1, 0.2, 0.9, 1.0])
    alike = candidates(a=[1.0, 0.9, 0.2, 0.1])
    assert evidence("score", near, in_order(near)) == pytest.approx(evidence("score", alike, in_order(alike)))


def test_missing_and_constant_scores_say_nothing() -> None:
    found = candidates(a=[0.5, 0.5, 0.5], b=[None, None, None], c=[None, 0.2, 0.1])
    said = evidence("score", found, in_order(found))
    assert all(value == 0 for name, value in said.items() if name[0] in "ab")
    assert said["c0"] == 0
    assert said["c1"] > said["c2"]


def test_scores_that_nobody_gave_are_told_once_and_ranks_do_not_stand_in_for_them() -> None:
    reranker = GradReranker(tiny())
    plain = reranker.rerank(QUERY, DOCUMENTS)
    with pytest.warns(NoSignalWarning, match="fusion='score' adds nothing, since no source gave") as told:
        fused = reranker.rerank(QUERY, DOCUMENTS, fusion="score")
    assert len(told) == 1 and [d.score for d in fused] == [d.score for d in plain]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        reranker.rerank(QUERY, DOCUMENTS, fusion="rrf")
        reranker.rerank(QUERY, DOCUMENTS, fusion="score", fusion_weight=0)
        reranker.rerank(QUERY, {"a": DOCUMENTS[:2], "b": [Document(DOCUMENTS[3], score=0.5)]}, fusion="score")


def test_a_source_that_disagrees_with_the_model_fades() -> None:
    found = candidates(good=[4.0, 3.0, 2.0, 1.0], bad=[4.0, 3.0, 2.0, 1.0])
    utilities = [(-1 if c.document.id.startswith("good") else 1) * float(c.provenance[0].rank) for c in found]
    said = evidence("score", found, utilities)
    assert said["good0"] > said["good1"] > 0
    assert all(said[f"bad{i}"] == 0 for i in range(4))


def test_one_far_off_score_leaves_the_others_apart() -> None:
    found = candidates(a=[1e9, 3.0, 2.0, 1.0, 0.5])
    said = evidence("score", found, in_order(found))
    assert said["a1"] - said["a4"] > 0.3


def test_ranks_are_fused_by_their_reciprocals() -> None:
    shared = Document("Said by both.", id="both")
    pool = build_pool(
        read_sources({"a": [shared, Document("a1", id="a1")], "b": [Document("b0", id="b0"), shared]})
    ).candidates
    values = {c.document.id: v for c, v in zip(pool, retrieval_evidence("rrf", pool, [0, 0, 0], None), strict=True)}
    raw = {"both": 1 / 61 + 1 / 62, "b0": 1 / 61, "a1": 1 / 62}
    mean, spread = np.mean(list(raw.values())), np.std(list(raw.values()))
    assert values == pytest.approx({k: (v - mean) / spread for k, v in raw.items()})


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=2, max_size=12))
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    one, other = (np.array([p[k] for p in pairs], dtype=float) for k in (0, 1))
    expected = 0.0 if one.std() == 0 or other.std() == 0 else float(spearmanr(one, other).statistic)
    assert rank_correlation(one, other) == pytest.approx(expected, abs=1e-9)


def test_fusion_in_the_pipeline() -> None:
    reranker = GradReranker(tiny("llama"), scorer="gates")
    documents = [Document(text, id=str(i), score=float(-i)) for i, text in enumerate(DOCUMENTS)]
    off = {d.id: d.score for d in reranker.rerank(QUERY, documents)}
    fused = reranker.rerank(QUERY, documents, fusion="rrf", fusion_weight=0.5)
    for document in fused:
        assert document.scores["gates"] == pytest.approx(off[document.id], abs=1e-7)
        added = document.scores["retrieval"]
        assert document.score == pytest.approx(off[document.id] + added, abs=1e-5)
    only = reranker.rerank(QUERY, documents, fusion="rrf", fusion_weight=1000.0)
    assert [d.id for d in only] == [d.id for d in documents]
    same = reranker.rerank(QUERY, documents, fusion="score", fusion_weight=0.0)
    assert {d.id: d.score for d in same} == pytest.approx(off, abs=1e-6)


@pytest.mark.parametrize("given", [{"fusion": "sum"}, {"fusion_weight": -1.0}, {"fusion_weight": float("nan")}])
def test_what_cannot_be_meant_is_refused(given: dict) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(given))):
        GradReranker(tiny("llama"), **given)
