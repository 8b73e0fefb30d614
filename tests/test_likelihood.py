"""The likelihood scorer against the plain model on ordinary prompts with one document each."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny

from gradrerank import GradReranker
from gradrerank.errors import InvalidArgumentError
from gradrerank.lm.generator import Generator
from gradrerank.lm.prompt import Continuation
from gradrerank.scorers import LikelihoodScorer, ScoringJob
from gradrerank.scorers.likelihood import equal_parts

TEXTS = [(None, "The ferry leaves at 8:40 from the east pier."), ("Museum", "Closed."), (None, "A tram " * 20)]


def job_of(generator: Generator, query: str = "When does the ferry leave?") -> ScoringJob:
    documents = generator.layout.documents(TEXTS)
    return ScoringJob(query, documents, generator.layout.query_continuation(query), generator)


def plain_loss(generator: Generator, document: tuple[int, ...], continuation: Continuation) -> float:
    """Mean loss of the target in one ordinary prompt."""
    ids = [*generator.layout.prefix, *document, *continuation.question, *continuation.target]
    with torch.no_grad():
        logits = generator.plain(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    logs = logits.double().log_softmax(-1)
    first = len(ids) - len(continuation.target)
    return -sum(float(logs[i - 1, ids[i]]) for i in range(first, len(ids))) / len(continuation.target)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3", "gpt2", "mistral", "opt"])
def test_equals_ordinary_prompts_with_one_document_each(family: str) -> None:
    generator = Generator(*tiny(family))
    job = job_of(generator)
    scores = LikelihoodScorer().score(job)
    alone = plain_loss(generator, (), job.continuation)
    expected = [alone - plain_loss(generator, d.ids, job.continuation) for d in job.documents]
    assert scores.utilities == pytest.approx(expected, abs=2e-5)
    assert scores.details == {"loss": pytest.approx(alone, abs=2e-5), "rows": 4}


def test_counts_every_row_and_no_token_of_a_document_that_was_read_before() -> None:
    generator = Generator(*tiny("llama"))
    first, second = job_of(generator), job_of(generator)
    LikelihoodScorer().score(first)
    LikelihoodScorer().score(second)
    rows = 4 * len(first.continuation)
    assert first.tokens == Counter(documents=sum(map(len, first.documents)), question=rows)
    assert second.tokens == Counter(documents=0, question=rows)


def test_rows_that_pass_in_many_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(*tiny("llama"))
    whole = LikelihoodScorer().score(job_of(generator)).utilities
    monkeypatch.setattr("gradrerank.lm.apart._TOKENS_AT_ONCE", 1)
    assert LikelihoodScorer().score(job_of(generator)).utilities == pytest.approx(whole, abs=1e-6)


def test_a_document_scores_the_same_whatever_stands_beside_it() -> None:
    reranker = GradReranker(tiny("llama"), scorer="likelihood")
    texts = [text for _, text in TEXTS]
    alone = {text: reranker.rerank("When does it leave?", [text])[0].score for text in texts}
    together = {d.text: d.score for d in reranker.rerank("When does it leave?", texts)}
    assert together == pytest.approx(alone, abs=1e-5)


def test_a_batch_equals_single_calls() -> None:
    reranker = GradReranker(tiny("llama"), scorer="likelihood")
    queries, texts = ["When does the ferry leave?", "Where?", "What is closed today, and why?"], [t for _, t in TEXTS]
    for query, result in zip(queries, reranker.rerank_batch(queries, texts), strict=True):
        single = reranker.rerank(query, texts)
        assert [d.text for d in result] == [d.text for d in single]
        assert [d.score for d in result] == pytest.approx([d.score for d in single], abs=1e-6)


def test_shares_are_responsibilities_of_a_mixture() -> None:
    """Against the probabilities of ordinary prompts, word by word."""
    generator = Generator(*tiny("llama"))
    job = job_of(generator)
    losses = []
    for document in job.documents:
        ids = [*generator.layout.prefix, *document.ids, *job.continuation.question, *job.continuation.target]
        with torch.no_grad():
            logs = generator.plain(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
        first = len(ids) - len(job.continuation.target)
        losses.append([-float(logs[i - 1, ids[i]]) for i in range(first, len(ids))])
    weights = [[math.exp(-loss / 3) for loss in row] for row in losses]
    totals = [sum(column) for column in zip(*weights, strict=True)]
    expected = [sum(w / t for w, t in zip(row, totals, strict=True)) / len(row) - 1 / 3 for row in weights]
    found = LikelihoodScorer(shares=True).score(job).utilities
    assert found == pytest.approx(expected, abs=1e-5)
    assert sum(found) == pytest.approx(0, abs=1e-9)


def test_the_mean_orders_as_query_likelihood_at_any_temperature_of_shares_far_above() -> None:
    job = job_of(Generator(*tiny("llama")))
    mean = LikelihoodScorer().score(job).utilities
    shares = LikelihoodScorer(shares=True, temperature=1e4).score(job).utilities
    assert sorted(range(3), key=mean.__getitem__) == sorted(range(3), key=shares.__getitem__)


@pytest.mark.parametrize("temperature", [0, -1.0, float("nan")])
def test_a_temperature_that_cannot_be_used_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidArgumentError, match="temperature"):
        LikelihoodScorer(shares=True, temperature=temperature)


def readings(generator: Generator, ids: tuple[int, ...], title: int, window: int) -> list[tuple[int, range]]:
    """Where each part of a document ends, and which of the tokens before are out of sight."""
    return [(end, range(title, start)) for start, end in equal_parts(title, len(ids), window)]


def losses_without(generator: Generator, ids: tuple[int, ...], hidden: range, asked: Continuation) -> torch.Tensor:
    """Losses behind a document some of whose tokens have a closed gate."""
    spans = [[int(place in hidden) for place in range(len(ids))]]
    memory = generator.reader.assemble(generator.reader.read([ids]), spans)
    return generator.losses(memory, asked, torch.tensor([[1.0, 0.0][: memory.n_spans]]))[0]


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mistral"])
@pytest.mark.parametrize("window", [1, 7, 16, 1000])
def test_the_best_part_stands_for_a_long_document(family: str, window: int) -> None:
    """Against gates: a part is a document that ends there and whose earlier text is removed, but for its title."""
    generator = Generator(*tiny(family, dtype=torch.float64))
    job = job_of(generator)
    scores = LikelihoodScorer(window=window).score(job)
    expected, n_rows = [], 1
    for document in job.documents:
        found = readings(generator, document.ids, document.body_start, window)
        behind = [losses_without(generator, document.ids[:end], hidden, job.continuation) for end, hidden in found]
        expected.append(scores.details["loss"] - min(float(losses.mean()) for losses in behind))
        n_rows += len(behind)
    assert scores.utilities == pytest.approx(expected, abs=1e-6)
    assert scores.details["rows"] == n_rows
    assert job.tokens["question"] == n_rows * len(job.continuation)


@given(st.integers(0, 50), st.integers(1, 500), st.integers(1, 200))
def test_parts_are_equal_cover_the_text_and_are_as_near_to_the_window_as_can_be(
    start: int, length: int, size: int
) -> None:
    parts = equal_parts(start, start + length, size)
    assert [start, *(end for _, end in parts)] == [*(begin for begin, _ in parts), start + length]
    lengths = [end - begin for begin, end in parts]
    assert min(lengths) >= 1
    assert max(lengths) - min(lengths) <= 1
    assert len(parts) == max(1, int(length / size + 0.5))
    assert equal_parts(start, start + length, None) == [(start, start + length)]


def test_shares_are_read_behind_the_best_part() -> None:
    generator = Generator(*tiny("llama", dtype=torch.float64))
    job = job_of(generator)
    best = []
    for document in job.documents:
        found = readings(generator, document.ids, document.body_start, 16)
        behind = [losses_without(generator, document.ids[:end], hidden, job.continuation) for end, hidden in found]
        best.append(min(behind, key=lambda losses: float(losses.mean())))
    expected = (-torch.stack(best) / 3).softmax(0).mean(1) - 1 / 3
    scores = LikelihoodScorer(shares=True, window=16).score(job)
    assert scores.utilities == pytest.approx(expected.tolist(), abs=1e-6)


def test_documents_within_the_window_cost_and_score_as_without_one() -> None:
    generator = Generator(*tiny("llama"))
    plain, windowed = job_of(generator), job_of(generator)
    assert LikelihoodScorer(window=500).score(windowed) == LikelihoodScorer().score(plain)
    assert windowed.tokens["question"] == plain.tokens["question"]


@pytest.mark.parametrize("window", [0, -1, 2.5, True])
def test_a_window_that_cannot_be_used_is_refused(window: float) -> None:
    with pytest.raises(InvalidArgumentError, match="window"):
        LikelihoodScorer(window=window)  # type: ignore[arg-type]
