"""Scorers against exact leave-one-out, finite differences and closed forms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import AblationScorer, GatesScorer, MixtureScorer, Scores, ScoringJob
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError
from gradrerank.lm.generator import Generator
from gradrerank.lm.pieces import sentence_ranges, split_into_pieces
from gradrerank.scorers import as_scorer
from gradrerank.scorers.checking import checked_scores, settle_near_ties


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(*tiny("gpt2", dtype=torch.float64))


def job_of(generator: Generator, texts: list[str] = DOCUMENTS, top_n: int | None = None) -> ScoringJob:
    documents = generator.layout.documents([(None, text) for text in texts])
    return ScoringJob(QUERY, documents, generator.layout.query_continuation(QUERY), generator, top_n)


def loss_with(job: ScoringJob, gates: list[float]) -> float:
    memory = job.generator.remember(job.documents)
    return float(job.generator.losses(memory, job.continuation, torch.tensor([gates], dtype=torch.float64)).mean())


def test_ablation_is_the_loss_without_each_document(generator: Generator) -> None:
    job = job_of(generator)
    scores = AblationScorer(batch_size=2).score(job)
    full = loss_with(job, [1.0] * 5)
    expected = [loss_with(job, [float(j != i) for j in range(5)]) - full for i in range(5)]
    assert list(scores.utilities) == pytest.approx(expected, abs=1e-12)
    assert scores.details["loss"] == pytest.approx(full)
    assert job.tokens["question"] == 6 * len(job.continuation)


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_C32_ablation_does_not_depend_on_its_batches(generator: Generator, batch_size: int) -> None:
    one = AblationScorer(batch_size=1).score(job_of(generator)).utilities
    assert AblationScorer(batch_size=batch_size).score(job_of(generator)).utilities == pytest.approx(one, abs=1e-12)


def test_gates_agree_with_leave_one_out_where_documents_say_little(generator: Generator) -> None:
    """Near z = 1 the loss is almost linear in one gate, so the gradient orders like the ablation."""
    texts = [f"{word} {d}" for word in ("Once", "Then", "Now", "Later") for d in DOCUMENTS]
    gates, ablation = (scorer.score(job_of(generator, texts)).utilities for scorer in (GatesScorer(), AblationScorer()))
    assert spearmanr(gates, ablation).statistic > 0.9


@pytest.mark.parametrize("z", [1.0, 0.3, "uniform"])
def test_integrated_gates_add_up_to_what_the_documents_do_together(generator: Generator, z: Any) -> None:
    job = job_of(generator)
    scores = GatesScorer(z=z, steps=400).score(job)
    end = 1 / 5 if z == "uniform" else z
    assert sum(scores.utilities) == pytest.approx(loss_with(job, [0.0] * 5) - loss_with(job, [end] * 5), rel=5e-3)
    assert scores.details["passes"] == 400
    assert job.tokens["question"] == 400 * len(job.continuation)


def test_path_batches_do_not_change_the_average(generator: Generator) -> None:
    one = GatesScorer(steps=5, batch_size=1).score(job_of(generator)).utilities
    assert GatesScorer(steps=5, batch_size=4).score(job_of(generator)).utilities == pytest.approx(one)


def test_layers_and_heads_split_the_score(generator: Generator) -> None:
    full = np.array(GatesScorer().score(job_of(generator)).utilities)
    by_layer = [GatesScorer(layers=[i]).score(job_of(generator)).utilities for i in range(3)]
    by_head = [GatesScorer(heads=[(1, h)]).score(job_of(generator)).utilities for h in range(4)]
    np.testing.assert_allclose(np.sum(by_layer, axis=0), full)
    np.testing.assert_allclose(np.sum(by_head, axis=0), by_layer[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": [7]}, r"layers names \[7\], but the model has layers 0 to 2"),
        ({"heads": [(0, 9)]}, r"heads names \(0, 9\), but a layer has heads 0 to 3"),
        ({"heads": [(1, 0)], "layers": [2]}, "heads and layers must share a layer"),
    ],
)
def test_layers_and_heads_that_do_not_exist_are_named(generator: Generator, options: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        GatesScorer(**options).score(job_of(generator))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: GatesScorer(z=-1), "z"),
        (lambda: GatesScorer(z="half"), "z"),  # type: ignore[arg-type]
        (lambda: GatesScorer(steps=0), "steps"),
        (lambda: GatesScorer(best=True), "best"),
        (lambda: GatesScorer(layers=[]), "layers"),
        (lambda: GatesScorer(pieces="word"), "pieces"),  # type: ignore[arg-type]
        (lambda: MixtureScorer(steps=-1), "steps"),
        (lambda: MixtureScorer(k=0), "k"),
        (lambda: MixtureScorer(layer=1.0), "layer"),  # type: ignore[arg-type]
        (lambda: MixtureScorer(step_size=math.nan), "step_size"),
        (lambda: AblationScorer(batch_size=0), "batch_size"),
    ],
)
def test_options_out_of_range_are_named_at_construction(make: Any, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"^{name} must"):
        make()


# -- pieces ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", ["window", "sentence", lambda text: [(0, 3), (3, len(text))]])
def test_pieces_add_up_to_the_document_and_lie_in_its_text(generator: Generator, pieces: Any) -> None:
    whole = GatesScorer().score(job_of(generator)).utilities
    scores = GatesScorer(pieces=pieces, window=8).score(job_of(generator))
    assert list(scores.utilities) == pytest.approx(list(whole))
    for text, utility, spans in zip(DOCUMENTS, scores.utilities, scores.spans, strict=True):
        assert sum(span.score for span in spans) == pytest.approx(utility)
        assert "".join(text[span.start : span.end] for span in spans) == text


def test_best_pieces_sum_to_the_score(generator: Generator) -> None:
    scores = GatesScorer(pieces="window", window=8, best=2).score(job_of(generator))
    for utility, spans in zip(scores.utilities, scores.spans, strict=True):
        assert utility == pytest.approx(sum(sorted((s.score for s in spans), reverse=True)[:2]))


@given(
    text=st.text(alphabet="ab .!?\n。é👩‍e\u0301", min_size=1, max_size=60),
    window=st.integers(1, 9),
    limit=st.one_of(st.none(), st.integers(8, 40)),
    by=st.sampled_from(["window", "sentence"]),
)
def test_C21_pieces_cover_what_is_read_without_gap_or_overlap(
    generator: Generator, text: str, window: int, limit: int | None, by: Any
) -> None:
    documents = generator.layout.documents([("Title", text), (None, text)], max_tokens=limit)
    pieces = split_into_pieces(documents, by, window)
    for document, spans, owners in zip(documents, pieces.document_spans, pieces.token_spans, strict=True):
        ranges = [pieces.characters[s] for s in spans]
        assert ranges[0][0] == 0
        assert ranges[-1][1] == document.kept[1]
        assert all(a[1] == b[0] for a, b in zip(ranges, ranges[1:], strict=False))
        assert len(owners) == len(document)
        assert list(owners) == sorted(owners)
        assert set(owners) == set(spans)


@given(st.text(alphabet='ab .!?\n。’")', max_size=60))
def test_sentences_cover_the_text(text: str) -> None:
    assert "".join(text[a:b] for a, b in sentence_ranges(text)) == text


def test_sentences_end_at_closing_marks_and_line_breaks() -> None:
    text = 'It is 3.5 km. "Really?" she asked.\nYes! 好。行'
    assert [text[a:b] for a, b in sentence_ranges(text)] == [
        "It is 3.5 km. ",
        '"Really?" ',
        "she asked.\n",
        "Yes! ",
        "好。",
        "行",
    ]


@pytest.mark.real_model
@pytest.mark.parametrize("pieces", ["sentence", sentence_ranges])
def test_pieces_begin_where_sentences_begin_with_the_embedded_tokenizer(pieces: Any) -> None:
    """Its tokens carry the space before a word, so a sentence begins inside a token."""
    from gradrerank import load_generator

    text = "Trams run hourly. Bialetti was born in 1888. Cats sleep. Zürich has trams! Is it so? Yes.\nNew line here."
    documents = load_generator().layout.documents([("Title", text), (None, text)])
    found = split_into_pieces(documents, pieces, 32)
    expected = [text[a:b] for a, b in sentence_ranges(text)]
    assert len(expected) == 7
    for spans, owners, document in zip(found.document_spans, found.token_spans, documents, strict=True):
        assert [text[slice(*found.characters[s])] for s in spans] == expected
        inside = list(zip(document.body.offsets, owners[document.body_start :], strict=False))
        for s in spans:
            start, end = found.characters[s]
            assert all(a < end and b > start for (a, b), owner in inside if owner == s), "only tokens of the sentence"


def test_ranges_of_a_callable_that_make_no_sense_are_an_error(generator: Generator) -> None:
    with pytest.raises(ScoringError, match=r"range \(5, 2\) for a text of \d+ characters"):
        GatesScorer(pieces=lambda text: [(5, 2)]).score(job_of(generator))
    for wrong in (None, [3], [("a", "b")]):
        with pytest.raises(ScoringError, match="pieces must return pairs"):
            GatesScorer(pieces=lambda text, wrong=wrong: wrong).score(job_of(generator))


# -- mixture --------------------------------------------------------------------------------------------


def soft_loss(job: ScoringJob, mixture: torch.Tensor) -> float:
    """The loss behind one soft token, with the whole sequence written out."""
    model, continuation = job.generator.plain, job.continuation
    embed = model.get_input_embeddings()
    ids = [torch.tensor(part) for part in (job.generator.layout.prefix, continuation.question + continuation.target)]
    inputs = torch.cat([embed(ids[0]), mixture[None], embed(ids[1])])[None]
    logits = model(inputs_embeds=inputs).logits[0, -len(continuation.target) - 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(continuation.target)))


@pytest.mark.parametrize("layer", [0, 2])
def test_mixture_is_the_directional_derivative_towards_each_document(generator: Generator, layer: int) -> None:
    job = job_of(generator)
    scores = MixtureScorer(layer=layer).score(job)
    with torch.no_grad():
        vectors = []
        for document in job.documents:
            ids = torch.tensor([document.ids])
            hidden = generator.plain.base_model(ids, output_hidden_states=True).hidden_states
            states = hidden[layer] if layer else generator.plain.get_input_embeddings()(ids)
            vectors.append(states[0].mean(0))
        middle, step = torch.stack(vectors).mean(0), 1e-5
        for vector, utility in zip(vectors, scores.utilities, strict=True):
            slope = (soft_loss(job, middle + step * vector) - soft_loss(job, middle - step * vector)) / (2 * step)
            assert utility == pytest.approx(-slope, rel=1e-3, abs=1e-8)


def test_iterated_mixture_lowers_the_loss_and_stays_on_the_sparse_simplex(generator: Generator) -> None:
    job = job_of(generator, top_n=2)
    scores = MixtureScorer(steps=12, step_size=0.1).score(job)
    weights = np.array(scores.details["weights"])
    assert weights.sum() == pytest.approx(1.0)
    assert (weights >= 0).all()
    assert np.count_nonzero(weights) <= 2
    losses = scores.details["losses"]
    assert len(losses) == scores.details["passes"] == 13
    assert min(losses[1:]) < losses[0]


def test_mixture_of_documents_that_are_all_alike_is_settled_at_once(generator: Generator) -> None:
    scores = MixtureScorer(steps=3).score(job_of(generator, [DOCUMENTS[0]] * 3))
    assert scores.details["weights"] == pytest.approx([1 / 3] * 3)


def test_mixture_refuses_a_layer_that_the_model_lacks(generator: Generator) -> None:
    with pytest.raises(InvalidArgumentError, match="layer must be at most 3"):
        MixtureScorer(layer=4).score(job_of(generator))


# -- the protocol ----------------------------------------------------------------------------------------


def test_unknown_scorer_is_named_with_the_closest() -> None:
    with pytest.raises(InvalidArgumentError, match="'gate'.*gates"):
        as_scorer("gate")
    for wrong in (3, GatesScorer, object()):
        with pytest.raises(InvalidTypeError, match="scorer must be one of"):
            as_scorer(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "must return Scores, got NoneType"),
        ([0.1, 0.2], "must return Scores, got list"),
        (Scores([0.1]), "returned 1 utilities, 0 lists of spans and 0 stages for 2 documents"),
        (Scores([0.1, 0.2], spans=[[]]), "returned 2 utilities, 1 lists of spans and 0 stages for 2 documents"),
        (Scores([0.1, math.nan]), "gave document 1 is nan"),
        (Scores([0.1, None]), "gave document 1 is NoneType None, expected a number"),  # type: ignore[list-item]
    ],
)
def test_C05_an_answer_that_does_not_fit_the_documents_is_an_error(answer: Any, message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        checked_scores(answer, 2, "mine")


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8))
def test_near_ties_move_no_score_by_more_than_a_millionth(utilities: list[float]) -> None:
    settled = settle_near_ties(utilities)
    largest = max(map(abs, utilities))
    assert all(abs(a - b) <= 1e-6 * largest for a, b in zip(utilities, settled, strict=True))


def test_C31_tiny_scores_keep_their_order() -> None:
    assert settle_near_ties([1e-12, 3e-12, 2e-12]) == pytest.approx([1e-12, 3e-12, 2e-12])
    assert settle_near_ties([0.0, 0.0]) == [0.0, 0.0]
