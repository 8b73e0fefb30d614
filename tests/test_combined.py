"""Several scorers as one: units, zero, what was said by each, and no second reading."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker
from gradrerank.errors import InvalidArgumentError, ScoringError
from gradrerank.lm.generator import Generator
from gradrerank.lm.kv_store import DocumentStore
from gradrerank.scorers import (
    CombinedScorer,
    GatesScorer,
    LikelihoodScorer,
    Scores,
    ScoringJob,
    SimilarityScorer,
    as_scorer,
)


class Fixed:
    """A scorer that says what it was told."""

    def __init__(self, name: str, utilities: list[float]) -> None:
        self.name, self.utilities = name, utilities

    def score(self, job: ScoringJob) -> Scores:
        return Scores(self.utilities, details={"said": self.name})


def job_of(generator: Generator, texts: list[str] = DOCUMENTS) -> ScoringJob:
    documents = generator.layout.documents([(None, text) for text in texts])
    return ScoringJob(QUERY, documents, generator.layout.query_continuation(QUERY), generator)


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(*tiny("llama"))


NUMBERS = st.lists(st.floats(-100, 100).map(lambda x: round(x, 3)), min_size=5, max_size=5)


@settings(max_examples=60, deadline=None)
@example([0.0] * 5, [0.0, 0.0, 0.0, 0.0, 1.0], 2.0, 0.0)
@given(NUMBERS, NUMBERS, st.floats(0.01, 1000), st.floats(-50, 50))
def test_no_scorer_counts_more_because_its_numbers_are_larger(
    generator: Generator, first: list[float], second: list[float], factor: float, shift: float
) -> None:
    job = job_of(generator)
    one = CombinedScorer([Fixed("a", first), Fixed("b", second)]).score(job).utilities
    stretched = [factor * x + shift for x in second]
    other = CombinedScorer([Fixed("a", first), Fixed("b", stretched)]).score(job).utilities
    assert other == pytest.approx(one, rel=1e-6, abs=1e-6)


def test_it_is_the_weighted_mean_in_the_unit_of_the_first(generator: Generator) -> None:
    scores = CombinedScorer([Fixed("a", [1, 2, 3, 4, 5]), Fixed("b", [10, 0, 0, 0, 10])], [0.5]).score(
        job_of(generator)
    )
    spread = np.std([1, 2, 3, 4, 5])
    b = np.array([10, 0, 0, 0, 10.0])
    assert scores.utilities == pytest.approx(list((np.arange(1, 6) + 0.5 * spread * (b - b.mean()) / b.std()) / 1.5))
    assert np.mean(scores.utilities) == pytest.approx(2)
    assert scores.stages[0] == {"a": 1, "b": 10}
    assert scores.details == {"said": "a", "b": {"said": "b"}}


def test_a_scorer_without_preference_changes_nothing(generator: Generator) -> None:
    job = job_of(generator)
    flat = CombinedScorer([Fixed("a", [1, 2, 3, 4, 5]), Fixed("b", [0.1 + 0.2] * 5)])
    assert flat.score(job).utilities == [0.5, 1, 1.5, 2, 2.5]
    flat_first = CombinedScorer([Fixed("a", [0.0] * 5), Fixed("b", [1, 2, 3, 4, 5])]).score(job)
    assert flat_first.utilities == pytest.approx(list(np.arange(-2, 3) / 2**0.5 / 2))


def test_documents_are_read_once_for_all_scorers_even_without_a_store() -> None:
    generator = Generator(*tiny("llama"), store=DocumentStore(capacity=0))
    job = job_of(generator)
    as_scorer("gates+likelihood+ablation").score(job)
    assert job.tokens["documents"] == sum(map(len, job.documents))


def test_equals_its_parts() -> None:
    reranker = GradReranker(tiny("llama"))
    both = {d.text: d for d in reranker.rerank(QUERY, DOCUMENTS, scorer="gates+likelihood")}
    gates = {d.text: d.score for d in reranker.rerank(QUERY, DOCUMENTS, scorer=GatesScorer(best=2))}
    apart = {d.text: d.score for d in reranker.rerank(QUERY, DOCUMENTS, scorer=LikelihoodScorer(shares=True))}
    for text, document in both.items():
        assert document.scores["gates"] == pytest.approx(gates[text], abs=1e-6)
        assert document.scores["likelihood"] == pytest.approx(apart[text], abs=1e-6)
        best = sorted((span.score for span in document.spans), reverse=True)[:2]
        assert sum(best) == pytest.approx(gates[text], abs=1e-5)


def test_a_batch_equals_single_calls() -> None:
    reranker = GradReranker(tiny("llama"), scorer="gates+likelihood")
    queries = [QUERY, "Where is the tram?", "Who wrote the book about the red house on the hill?"]
    for query, result in zip(queries, reranker.rerank_batch(queries, DOCUMENTS), strict=True):
        single = reranker.rerank(query, DOCUMENTS)
        assert [d.text for d in result] == [d.text for d in single]
        assert [d.score for d in result] == pytest.approx([d.score for d in single], abs=1e-5)


def test_one_document_alone(generator: Generator) -> None:
    scores = as_scorer("gates+likelihood").score(job_of(generator, DOCUMENTS[:1]))
    assert scores.utilities == pytest.approx([scores.stages[0]["gates"] / 4])


def test_names_and_weights_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="gaates"):
        as_scorer("gates+gaates")
    with pytest.raises(InvalidArgumentError, match="at least two"):
        CombinedScorer([GatesScorer()])
    with pytest.raises(InvalidArgumentError, match="weights"):
        CombinedScorer([GatesScorer(), LikelihoodScorer()], [1, 1])
    with pytest.raises(InvalidArgumentError, match="weights"):
        CombinedScorer([GatesScorer(), LikelihoodScorer()], [-1.0])
    with pytest.raises(InvalidArgumentError, match="name and score"):
        CombinedScorer([GatesScorer(), object()])  # type: ignore[list-item]


def test_a_wrong_length_is_laid_at_the_door_of_the_scorer_that_gave_it(generator: Generator) -> None:
    with pytest.raises(ScoringError, match="'short'"):
        CombinedScorer([GatesScorer(), Fixed("short", [1.0])]).score(job_of(generator))


def test_similarity_is_the_cosine_of_the_encoder() -> None:
    vectors = {"a": [1.0, 0.0], "b": [1.0, 1.0], "T\nc": [0.0, 2.0], "q?": [3.0, 0.0]}
    reranker = GradReranker(tiny("llama"), scorer="similarity", encoder=lambda texts: [vectors[t] for t in texts])
    result = reranker.rerank("q?", ["a", "b", Document("c", title="T")])
    assert {d.text: d.score for d in result} == pytest.approx({"a": 1.0, "b": 0.5**0.5, "c": 0.0})
    assert result.tokens.get("documents", 0) == 0


def test_similarity_without_an_encoder_says_so(generator: Generator) -> None:
    with pytest.raises(ScoringError, match="encoder"):
        SimilarityScorer().score(job_of(generator))


def test_joined_names_may_hold_spaces_and_no_scorer_twice() -> None:
    assert as_scorer(" gates + likelihood ").name == "gates+likelihood"
    with pytest.raises(InvalidArgumentError, match=r"'gates\+gates'"):
        as_scorer("gates+gates")
