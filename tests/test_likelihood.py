"""The likelihood scorer against the plain model on ordinary prompts with one document each."""

from __future__ import annotations

import functools
import math
from collections import Counter

import pytest
import torch
from tiny import tiny

from gradrerank import GradReranker
from gradrerank.errors import InvalidArgumentError
from gradrerank.lm.generator import Generator
from gradrerank.lm.prompt import Continuation, DocumentTokens
from gradrerank.scorers import LikelihoodScorer, ScoringJob

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
    weights = [[math.exp(-loss / 2) for loss in row] for row in losses]
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


def losses_without(generator: Generator, ids: tuple[int, ...], hidden: range, asked: Continuation) -> torch.Tensor:
    """Losses behind a document some of whose tokens have a closed gate."""
    spans = [[int(place in hidden) for place in range(len(ids))]]
    memory = generator.reader.assemble(generator.reader.read([ids]), spans)
    return generator.losses(memory, asked, torch.tensor([[1.0, 0.0][: memory.n_spans]]))[0]


def best_window(generator: Generator, document: DocumentTokens, asked: Continuation, size: int) -> torch.Tensor:
    """Against gates: a window is a document that ends there and whose earlier text is removed, but for its title."""
    ids, first = document.ids, document.body_start
    starts = range(first, len(ids), size)
    found = [losses_without(generator, ids[: start + size], range(first, start), asked) for start in starts]
    return min(found, key=lambda losses: float(losses.mean()))


def expected_losses(job: ScoringJob, sizes: tuple[int, ...]) -> torch.Tensor:
    """[n, T] means over scales, the whole among them."""
    read = functools.partial(best_window, job.generator, asked=job.continuation)
    return torch.stack(
        [sum(read(document=d, size=s) for s in (9999, *sizes)) / (1 + len(sizes)) for d in job.documents]
    )


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mistral"])
@pytest.mark.parametrize("sizes", [(1,), (7,), (16,), (8, 16), (16, 8, 1000)])
def test_the_best_window_of_each_scale_stands_for_a_long_document(family: str, sizes: tuple[int, ...]) -> None:
    generator = Generator(*tiny(family, dtype=torch.float64))
    job = job_of(generator)
    scores = LikelihoodScorer(windows=sizes).score(job)
    expected = scores.details["loss"] - expected_losses(job, sizes).mean(1)
    assert scores.utilities == pytest.approx(expected.tolist(), abs=1e-6)
    counts = [-(-(len(d) - d.body_start) // size) for d in job.documents for size in sizes]
    assert scores.details["rows"] == 4 + sum(count for count in counts if count > 1)
    assert job.tokens["question"] == scores.details["rows"] * len(job.continuation)


def test_shares_are_read_over_all_scales() -> None:
    job = job_of(Generator(*tiny("llama", dtype=torch.float64)))
    expected = (-expected_losses(job, (8, 16)) / 2).softmax(0).mean(1) - 1 / 3
    scores = LikelihoodScorer(shares=True, windows=(8, 16)).score(job)
    assert scores.utilities == pytest.approx(expected.tolist(), abs=1e-6)


def test_windows_of_a_batch_equal_single_calls() -> None:
    reranker = GradReranker(tiny("llama"), scorer=LikelihoodScorer(shares=True, windows=(8, 16)))
    queries, texts = ["When does the ferry leave?", "Where?", "What is closed today, and why?"], [t for _, t in TEXTS]
    for query, result in zip(queries, reranker.rerank_batch(queries, texts), strict=True):
        single = reranker.rerank(query, texts)
        assert [(d.text, pytest.approx(d.score, abs=1e-6)) for d in result] == [(d.text, d.score) for d in single]


def test_documents_within_every_window_cost_and_score_as_without_one() -> None:
    generator = Generator(*tiny("llama"))
    plain, windowed = job_of(generator), job_of(generator)
    assert LikelihoodScorer(windows=(500,)).score(windowed) == LikelihoodScorer().score(plain)
    assert windowed.tokens["question"] == plain.tokens["question"]


@pytest.mark.parametrize("windows", [(0,), (64, -1), (2.5,), (True,), "64", 64, None])
def test_windows_that_cannot_be_used_are_refused(windows: object) -> None:
    with pytest.raises(InvalidArgumentError, match="windows"):
        LikelihoodScorer(windows=windows)  # type: ignore[arg-type]
