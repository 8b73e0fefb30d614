"""Leave-one-out estimated from gradients: exact in one head, exact in one token, closer than slopes in a model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import AblationScorer, GatesScorer, Generator, GradReranker, RemovalScorer, ScoringJob
from gradrerank.errors import InvalidArgumentError
from gradrerank.lm.gated_attention import GatedAttention
from gradrerank.lm.memory import Memory
from gradrerank.scorers import as_scorer
from gradrerank.scorers.removal import without_document
from gradrerank.scorers.token_utilities import token_slopes, token_utilities

FAMILIES = ["llama", "gemma3", "gpt2"]


def job_of(family: str = "llama", texts: list[str] = DOCUMENTS, **options: object) -> ScoringJob:
    generator = Generator(*tiny(family, **options))
    goal = generator.layout.answer_continuation(QUERY, "at nine")
    return ScoringJob(QUERY, generator.layout.documents([(None, text) for text in texts]), goal, generator)


def one_head(memory: Memory, gates: torch.Tensor, removal: float) -> torch.Tensor:
    """What one layer's attention gives for the same random queries, with its keys three times as sharp."""
    random = torch.Generator().manual_seed(3)
    keys, values = memory.layer(0)
    rows, heads = gates.shape[:2]
    query, key, value = (
        torch.randn(rows, count, 5, width, generator=random, dtype=keys.dtype) * 3
        for count, width in ((heads, keys.shape[2]), (keys.shape[0], keys.shape[2]), (keys.shape[0], values.shape[2]))
    )
    found: torch.Tensor = GatedAttention.apply(query, key, value, gates, memory, 0, 0.5, None, removal)
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("start", [1.0, 0.4])
def test_in_one_head_it_is_leave_one_out_exactly(family: str, start: float) -> None:
    """Of a loss that is linear in the output, where one document has up to nearly all of a head's attention."""
    job = job_of(family, dtype=torch.float64)
    memory, n = job.generator.remember(job.documents), len(DOCUMENTS)
    open_ = torch.full((1, job.generator.n_heads, n), start, dtype=torch.float64, requires_grad=True)
    output = one_head(memory, open_, 1.0)
    pull = torch.randn(output.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    (slopes,) = torch.autograd.grad((output * pull).sum(), open_)
    for i in range(n):
        closed = open_.detach().clone()
        closed[..., i] = 0
        change = ((output.detach() - one_head(memory, closed, 0.0)) * pull).sum((0, 2, 3))
        torch.testing.assert_close(start * slopes[0, :, i].detach(), change, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_blocks_of_memory_change_nothing(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(dtype=torch.float64)
    expected = RemovalScorer(exact=0).score(job).utilities
    monkeypatch.setattr("gradrerank.lm.gated_attention._block_tokens", lambda stacked: size)
    assert RemovalScorer(exact=0).score(job).utilities == pytest.approx(expected, rel=1e-6)


def test_nothing_of_a_part_is_the_slope() -> None:
    job = job_of(dtype=torch.float64)
    losses = job.generator.losses(job.generator.remember(job.documents), job.continuation, torch.ones(1, 5))[0].numpy()
    slopes = token_utilities(job)
    expected = without_document(slopes, losses).mean(0)
    np.testing.assert_allclose(RemovalScorer(part=0, z=1, exact=0).score(job).utilities, expected, rtol=1e-4)
    assert not np.allclose(RemovalScorer(part=1, z=1, exact=0).score(job).utilities, expected, rtol=1e-3)


def test_slopes_and_losses_are_read_at_z() -> None:
    job = job_of(dtype=torch.float64)
    memory, n = job.generator.remember(job.documents), len(DOCUMENTS)
    for z in (0.5, 0.9):
        found = job.generator.gate_gradients(memory, job.continuation, torch.full((1, n), z))
        at = RemovalScorer(part=0, z=z, exact=0).score(job)
        assert at.details["loss"] == pytest.approx(float(found.loss[0]), rel=1e-6)
        # The mean over tokens of slopes is the slope of the mean; what bends the loss of each token is undone here.
        slopes = token_slopes(job, memory, 8, z=z).utilities.mean(0)
        np.testing.assert_allclose(slopes, -found.gradients[0].sum((0, 1)).numpy(), rtol=1e-4)


@given(st.floats(-8, 8), st.floats(-8, 8))
def test_a_token_whose_log_odds_fall_is_followed_exactly(log_odds: float, fall: float) -> None:
    loss = np.logaddexp(0, -log_odds)
    slope = fall / (1 + np.exp(log_odds))  # dL/d(log-odds) is -(1 - p)
    found = without_document(np.array([[slope]]), np.array([loss]))
    np.testing.assert_allclose(found[0, 0], np.logaddexp(0, fall - log_odds) - loss, rtol=1e-6, atol=1e-9)


@given(st.floats(1e-6, 20), st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_a_rise_has_the_sign_and_order_of_its_slope_and_no_loss_falls_below_zero(
    loss: float, slopes: list[float]
) -> None:
    found = without_document(np.array([slopes]), np.array([loss]))[0]
    assert (np.diff(found[np.argsort(slopes)]) >= 0).all()
    assert (found >= -loss - 1e-12).all()
    assert all(rise >= slope - 1e-9 for rise, slope in zip(found, slopes, strict=True))  # the loss is convex


def test_a_token_that_is_certain_says_nothing() -> None:
    assert without_document(np.array([[0.0, 1e-9]]), np.array([0.0])).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_size", [1, 2, 50])
def test_batches_change_nothing(family: str, batch_size: int) -> None:
    job = job_of(family)
    expected = RemovalScorer().score(job).utilities
    assert RemovalScorer(batch_size=batch_size).score(job).utilities == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize(("exact", "more_rows"), [(0, 0), (2, 3)])
def test_tokens_loss_and_rows_are_reported(exact: int, more_rows: int) -> None:
    job = job_of()
    n_question, n_target = len(job.continuation.question), len(job.continuation.target)
    scores = RemovalScorer(z=1, exact=exact).score(job)
    one_a_token = n_target * n_question + n_target * (n_target - 1) // 2
    assert job.tokens["question"] == one_a_token + more_rows * len(job.continuation)
    assert scores.details["rows"] == n_target + more_rows
    assert scores.details["loss"] == pytest.approx(AblationScorer().score(job).details["loss"], rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("exact", [0, 1, 2, 5, 9])
def test_where_the_loss_bends_most_documents_are_left_out_in_truth(family: str, exact: int) -> None:
    job = job_of(family, dtype=torch.float64)
    memory, n = job.generator.remember(job.documents), len(DOCUMENTS)
    slopes, losses = token_slopes(job, memory, 8, z=0.95, removal=0.9)
    rises = without_document(slopes, losses)
    estimates, truths = rises.mean(0), np.array(AblationScorer().score(job).utilities)
    doubtful = sorted(range(n), key=lambda i: -float((rises - slopes).mean(0)[i]))[:exact]
    expected = [truths[i] if i in doubtful else estimates[i] for i in range(n)]
    scores = RemovalScorer(exact=exact).score(job)
    np.testing.assert_allclose(scores.utilities, expected, rtol=1e-6, atol=1e-12)
    assert scores.details["exact"] == sorted(doubtful)


@pytest.mark.real_model
def test_it_is_nearer_to_leave_one_out_than_slopes_on_the_real_model() -> None:
    reranker = GradReranker(target="reference")
    question, answer = "When does the first ferry leave Larvik?", "at 6:40"
    texts = [
        "The first ferry leaves Larvik at 6:40.",
        "Larvik is a town.",
        "Ferries need an hour.",
        "The last is at 22:10.",
    ]

    def utilities(scorer: object) -> np.ndarray:
        result = reranker.rerank(question, texts, scorer=scorer, reference=answer)
        by_text = {d.text: d.score for d in result}
        return np.array([by_text[text] for text in texts])

    truth = utilities("ablation")
    assert np.abs(utilities("removal") - truth).sum() < 0.7 * np.abs(utilities(GatesScorer()) - truth).sum()


def test_by_name() -> None:
    assert as_scorer("removal") == RemovalScorer()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"part": -0.1}, "part"),
        ({"z": -0.1}, "z"),
        ({"part": 1.1}, "part"),
        ({"exact": -1}, "exact"),
        ({"exact": True}, "exact"),
        ({"exact": 0.5}, "exact"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: dict[str, float], name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=name):
        RemovalScorer(**options)  # type: ignore[arg-type]
