"""The iterated form on gates against all subsets of k."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GatesScorer, Generator, GradReranker, IteratedGatesScorer, ScoringJob
from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.iterated import _set_first

TEXTS = [*DOCUMENTS, "The ferry leaves at nine from the harbour.", "The hill is green."]


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def generator(request: pytest.FixtureRequest) -> Generator:
    return Generator(*tiny(request.param, dtype=torch.float64))


def job_of(
    generator: Generator, texts: list[str] = TEXTS, *, top_n: int | None = None, query: str = QUERY
) -> ScoringJob:
    documents = generator.layout.documents([(None, text) for text in texts])
    return ScoringJob(query, documents, generator.layout.query_continuation(query), generator, top_n)


def losses_of_sets(job: ScoringJob, k: int) -> dict[frozenset[int], float]:
    """The loss with every set of k open and all others closed."""
    n = len(job.documents)
    sets = list(combinations(range(n), k))
    gates = torch.tensor([[float(i in each) for i in range(n)] for each in sets], dtype=torch.float64)
    losses = job.generator.losses(job.generator.remember(job.documents), job.continuation, gates).mean(-1)
    return {frozenset(each): loss for each, loss in zip(sets, losses.tolist(), strict=True)}


def first(utilities: object, k: int) -> frozenset[int]:
    return frozenset(int(i) for i in np.argsort(-np.asarray(utilities), kind="stable")[:k])


@pytest.mark.parametrize("query", [QUERY, "Who wrote the book about the red house?", "Does the tram run?"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_set_is_among_the_best_of_all_and_never_worse_than_the_start(
    generator: Generator, k: int, query: str
) -> None:
    job = job_of(generator, query=query)
    scores = IteratedGatesScorer(k=k).score(job)
    truth = losses_of_sets(job, k)
    found = truth[first(scores.utilities, k)]
    start = truth[first(GatesScorer().score(job).utilities, k)]
    assert scores.details["loss"] == pytest.approx(found, rel=1e-6)
    assert scores.details["start_loss"] == pytest.approx(start, rel=1e-6)
    assert found <= start + 1e-9
    better = sum(loss < found - 1e-9 for loss in truth.values())
    # One document has no neighbours to move to by mixing: a step is a swap, and the descent ends sooner.
    assert better <= len(truth) / (2 if k == 1 else 4)


def test_over_many_questions_iteration_finds_better_sets_than_one_pass(generator: Generator) -> None:
    ranks = []
    for word in ("ferry", "kettle", "tram", "house", "book", "hill", "harbour", "water"):
        job = job_of(generator, query=f"What about the {word}?")
        truth = losses_of_sets(job, 3)
        one, many = (first(s.score(job).utilities, 3) for s in (GatesScorer(), IteratedGatesScorer(k=3)))
        ranks.append([sum(loss < truth[each] - 1e-9 for loss in truth.values()) for each in (one, many)])
    before, after = np.mean(ranks, axis=0)
    assert after < before
    assert after < len(truth) / 6


def test_losses_fall_at_every_step_and_weights_stay_on_the_sparse_simplex(generator: Generator) -> None:
    details = IteratedGatesScorer(k=3, tolerance=0.0).score(job_of(generator)).details
    weights = np.array(details["weights"])
    assert all(later < earlier for earlier, later in zip(details["losses"], details["losses"][1:], strict=False))
    assert weights.min() >= 0 and weights.sum() == pytest.approx(1) and np.count_nonzero(weights) <= 3


def test_the_number_of_passes_is_told_and_bounded(generator: Generator) -> None:
    job = job_of(generator)
    details = IteratedGatesScorer(k=2, steps=1, tolerance=0.0).score(job).details
    n_steps = len(details["losses"]) - 1
    # All open, the start, one for each step taken, and the set that is kept.
    assert details["passes"] == 3 + n_steps
    assert n_steps <= 1
    assert details["rows"] >= 4 + 1
    assert job.tokens["question"] == (details["passes"] + details["rows"]) * len(job.continuation)


def test_it_stops_for_the_reason_that_it_gives(generator: Generator) -> None:
    assert IteratedGatesScorer(k=2, tolerance=1.0).score(job_of(generator)).details["stopped"] == "converged"
    patient = IteratedGatesScorer(k=2, steps=100).score(job_of(generator)).details
    assert patient["stopped"] in ("converged", "flat")
    hasty = IteratedGatesScorer(k=3, steps=1, tolerance=0.0).score(job_of(generator)).details
    assert hasty["stopped"] == ("steps" if len(hasty["losses"]) == 2 else "converged")


def test_documents_that_are_all_alike_are_settled_in_retrieval_order(generator: Generator) -> None:
    scores = IteratedGatesScorer(k=2).score(job_of(generator, ["The red house is old."] * 4))
    assert first(scores.utilities, 2) == {0, 1}


@pytest.mark.parametrize(("k", "top_n"), [(7, None), (50, None), (None, 7), (None, None)])
def test_where_all_may_be_kept_it_is_the_score_of_the_gates(
    generator: Generator, k: int | None, top_n: int | None
) -> None:
    scores = IteratedGatesScorer(k=k).score(job_of(generator, top_n=top_n))
    assert list(scores.utilities) == pytest.approx(list(GatesScorer().score(job_of(generator)).utilities))
    assert scores.details["passes"] == 1 and scores.details["stopped"] == "nothing to choose"


def test_one_document_takes_one_pass(generator: Generator) -> None:
    scores = IteratedGatesScorer(k=1).score(job_of(generator, TEXTS[:1]))
    assert len(scores.utilities) == 1 and scores.details["passes"] == 1 and scores.details["weights"] == [1.0]


def test_it_is_deterministic_and_follows_the_documents_when_they_move(generator: Generator) -> None:
    one, again = (IteratedGatesScorer(k=3).score(job_of(generator)) for _ in range(2))
    assert one.utilities == again.utilities and one.details == again.details
    moved = IteratedGatesScorer(k=3).score(job_of(generator, TEXTS[::-1])).utilities
    np.testing.assert_allclose(moved[::-1], one.utilities, rtol=1e-3, atol=1e-4)


def test_top_n_of_the_call_is_the_size_of_the_set_and_the_set_leads_the_ranking() -> None:
    reranker = GradReranker(tiny(), scorer="iterated")
    kept = reranker.rerank(QUERY, TEXTS, top_n=3)
    scorer = IteratedGatesScorer(k=3)
    ranked = reranker.rerank(QUERY, TEXTS, scorer=scorer)
    assert [d.text for d in kept] == [d.text for d in ranked][:3]
    assert kept.details["passes"] >= 3
    assert len(ranked) == len(TEXTS)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=8), st.data())
@settings(max_examples=60)
def test_the_set_comes_first_and_the_others_keep_their_distances(values: list[float], data: st.DataObject) -> None:
    utilities = np.array(values)
    k = data.draw(st.integers(1, len(values) - 1))
    chosen = tuple(data.draw(st.permutations(range(len(values))))[:k])
    others = [i for i in range(len(values)) if i not in chosen]
    lowered, by = _set_first(utilities, chosen)
    assert lowered[list(chosen)].tolist() == utilities[list(chosen)].tolist()
    assert lowered[list(chosen)].min() >= lowered[others].max()
    assert by >= 0
    np.testing.assert_allclose(lowered[others], utilities[others] - by)
    if np.abs(utilities).max() > 1e-3:
        assert lowered[list(chosen)].min() > lowered[others].max()


@pytest.mark.parametrize(
    "options", [{"k": 0}, {"k": 1.5}, {"steps": 0}, {"steps": True}, {"step_size": -1.0}, {"tolerance": float("nan")}]
)
def test_arguments_that_cannot_be_meant_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        IteratedGatesScorer(**options)  # type: ignore[arg-type]
