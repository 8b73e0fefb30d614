"""Attention as a score: the masses against transformers' own weights, the calibration against a plain loop."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import AttentionScorer, GatesScorer, GradReranker, Scores, ScoringJob
from gradrerank.errors import ContextOverflowError, InvalidArgumentError
from gradrerank.lm.attending import attention_mass
from gradrerank.lm.generator import Generator
from gradrerank.scorers import as_scorer

FAMILIES = ["llama", "mistral", "qwen2", "gemma3", "gpt2", "opt"]
QUERIES = [QUERY, "Who wrote the book?", "Why does the tram run every hour over the green hill?", "When?"]


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(*tiny("gpt2", dtype=torch.float64))


def job_of(generator: Generator, query: str = QUERY, texts: list[str] = DOCUMENTS) -> ScoringJob:
    documents = generator.layout.documents([("Title", text) for text in texts])
    return ScoringJob(query, documents, generator.layout.query_continuation(query), generator)


def every_head(generator: Generator) -> torch.Tensor:
    return torch.ones(generator.n_layers, generator.n_heads, dtype=torch.bool)


def eager_attention(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    """[layers, heads, T, T] weights as transformers' eager implementation gives them out."""
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    with torch.no_grad():
        output = eager(input_ids=ids[None], output_attentions=True, use_cache=False, **options)
    return torch.stack(output.attentions)[:, 0]


def masks_between_texts(owner: torch.Tensor, positions: torch.Tensor, window: int | None) -> torch.Tensor:
    """[1, 1, T, T] additive mask: causal; a document (owner > 0) is seen by itself and by what comes last (-1)."""
    index = torch.arange(len(owner))
    seen = (index[:, None] >= index) & ((owner[:, None] == owner) | (owner == 0) | (owner[:, None] == -1))
    if window is not None:
        seen &= positions[:, None] - positions < window
    return torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]


@pytest.mark.parametrize("first", [0, 7, -1])
@pytest.mark.parametrize("family", FAMILIES)
def test_mass_is_that_of_transformers_on_the_ordinary_prompt(family: str, first: int) -> None:
    """With one document, prefix, document and question read apart are one prompt; the document is longer than
    the sliding window of mistral and gemma3."""
    model, tokenizer = tiny(family)
    generator = Generator(model, tokenizer)
    document = generator.layout.documents([(None, " ".join(DOCUMENTS))])[0]
    asked = generator.layout.answer_continuation(QUERY, "At nine.").question
    first = first % len(asked)
    memory = generator.remember([document])
    n = len(memory.positions)
    assert n > 120
    weights = eager_attention(model, torch.tensor([*generator.layout.prefix, *document.ids, *asked]))
    if family in ("mistral", "gemma3"):
        assert float(weights[:, :, -1, : n - 60].abs().max()) == 0, "the window hides the beginning"
    found = attention_mass(generator, memory, [asked], [first], every_head(generator))
    torch.testing.assert_close(found[0], weights[:, :, n + first :, :n].mean(2).sum((0, 1)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "gemma3", "gpt2"])
def test_mass_is_that_of_transformers_where_documents_do_not_see_each_other(family: str) -> None:
    """All documents in one row, with positions that overlap and a mask that keeps them apart."""
    model, tokenizer = tiny(family)
    generator = Generator(model, tokenizer)
    documents = generator.layout.documents([(None, text) for text in [*DOCUMENTS, " ".join(DOCUMENTS[:3])]])
    asked = generator.layout.query_continuation(QUERY)
    new, memory = asked.question + asked.target, generator.remember(documents)
    n = len(memory.positions)
    start = int(memory.positions.max()) + 1
    ids = torch.tensor([*generator.layout.prefix, *(i for d in documents for i in d.ids), *new])
    positions = torch.cat([memory.positions, torch.arange(start, start + len(new))])
    owner = torch.tensor(
        [0] * len(generator.layout.prefix) + [k for k, d in enumerate(documents, 1) for _ in d.ids] + [-1] * len(new)
    )
    full, near = (masks_between_texts(owner, positions, window) for window in (None, 60))
    mask: Any = {"llama": full, "gpt2": full, "mistral": near}.get(
        family, {"full_attention": full, "sliding_attention": near}
    )
    weights = eager_attention(model, ids, attention_mask=mask, position_ids=positions[None])
    heads = torch.zeros(generator.n_layers, generator.n_heads, dtype=torch.bool)
    heads[0, 1] = heads[1] = heads[2, 3] = True
    found = attention_mass(generator, memory, [new], [len(asked.question)], heads)
    counted = weights[:, :, n + len(asked.question) :, :n].mean(2)[heads].sum(0)
    torch.testing.assert_close(found[0], counted, rtol=1e-4, atol=1e-5)


def test_mass_in_blocks_is_that_of_one_row_at_a_time(generator: Generator) -> None:
    """C32 Enough rows for several blocks of memory; rows of all lengths, each padded to the longest."""
    memory = generator.remember(
        job_of(generator, texts=[f"{k} {text}" for k in range(4) for text in DOCUMENTS]).documents
    )
    long = generator.layout.answer_continuation(" ".join(QUERIES), "No.").question
    rows = [long[k % 20 :] for k in range(80)]
    first = [k % 9 for k in range(80)]
    together = attention_mass(generator, memory, rows, first, every_head(generator))
    assert max(map(len, memory.plans.values())) > 1
    for k in (0, 19, 41, 79):
        alone = attention_mass(generator, memory, [rows[k]], [first[k]], every_head(generator))
        torch.testing.assert_close(together[k], alone[0], rtol=1e-9, atol=1e-12)


def test_C19_mass_needs_no_gradient_and_leaves_the_mode_of_the_caller(generator: Generator) -> None:
    memory, row = generator.remember(job_of(generator).documents), (5, 6, 7)
    with torch.inference_mode():
        inside = attention_mass(generator, memory, [row], [0], every_head(generator))
        assert torch.is_inference_mode_enabled()
    assert torch.equal(inside, attention_mass(generator, memory, [row], [0], every_head(generator)))
    assert not inside.requires_grad


def by_hand(generator: Generator, query: str, outliers: float | None) -> list[float]:
    """The score in the words of the paper: token by token, document by document."""
    job = job_of(generator, query)
    memory, totals = generator.remember(job.documents), []
    asked, empty = (generator.layout.query_continuation(q) for q in (query, "N/A"))
    rows = [c.question + c.target for c in (asked, empty)]
    mass = attention_mass(generator, memory, rows, [len(asked.question)] * 2, every_head(generator))
    separator = len(generator.layout.documents([(None, "")])[0])
    at = len(generator.layout.prefix)
    for document in job.documents:
        tokens = (mass[0] - mass[1])[at : at + len(document) - separator]
        bound = -torch.inf if outliers is None else tokens.mean() - outliers * tokens.std()
        totals.append(float(sum(token for token in tokens if token >= bound)))
        at += len(document)
    return totals


@pytest.mark.parametrize("outliers", [None, 2.0, 0.5, 0.0])
def test_score_is_calibrated_by_token_and_leaves_out_abnormal_ones(
    generator: Generator, outliers: float | None
) -> None:
    scores = AttentionScorer(outliers=outliers).score(job_of(generator))
    assert list(scores.utilities) == pytest.approx(by_hand(generator, QUERY, outliers), abs=1e-12)
    assert (scores.details["filtered"] == 0) == (outliers is None)
    if outliers is None:
        assert list(scores.utilities) == pytest.approx(
            [a - b for a, b in zip(*(scores.details[f"{k}_attention"] for k in ("query", "content_free")), strict=True)]
        )
    json.dumps(scores.details)


@pytest.mark.parametrize("readers", ["query", "prompt"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_query_without_content_scores_nothing(family: str, readers: Any) -> None:
    generator = Generator(*tiny(family))
    scores = AttentionScorer(content_free=QUERY, readers=readers).score(job_of(generator))
    assert list(scores.utilities) == [0.0] * len(DOCUMENTS)
    other = AttentionScorer(content_free="n/a", readers=readers).score(job_of(generator))
    assert len(set(other.utilities)) == len(DOCUMENTS)
    assert min(other.utilities) < 0 or max(other.utilities) > 0


def test_layers_and_heads_split_the_score(generator: Generator) -> None:
    def utilities(**options: Any) -> torch.Tensor:
        return torch.tensor(AttentionScorer(outliers=None, **options).score(job_of(generator)).utilities)

    by_layer = [utilities(layers=[k]) for k in range(3)]
    by_head = [utilities(heads=[(1, k)]) for k in range(4)]
    torch.testing.assert_close(sum(by_layer), utilities())
    torch.testing.assert_close(sum(by_head), by_layer[1])
    torch.testing.assert_close(utilities(layers=[0, 1], heads=[(1, 2), (2, 2)]), by_head[2])


def test_the_pass_ends_at_the_highest_layer_that_counts(generator: Generator) -> None:
    """What lies above cannot matter, even where it is broken."""
    model, tokenizer = tiny("gpt2", dtype=torch.float64)
    other = Generator(model, tokenizer)
    scorer = AttentionScorer(layers=[0, 1])
    expected = scorer.score(job_of(generator)).utilities
    with torch.no_grad():
        other.engine.plain.get_submodule("transformer.h.2.mlp.c_proj").weight.fill_(torch.nan)
        other.engine.plain.get_submodule("transformer.ln_f").weight.fill_(torch.nan)
    assert scorer.score(job_of(other)).utilities == pytest.approx(expected)


def test_prompt_readers_are_all_tokens_after_the_documents(generator: Generator) -> None:
    job = job_of(generator)
    found = AttentionScorer(readers="prompt").score(job)
    rows = [generator.layout.answer_continuation(q, "x").question for q in (QUERY, "N/A")]
    mass = attention_mass(generator, generator.remember(job.documents), rows, [0, 0], every_head(generator))
    at = len(generator.layout.prefix)
    first = job.documents[0]
    read = slice(at, at + first.body_start + len(first.body))
    assert found.details["query_attention"][0] == pytest.approx(float(mass[0, read].sum()))
    assert job.tokens["question"] == sum(map(len, rows))


def test_the_target_does_not_matter_and_the_query_is_counted_once(generator: Generator) -> None:
    job, rows = job_of(generator), [generator.layout.query_continuation(q) for q in (QUERY, "N/A")]
    answer = ScoringJob(QUERY, job.documents, generator.layout.answer_continuation(QUERY, "Nine."), generator)
    scorer = AttentionScorer()
    assert scorer.score(job).utilities == scorer.score(answer).utilities
    assert job.tokens["question"] == answer.tokens["question"] == sum(len(r.question + r.target) for r in rows)


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_C32_a_batch_of_queries_equals_single_ones(generator: Generator, batch_size: int) -> None:
    jobs = [job_of(generator, query) for query in [*QUERIES, QUERY]]
    batch = AttentionScorer(batch_size=batch_size).score_batch(jobs)
    for query, scores in zip([*QUERIES, QUERY], batch, strict=True):
        alone = AttentionScorer().score(job_of(generator, query))
        assert list(scores.utilities) == pytest.approx(list(alone.utilities), abs=1e-12)
    assert batch[-1].utilities == batch[0].utilities
    rows = [generator.layout.query_continuation(q) for q in ["N/A", *QUERIES]]
    assert sum(job.tokens["question"] for job in jobs) == sum(len(r.question + r.target) for r in rows)


@pytest.mark.parametrize("texts", [DOCUMENTS[:1], ["a"], ["a", ""], [*DOCUMENTS, DOCUMENTS[0]]])
def test_any_number_of_documents_of_any_length(generator: Generator, texts: list[str]) -> None:
    job = job_of(generator, texts=texts)
    untitled = ScoringJob(
        QUERY, generator.layout.documents([(None, text) for text in texts]), job.continuation, generator
    )
    for scores in (AttentionScorer().score(job), AttentionScorer().score(untitled)):
        assert len(scores.utilities) == len(texts)
        assert all(abs(u) < generator.n_layers * generator.n_heads for u in scores.utilities)
    if len(texts) > len(DOCUMENTS):
        assert scores.utilities[0] == pytest.approx(scores.utilities[-1], abs=1e-12), "no place is better"
    if "" in texts:
        assert scores.utilities[1] == 0.0, "nothing to attend to"


def test_bfloat16_gives_about_the_same(generator: Generator) -> None:
    wide, narrow = (Generator(*tiny("llama", dtype=dtype)) for dtype in (torch.float32, torch.bfloat16))
    expected, found = (AttentionScorer(outliers=None).score(job_of(g)) for g in (wide, narrow))
    assert found.details["query_attention"] == pytest.approx(expected.details["query_attention"], rel=0.15)


def test_documents_and_query_must_fit_the_context() -> None:
    generator = Generator(*tiny("gpt2"), max_context=110)
    job = job_of(generator, texts=DOCUMENTS[:1])
    read = len(generator.layout.prefix) + len(job.documents[0]) + len(job.continuation)
    assert read <= 110
    AttentionScorer().score(job)
    with pytest.raises(ContextOverflowError, match="context of 110"):
        AttentionScorer(content_free="N/A " * 40).score(job)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": []}, "^layers must name at least one"),
        ({"heads": 3}, "^heads must be a sequence"),
        ({"content_free": " "}, "^content_free must hold some text, got ' '"),
        ({"content_free": None}, "^content_free must"),
        ({"readers": "all"}, "^readers must be one of"),
        ({"outliers": -1}, "^outliers must"),
        ({"batch_size": 0}, "^batch_size must"),
    ],
)
def test_options_out_of_range_are_named_at_construction(options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        AttentionScorer(**options)


@pytest.mark.parametrize("scorer", [AttentionScorer, GatesScorer])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [7]}, r"layers names \[7\], but the model has layers 0 to 2"),
        ({"heads": [(0, 9)]}, r"heads names \(0, 9\), but a layer has heads 0 to 3"),
        ({"heads": [(1, 0)], "layers": [2]}, "heads and layers must share a layer"),
    ],
)
def test_layers_and_heads_that_do_not_exist_are_named(
    generator: Generator, scorer: Any, options: Any, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        scorer(**options).score(job_of(generator))


def test_a_reranker_takes_it_by_name() -> None:
    assert isinstance(as_scorer("attention"), AttentionScorer)
    reranker = GradReranker(tiny(), scorer="attention")
    batch = reranker.rerank_batch(QUERIES, DOCUMENTS)
    for query, result in zip(QUERIES, batch, strict=True):
        alone = reranker.rerank(query, DOCUMENTS)
        assert [d.text for d in result] == [d.text for d in alone]
        assert [d.score for d in result] == pytest.approx([d.score for d in alone], abs=1e-4)
        assert result.scorer == "attention"
    scores = AttentionScorer().score(job_of(reranker.generator))
    assert isinstance(scores, Scores)
