"""The token-by-document utilities: a Jacobian, checked by differences and by its mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GatesScorer, Generator, ScoringJob
from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.token_utilities import token_utilities


def job_of(family: str, texts: list[str], *, answer: str | None = None, **options: object) -> ScoringJob:
    generator = Generator(*tiny(family, **options))
    layout = generator.layout
    goal = layout.query_continuation(QUERY) if answer is None else layout.answer_continuation(QUERY, answer)
    return ScoringJob(QUERY, layout.documents([(None, text) for text in texts]), goal, generator)


@pytest.mark.parametrize("answer", [None, "at nine"])
def test_every_entry_is_the_slope_of_one_token_loss(answer: str | None) -> None:
    job = job_of("llama", DOCUMENTS[:3], answer=answer, dtype=torch.float64)
    memory = job.generator.remember(job.documents)
    found = token_utilities(job, memory)
    step = 1e-2  # the norms of the model round to float32, so a smaller one would drown
    gates = torch.ones(1, 3, dtype=torch.float64) + step * torch.cat([torch.eye(3), -torch.eye(3)]).double()
    losses = job.generator.losses(memory, job.continuation, gates).numpy()
    assert found.shape == (len(job.continuation.target), 3)
    np.testing.assert_allclose(found.T, -(losses[:3] - losses[3:]) / (2 * step), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_its_mean_over_tokens_is_the_score_of_the_gates_whatever_the_batch(family: str, batch_size: int) -> None:
    job = job_of(family, DOCUMENTS)
    found = token_utilities(job, batch_size=batch_size)
    np.testing.assert_allclose(found.mean(0), GatesScorer().score(job).utilities, rtol=1e-3, atol=1e-5)


def test_one_token_and_one_document() -> None:
    job = job_of("llama", DOCUMENTS[:1])
    short = ScoringJob(QUERY, job.documents, type(job.continuation)(job.continuation.question, (5,)), job.generator)
    assert token_utilities(short).shape == (1, 1)


def test_tokens_through_the_model_are_counted() -> None:
    job = job_of("llama", DOCUMENTS[:2])
    n_question, n_target = len(job.continuation.question), len(job.continuation.target)
    token_utilities(job)
    assert job.tokens["question"] == n_target * n_question + n_target * (n_target - 1) // 2
    assert job.tokens["documents"] >= sum(map(len, job.documents))


@pytest.mark.parametrize("batch_size", [0, -1, 1.5, True])
def test_a_batch_size_that_cannot_be_meant_is_refused(batch_size: object) -> None:
    with pytest.raises(InvalidArgumentError, match="batch_size must be a whole number >= 1"):
        token_utilities(job_of("llama", DOCUMENTS[:1]), batch_size=batch_size)  # type: ignore[arg-type]
