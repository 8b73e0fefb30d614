"""Many queries at once, and long pools: what is saved changes no score."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import CombinedScorer, Document, GatesScorer, GradReranker, LinkedScorer, Scores, ScoringJob
from gradrerank.errors import ContextOverflowError, InvalidArgumentError, InvalidTypeError, ScoringError

QUERIES = [
    QUERY,
    "Who wrote the book?",
    "Why does the tram run every hour over the green hill, and who knows?",
    "When?",
]


def encoder(texts: list[str]) -> np.ndarray:
    return np.array([[text.lower().count(c) + 0.1 for c in "abcdefghij"] for text in texts])


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=encoder)


def pairs(result: Any) -> list[tuple[str, float]]:
    return [(d.text, pytest.approx(d.score, abs=1e-5)) for d in result]


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("scorer", ["gates", "ablation", GatesScorer(steps=3), GatesScorer(pieces="window", window=8)])
def test_a_batch_over_shared_documents_equals_single_calls(family: str, scorer: Any) -> None:
    reranker = GradReranker(tiny(family), scorer=scorer)
    batch = reranker.rerank_batch(QUERIES, DOCUMENTS)
    for query, result in zip(QUERIES, batch, strict=True):
        alone = reranker.rerank(query, DOCUMENTS)
        assert [(d.text, d.score) for d in result] == pairs(alone)
        assert result.query == query
        assert result.details["loss"] == pytest.approx(alone.details["loss"], abs=1e-5)
        assert result.tokens["question"] == alone.tokens["question"]
        for one, other in zip(result, alone, strict=True):
            assert [s.score for s in one.spans] == pytest.approx([s.score for s in other.spans], abs=1e-5)


def test_documents_shared_by_queries_are_read_once() -> None:
    fresh = GradReranker(tiny())
    batch = fresh.rerank_batch(QUERIES, {"a": DOCUMENTS})
    tokens = sum(len(d) for d in fresh.generator.layout.documents([(None, t) for t in DOCUMENTS]))
    assert sum(result.tokens["documents"] for result in batch) == tokens


def test_each_query_may_have_its_own_sources_and_reference(reranker: GradReranker) -> None:
    sources = [{"a": DOCUMENTS[:3], "b": DOCUMENTS[2:]}, DOCUMENTS[1:], {"a": []}, {"a": DOCUMENTS[:1]}]
    answers = [f"answer {i}" for i in range(4)]
    batch = reranker.rerank_batch(QUERIES, sources, references=answers, target="reference", top_n=2)
    for query, own, answer, result in zip(QUERIES, sources, answers, batch, strict=True):
        alone = reranker.rerank(query, own, reference=answer, target="reference", top_n=2)
        assert [(d.text, d.score) for d in result] == pairs(alone)
        assert result.sources == alone.sources
        assert [d.reason for d in result.dropped] == [d.reason for d in alone.dropped]


def test_iterables_shared_by_queries_are_read_once(reranker: GradReranker) -> None:
    batch = reranker.rerank_batch(QUERIES, {"a": (text for text in DOCUMENTS)})
    assert [len(result) for result in batch] == [5] * 4


def test_no_queries_give_no_results(reranker: GradReranker) -> None:
    assert reranker.rerank_batch([], {"a": DOCUMENTS}) == []


@pytest.mark.parametrize(
    ("queries", "sources", "options", "error", "message"),
    [
        ("one query", DOCUMENTS, {}, InvalidTypeError, "queries must be a sequence of queries, got str 'one query'"),
        (None, DOCUMENTS, {}, InvalidTypeError, "queries must be a sequence of queries, got NoneType"),
        ({"q": 1}, DOCUMENTS, {}, InvalidTypeError, "queries must be a sequence of queries, got dict"),
        (["q", " "], DOCUMENTS, {}, InvalidArgumentError, r"queries\[1\] must hold some text, got ' '"),
        (["q", None], DOCUMENTS, {}, InvalidTypeError, r"queries\[1\] must be a str, got None"),
        (["q", "r"], [{"a": []}, {"a": ["x", 3]}], {}, InvalidTypeError, r"sources\[1\]\['a'\]\[1\] is int"),
        (["q", "ferry " * 600], DOCUMENTS, {}, ContextOverflowError, r"queries\[1\]: the query does not fit"),
        (["q", "r"], [{"a": []}, {"b": []}], {"per_source": {"a": 1}}, InvalidArgumentError, r"queries\[1\]: per"),
        (["q", "r"], [{"a": []}], {}, InvalidArgumentError, "sources has 1 items for 2 queries"),
        (["q"], DOCUMENTS, {"references": ["a", "b"]}, InvalidArgumentError, "references has 2 answers for 1 queries"),
        (["q"], DOCUMENTS, {"target": "reference"}, InvalidArgumentError, "needs reference="),
        (["q"], {"a": "text"}, {}, InvalidTypeError, r"sources\['a'\] is a str"),
    ],
)
def test_batches_that_cannot_be_meant_are_named(
    reranker: GradReranker, queries: Any, sources: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        reranker.rerank_batch(queries, sources, **options)


# -- long pools ---------------------------------------------------------------------------------------------


class Marked:
    """The utility is the number that the document's text begins with; counts what it was shown."""

    name = "marked"

    def __init__(self) -> None:
        self.shown: list[int] = []

    def score(self, job: ScoringJob) -> Scores:
        self.shown.append(len(job.documents))
        return Scores([float(d.text.split()[0]) for d in job.documents])


def pool_of(utilities: list[float]) -> list[Document]:
    return [Document(f"{u} text {i}", id=str(i)) for i, u in enumerate(utilities)]


def test_a_long_pool_is_read_only_as_far_as_it_pays(reranker: GradReranker) -> None:
    scorer = Marked()
    utilities = [5.0, 4, 3, 2, 1, 0.5, 0.4, 0.3] + [0.1] * 40
    result = reranker.rerank(QUERY, {"a": pool_of(utilities)}, scorer=scorer, max_candidates=8, top_n=3)
    assert scorer.shown == [8]
    assert [d.id for d in result] == ["0", "1", "2"]
    assert sum(d.reason == "max_candidates" for d in result.dropped) == 40
    assert len(result.dropped) == 45


def test_a_document_behind_a_useful_block_comes_back(reranker: GradReranker) -> None:
    scorer = Marked()
    utilities = [1.0] * 7 + [6] + [1.0, 7.0] + [1.0] * 30
    result = reranker.rerank(QUERY, {"a": pool_of(utilities)}, scorer=scorer, max_candidates=8, top_n=2)
    assert scorer.shown == [8, 10, 12]
    assert [d.id for d in result] == ["9", "7"]


@settings(max_examples=60)
@given(
    utilities=st.lists(st.integers(-5, 20), min_size=1, max_size=40),
    limit=st.integers(1, 12),
    top_n=st.one_of(st.none(), st.integers(1, 5)),
    min_score=st.one_of(st.none(), st.integers(-3, 10)),
)
def test_cascade_keeps_its_guarantee(
    reranker: GradReranker, utilities: list[int], limit: int, top_n: int | None, min_score: int | None
) -> None:
    options = {"top_n": top_n, "min_score": min_score, "scorer": Marked()}
    result = reranker.rerank(QUERY, {"a": pool_of([float(u) for u in utilities])}, max_candidates=limit, **options)
    unread = sorted(int(d.document.id or "") for d in result.dropped if d.reason == "max_candidates")
    read = len(utilities) - len(unread)
    assert unread == list(range(read, len(utilities))), "the tail of the retrieval order"
    assert read >= min(limit, len(utilities))
    assert len(result) + len(result.dropped) == len(utilities)
    if unread:
        block = range(read - max(1, limit // 4), read)
        kept = {int(d.id or "") for d in result}
        useful = kept if top_n or min_score is not None else {i for i in kept if utilities[i] > 0}
        assert useful.isdisjoint(block), "the block before the first unread document held nothing to keep"


def test_cascade_with_the_real_scorer_equals_the_full_pool_where_it_reads_all(reranker: GradReranker) -> None:
    full = reranker.rerank(QUERY, {"a": DOCUMENTS})
    assert [(d.text, d.score) for d in reranker.rerank(QUERY, {"a": DOCUMENTS}, max_candidates=9)] == pairs(full)


def test_max_candidates_is_checked(reranker: GradReranker) -> None:
    with pytest.raises(InvalidArgumentError, match="max_candidates must be"):
        reranker.rerank(QUERY, {"a": DOCUMENTS}, max_candidates=0)


class NoNumberFor:
    """Gives every document the length of its text, and none a number where the query is the one named."""

    name = "broken"

    def __init__(self, query: str) -> None:
        self.query = query

    def score(self, job: ScoringJob) -> Scores:
        return Scores([float("nan") if job.query == self.query else float(len(d.text)) for d in job.documents])


class NoNumberInABatchFor(NoNumberFor):
    def score_batch(self, jobs: list[ScoringJob]) -> list[Scores]:
        return [self.score(job) for job in jobs]


@pytest.mark.parametrize("kind", [NoNumberFor, NoNumberInABatchFor])
@pytest.mark.parametrize("wrap", [lambda s: s, lambda s: CombinedScorer([GatesScorer(), s]), LinkedScorer])
@pytest.mark.parametrize("options", [{}, {"max_candidates": 2}])
def test_a_query_without_a_number_is_named_once(
    reranker: GradReranker, kind: Any, wrap: Any, options: dict[str, int]
) -> None:
    scorer = wrap(kind(QUERIES[2]))
    with pytest.raises(ScoringError, match=r"^queries\[2\]: (?!.*queries).*'broken'.* document 0 is nan") as caught:
        reranker.rerank_batch(QUERIES, DOCUMENTS, scorer=scorer, **options)
    with pytest.raises(ScoringError) as alone:
        reranker.rerank(QUERIES[2], DOCUMENTS, scorer=scorer, **options)
    assert str(caught.value) == f"queries[2]: {alone.value}"
