"""The surrogate: its fit against closed forms and brute force, its losses against rows read one by one."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import AblationScorer, GradReranker, ScoringJob, SurrogateScorer
from gradrerank.errors import GradRerankError
from gradrerank.lm.generator import Generator
from gradrerank.scorers import as_scorer
from gradrerank.scorers.lasso import fit_lasso
from gradrerank.scorers.surrogate import fit_surrogate, random_masks

numbers = st.floats(-5, 5).map(lambda x: round(x, 3))


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(*tiny("gpt2", dtype=torch.float64))


def job_of(generator: Generator, texts: list[str] = DOCUMENTS) -> ScoringJob:
    documents = generator.layout.documents([(None, text) for text in texts])
    return ScoringJob(QUERY, documents, generator.layout.query_continuation(QUERY), generator)


def all_masks(n: int) -> NDArray[np.bool_]:
    return np.array(list(itertools.product([False, True], repeat=n)))


def pairwise_losses(masks: NDArray[np.bool_], main: NDArray[Any], pairs: NDArray[Any]) -> NDArray[np.float64]:
    """7 less what each kept document does, less what each two kept ones do together."""
    kept = masks.astype(float)
    return np.asarray(7.0 - kept @ main - np.einsum("si,ij,sj->s", kept, np.triu(pairs, 1), kept))


# -- the fit of losses ----------------------------------------------------------------------------------


@given(st.lists(numbers, min_size=1, max_size=6), st.booleans())
def test_additive_losses_are_recovered_exactly_from_all_subsets(worth: list[float], interactions: bool) -> None:
    masks = all_masks(len(worth))
    fit = fit_surrogate(masks, 7.0 - masks @ np.array(worth), 0.0, interactions=interactions)
    np.testing.assert_allclose(fit.utilities, worth, atol=1e-9)
    np.testing.assert_allclose(fit.pairs, 0, atol=1e-9)
    assert fit.loss == pytest.approx(7.0 - sum(worth), abs=1e-9)
    assert fit.r2 == pytest.approx(1.0) or not np.any(worth)


@given(st.integers(2, 5), st.integers(0, 10_000), st.booleans())
def test_pairwise_losses_are_recovered_exactly(n: int, seed: int, every_subset: bool) -> None:
    """The utility is the Shapley value: what a document adds, averaged over all orders of arrival."""
    rng = np.random.default_rng(seed)
    main, pairs = rng.normal(size=n), np.triu(rng.normal(size=(n, n)), 1)
    masks = all_masks(n) if every_subset else np.vstack([random_masks(60, n, seed), all_masks(n)[:: 2**n - 1]])
    assume(np.linalg.matrix_rank(design(masks)) == 1 + n + n * (n - 1) // 2)
    fit = fit_surrogate(masks, pairwise_losses(masks, main, pairs), 0.0, interactions=True)
    details = fit.details()
    np.testing.assert_allclose(details["main_effects"], main, atol=1e-8)
    np.testing.assert_allclose(details["interactions"], pairs + pairs.T, atol=1e-8)
    assert details["paired"] == list(range(n))
    np.testing.assert_allclose(fit.utilities, shapley(n, main, pairs), atol=1e-8)
    assert fit.r2 == pytest.approx(1.0)
    assert fit.loss == pytest.approx(pairwise_losses(np.ones((1, n), bool), main, pairs)[0])


def design(masks: NDArray[np.bool_]) -> NDArray[np.float64]:
    first, second = np.triu_indices(masks.shape[1], 1)
    return np.column_stack([np.ones(len(masks)), masks, masks[:, first] & masks[:, second]]).astype(float)


def shapley(n: int, main: NDArray[Any], pairs: NDArray[Any]) -> NDArray[np.float64]:
    values, orders = np.zeros(n), list(itertools.permutations(range(n)))
    for order in orders:
        mask = np.zeros((1, n), dtype=bool)
        before = pairwise_losses(mask, main, pairs)[0]
        for i in order:
            mask[0, i] = True
            after = pairwise_losses(mask, main, pairs)[0]
            values[i] += (before - after) / len(orders)
            before = after
    return values


@given(st.integers(1, 5), st.integers(0, 10_000), st.booleans())
def test_over_all_subsets_a_utility_is_the_mean_difference_that_a_document_makes(
    n: int, seed: int, interactions: bool
) -> None:
    """Whatever the losses are: of a function of all subsets, the linear fit is its average slope."""
    masks, losses = all_masks(n), np.random.default_rng(seed).normal(size=2**n)
    expected = [losses[~masks[:, i]].mean() - losses[masks[:, i]].mean() for i in range(n)]
    fit = fit_surrogate(masks, losses, 0.0, interactions=interactions)
    np.testing.assert_allclose(fit.utilities, expected, atol=1e-9)


@given(st.integers(1, 5), st.integers(0, 10_000), st.floats(0.001, 1.0))
def test_over_all_subsets_the_penalty_takes_twice_alpha_from_every_utility(n: int, seed: int, alpha: float) -> None:
    """The closed form of the Lasso on orthogonal columns; a mask's deviation is 1/2."""
    masks, losses = all_masks(n), np.random.default_rng(seed).normal(size=2**n)
    free = fit_surrogate(masks, losses, 0.0).utilities
    expected = np.sign(free) * np.maximum(np.abs(free) - 2 * alpha, 0)
    np.testing.assert_allclose(fit_surrogate(masks, losses, alpha).utilities, expected, atol=1e-7)


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 60), st.floats(0.0005, 2.0), st.integers(0, 10_000))
def test_lasso_is_optimal(n_samples: int, n_columns: int, alpha: float, seed: int) -> None:
    """The conditions of the minimum: active columns pull with alpha, no other pulls harder."""
    rng = np.random.default_rng(seed)
    x = (rng.random((n_samples, n_columns)) < 0.5).astype(float)
    y = rng.normal(size=n_samples)
    fit = fit_lasso(x, y, alpha)
    deviation = x.std(0)
    pull = (x - x.mean(0)).T @ (y - fit.intercept - x @ fit.weights) / n_samples
    active = fit.weights != 0
    assert not np.any(active & (deviation == 0))
    np.testing.assert_allclose(
        (pull / np.where(active, deviation, 1))[active], alpha * np.sign(fit.weights[active]), atol=1e-5
    )
    assert np.all(np.abs(pull) <= alpha * deviation + 1e-5)
    assert 0 <= fit.r2 <= 1
    assert np.mean(y - x @ fit.weights) == pytest.approx(fit.intercept)


@pytest.mark.parametrize("interactions", [False, True])
def test_few_documents_of_many_are_found_from_few_samples(interactions: bool) -> None:
    worth = np.zeros(300)
    worth[[3, 120, 299]] = 2.0, -1.5, 1.0
    masks = random_masks(64, 300, seed=1)
    fit = fit_surrogate(masks, 7.0 - masks @ worth, 0.01, interactions=interactions)
    assert fit.utilities[[3, 120, 299]] == pytest.approx([2.0, -1.5, 1.0], abs=0.15)
    assert np.abs(np.delete(fit.utilities, [3, 120, 299])).max() < 0.1
    assert fit.loss == pytest.approx(7.0 - 1.5, abs=0.2)
    if interactions:
        paired = fit.details()["paired"]
        assert len(paired) == 64 == len(set(paired))
        assert {3, 120, 299} <= set(paired)
        assert np.array(fit.details()["interactions"]).shape == (64, 64)


def test_a_thousand_documents_are_fitted_in_a_moment() -> None:
    rng = np.random.default_rng(0)
    masks = random_masks(64, 1000, seed=0)
    fit = fit_surrogate(masks, rng.normal(size=64), 0.01, interactions=True)
    assert fit.utilities.shape == (1000,)
    assert np.isfinite(fit.utilities).all()


@pytest.mark.parametrize("alpha", [0.0, 0.01])
def test_what_never_varied_has_no_utility(alpha: float) -> None:
    """One sample, equal losses, or a document that was kept every time: nothing is known."""
    one = fit_surrogate(random_masks(1, 4, 0), np.array([3.0]), alpha, interactions=True)
    assert not one.utilities.any()
    assert (one.loss, one.r2) == (3.0, 1.0)
    masks = np.array([[True, True], [True, False], [True, True]])
    fit = fit_surrogate(masks, np.array([1.0, 2.0, 1.0]), alpha)
    assert fit.utilities == pytest.approx([0.0, 1.0 - alpha * 3 / math.sqrt(2)], abs=1e-6)
    assert fit.utilities[0] == 0.0


def test_subsets_keep_half_of_the_documents_and_grow_with_samples() -> None:
    masks = random_masks(2000, 7, seed=3)
    np.testing.assert_allclose(masks.mean(0), 0.5, atol=0.05)
    assert np.array_equal(masks[:10], random_masks(10, 7, seed=3))
    assert not np.array_equal(masks[:10], random_masks(10, 7, seed=4))


# -- the scorer -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("interactions", [False, True])
def test_scores_are_the_fit_to_losses_read_one_by_one(generator: Generator, interactions: bool) -> None:
    job = job_of(generator)
    scores = SurrogateScorer(samples=20, alpha=0.002, seed=5, interactions=interactions).score(job)
    memory, masks = generator.remember(job.documents), random_masks(20, len(DOCUMENTS), 5)
    losses = [
        float(generator.losses(memory, job.continuation, torch.from_numpy(m[None]).double()).mean()) for m in masks
    ]
    expected = fit_surrogate(masks, np.array(losses), 0.002, interactions=interactions)
    assert list(scores.utilities) == pytest.approx(expected.utilities.tolist(), abs=1e-7)
    assert scores.details["r2"] == pytest.approx(expected.r2, abs=1e-7)
    assert scores.details["rows"] == 20
    assert job.tokens["question"] == 20 * len(job.continuation)
    json.dumps(scores.details)


def test_main_effects_and_half_of_the_interactions_are_the_utility(generator: Generator) -> None:
    scores = SurrogateScorer(samples=64, interactions=True).score(job_of(generator))
    pairs = np.array(scores.details["interactions"])
    assert np.array_equal(pairs, pairs.T)
    assert not pairs.diagonal().any()
    assert pairs.any()
    total = np.array(scores.details["main_effects"]) + pairs.sum(1) / 2
    np.testing.assert_allclose(total, scores.utilities, atol=1e-12)
    assert scores.details["r2"] > SurrogateScorer(samples=64).score(job_of(generator)).details["r2"]


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_it_agrees_with_leave_one_out_at_the_full_context_where_pairs_are_known(family: str) -> None:
    """Leave-one-out at z = 1 is the main effect and all interactions, not half of them."""
    generator = Generator(*tiny(family))
    texts = [f"{word} {d}" for word in ("Once", "Then") for d in DOCUMENTS[:4]]
    ablation = AblationScorer().score(job_of(generator, texts)).utilities
    details = SurrogateScorer(samples=300, alpha=0.0, interactions=True).score(job_of(generator, texts)).details
    full = np.array(details["main_effects"]) + np.array(details["interactions"]).sum(1)
    assert details["r2"] > 0.8
    assert spearmanr(full, ablation).statistic > 0.5


def test_a_document_that_lowers_the_loss_has_a_positive_utility(generator: Generator) -> None:
    """Signs, by the definition: over all subsets, the loss without less the loss with it."""
    job = job_of(generator, DOCUMENTS[:3])
    memory, masks = generator.remember(job.documents), all_masks(3)
    losses = generator.losses(memory, job.continuation, torch.from_numpy(masks).double()).mean(-1).numpy()
    slopes = np.array([losses[~masks[:, i]].mean() - losses[masks[:, i]].mean() for i in range(3)])
    found = np.array(SurrogateScorer(samples=400, alpha=0.0, interactions=True).score(job).utilities)
    np.testing.assert_allclose(found, slopes, atol=0.1 * np.abs(slopes).max())
    assert np.array_equal(np.sign(found), np.sign(slopes))


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_C32_it_depends_on_its_seed_and_on_nothing_else(generator: Generator, batch_size: int) -> None:
    expected = SurrogateScorer(interactions=True).score(job_of(generator))
    scores = SurrogateScorer(interactions=True, batch_size=batch_size).score(job_of(generator))
    assert list(scores.utilities) == pytest.approx(list(expected.utilities), abs=1e-8)
    if batch_size == 16:
        assert scores.utilities == expected.utilities
        assert scores.details == expected.details
        assert SurrogateScorer(seed=1).score(job_of(generator)).utilities != expected.utilities


@pytest.mark.parametrize("interactions", [False, True])
def test_one_document_gets_what_it_does_alone(generator: Generator, interactions: bool) -> None:
    job = job_of(generator, DOCUMENTS[:1])
    alone = AblationScorer().score(job).utilities
    assert SurrogateScorer(alpha=0.0, interactions=interactions).score(job).utilities == pytest.approx(list(alone))
    assert SurrogateScorer(samples=1, interactions=interactions).score(job).utilities == [0.0]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"samples": 0}, "samples"),
        ({"alpha": -0.1}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"interactions": 1}, "interactions"),
        ({"seed": -1}, "seed"),
        ({"seed": True}, "seed"),
        ({"batch_size": 1.5}, "batch_size"),
    ],
)
def test_options_out_of_range_are_named_at_construction(options: Any, name: str) -> None:
    with pytest.raises(GradRerankError, match=f"^{name} must"):
        SurrogateScorer(**options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_reranker_takes_it_by_name(dtype: torch.dtype) -> None:
    assert isinstance(as_scorer("surrogate"), SurrogateScorer)
    reranker = GradReranker(tiny(dtype=dtype), scorer="surrogate")
    result = reranker.rerank(QUERY, DOCUMENTS)
    assert [d.score for d in result] == sorted((d.score for d in result), reverse=True)
    assert result.details["rows"] == 32
    assert [d.score for d in reranker.rerank(QUERY, DOCUMENTS)] == [d.score for d in result]
    assert len(reranker.rerank(QUERY, []).documents) == 0
