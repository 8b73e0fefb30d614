"""Other methods in their own form, against the model called directly on whole prompts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny
from torch.nn import functional

from gradrerank import GradReranker
from gradrerank.errors import ContextOverflowError, InvalidArgumentError
from gradrerank.evaluation import Question, native
from gradrerank.evaluation.native import METHODS, Ordinary, fitting, ordinary
from gradrerank.lm.prompt import Continuation


def whole_prompt(reranker: GradReranker, prompt: Ordinary, kept: list[int], asked: Continuation) -> list[int]:
    layout = reranker.generator.layout
    ids = list(layout.prefix)
    for index in kept:
        ids += prompt.documents[index].ids
    return ids + list(asked.question + asked.target)


def direct_losses(reranker: GradReranker, prompt: Ordinary, kept: list[int], asked: Continuation) -> torch.Tensor:
    """Loss of the target's tokens from the logits of all positions of one prompt."""
    ids = torch.tensor([whole_prompt(reranker, prompt, kept, asked)])
    with torch.no_grad():
        logits = reranker.generator.plain(ids).logits[0]
    return functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none")[-len(asked.target) :]


def prompt_of(reranker: GradReranker, question: Question, **settings: Any) -> Ordinary:
    use = reranker.settings.override(**settings)
    return ordinary(reranker, question.task(with_reference=use.target == "reference"), use)


@pytest.mark.parametrize("target", ["query", "reference"])
def test_leave_one_out_is_the_rise_of_the_loss_without_each(
    reranker: GradReranker, questions: list[Question], target: str
) -> None:
    prompt = prompt_of(reranker, questions[0], target=target)
    n = len(prompt.documents)
    full = direct_losses(reranker, prompt, list(range(n)), prompt.continuation).mean()
    expected = [
        float(direct_losses(reranker, prompt, [j for j in range(n) if j != i], prompt.continuation).mean() - full)
        for i in range(n)
    ]
    assert METHODS["native-leave-one-out"](prompt) == pytest.approx(expected, abs=1e-5)
    layout = reranker.generator.layout
    asked = {
        "query": layout.query_continuation(questions[0].text),
        "reference": layout.answer_continuation(questions[0].text, "at nine"),
    }
    assert prompt.continuation == asked[target]
    assert prompt.tokens["prompts"] > 0


def test_upr_reads_the_query_behind_each_document_alone(reranker: GradReranker, questions: list[Question]) -> None:
    prompt = prompt_of(reranker, questions[0], target="reference")
    asked = reranker.generator.layout.query_continuation(questions[0].text)
    expected = [-float(direct_losses(reranker, prompt, [i], asked).mean()) for i in range(len(prompt.documents))]
    assert METHODS["native-upr"](prompt) == pytest.approx(expected, abs=1e-5)


def test_upr_with_the_wording_of_its_authors(reranker: GradReranker, questions: list[Question]) -> None:
    prompt, layout = prompt_of(reranker, questions[0]), reranker.generator.layout
    instruction = reranker.generator.tokenizer.content(["Please write a question based on this passage."])[0].ids
    query = reranker.generator.tokenizer.content([questions[0].text])[0].ids
    asked = Continuation(instruction + layout.tail, query)
    expected = [-float(direct_losses(reranker, prompt, [i], asked).mean()) for i in range(len(prompt.documents))]
    assert METHODS["native-upr"](prompt, wording="authors") == pytest.approx(expected, abs=1e-5)
    with pytest.raises(InvalidArgumentError, match="wording must be"):
        METHODS["native-upr"](prompt, wording="mine")


def test_surrogate_finds_the_documents_that_matter(reranker: GradReranker, questions: list[Question]) -> None:
    # Without a penalty and with all subsets it is least squares on the logits of the target's probability.
    prompt = prompt_of(reranker, questions[0])
    found = METHODS["native-surrogate"](prompt, samples=64, alpha=0.0, seed=1)
    from gradrerank.scorers.surrogate import random_masks

    masks = random_masks(64, 5, 1)
    n_target = len(prompt.continuation.target)
    logits = []
    for mask in masks:
        kept = [i for i in range(5) if mask[i]]
        log_p = -float(direct_losses(reranker, prompt, kept, prompt.continuation).double().sum())
        logits.append((log_p - np.log1p(-np.exp(log_p))) / n_target)
    columns = np.hstack([masks.astype(float), np.ones((64, 1))])
    assert found == pytest.approx(np.linalg.lstsq(columns, np.array(logits), rcond=None)[0][:5].tolist(), abs=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3", "gpt2"])
def test_icr_is_the_difference_of_eager_attention(family: str, questions: list[Question]) -> None:
    reranker = GradReranker(tiny(family))
    prompt = prompt_of(reranker, questions[0])
    layout, generator = reranker.generator.layout, reranker.generator
    model = tiny(family)[0]
    model.set_attn_implementation("eager")
    first = len(layout.prefix)
    masses = []
    for query in (questions[0].text, "N/A"):
        asked = layout.answer_continuation(query, "-").question
        before = list(layout.prefix) + [i for d in prompt.documents for i in d.ids]
        with torch.no_grad():
            layers = model(torch.tensor([before + list(asked)]), output_attentions=True).attentions
        assert len(layers) == generator.n_layers
        masses.append(sum(layer[0, :, len(before) :, : len(before)].mean(1).sum(0) for layer in layers).numpy())
    expected = []
    for document in prompt.documents:
        length = len(document) - len(document.ids[document.body_start + len(document.body) :])
        difference = (masses[0] - masses[1])[first : first + length]
        kept = difference >= difference.mean() - 2 * difference.std(ddof=1)
        expected.append(float(difference[kept].sum()))
        first += len(document)
    assert METHODS["native-icr"](prompt) == pytest.approx(expected, abs=1e-4)


def test_gradient_norm_is_that_of_finite_differences(questions: list[Question]) -> None:
    reranker = GradReranker(tiny("gpt2", dtype=torch.float64))
    prompt = prompt_of(reranker, questions[0])
    found = METHODS["native-gradient"](prompt)
    # The slope along the gradient itself is its norm: move the embeddings of one document a little.
    model, embed = reranker.generator.plain, reranker.generator.plain.get_input_embeddings()
    ids = whole_prompt(reranker, prompt, list(range(5)), prompt.continuation)
    inputs = embed(torch.tensor([ids])).detach().requires_grad_()
    n = len(prompt.continuation.target)
    target = torch.tensor(prompt.continuation.target)

    def loss(embedded: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(inputs_embeds=embedded).logits[0, -n - 1 : -1], target)

    (slope,) = torch.autograd.grad(loss(inputs), [inputs])
    start = len(reranker.generator.layout.prefix) + len(prompt.documents[0])
    span = slice(start, start + prompt.documents[1].body_start + len(prompt.documents[1].body))
    step = torch.zeros_like(slope)
    step[0, span] = slope[0, span] / slope[0, span].norm()
    with torch.no_grad():
        numeric = (loss(inputs + 1e-5 * step) - loss(inputs - 1e-5 * step)) / 2e-5
    assert found[1] == pytest.approx(float(numeric), rel=1e-4)


def test_documents_that_do_not_fit_are_all_cut_to_the_largest_common_length(reranker: GradReranker) -> None:
    generator = reranker.generator
    pairs = [(None, "the tram runs over the hill " * n) for n in (1, 10, 10)]
    documents = generator.layout.documents(pairs)
    assert fitting(generator, pairs, documents, sum(map(len, documents))) == documents
    cut = fitting(generator, pairs, documents, 60)
    lengths = list(map(len, cut))
    assert sum(lengths) <= 60 < sum(lengths) + 2 and lengths[1] == lengths[2] and cut[0] == documents[0]
    with pytest.raises(ContextOverflowError, match="3 documents do not fit one prompt with room for 10 tokens"):
        fitting(generator, pairs, documents, 10)


def test_a_prompt_that_is_too_long_is_read_in_part(questions: list[Question]) -> None:
    reranker = GradReranker(tiny(), max_context=180)
    prompt = prompt_of(reranker, questions[0])
    ids = whole_prompt(reranker, prompt, list(range(5)), prompt.continuation)
    assert len(ids) - 1 <= 180 and any(d.truncated for d in prompt.documents)


def test_a_native_method_is_a_configuration(reranker: GradReranker, questions: list[Question]) -> None:
    task = questions[0].task()
    made = native("mine", reranker, "native-upr")
    found = made.rank(task)
    scores = METHODS["native-upr"](prompt_of(reranker, questions[0]))
    assert found.order == [f"{i:02d}" for i in sorted(range(5), key=lambda i: -scores[i])]
    assert found.tokens["prompts"] > 0 and found.seconds > 0
    # What it depends on names it: an option that is the default says the same as none.
    twin, other = (native("x", reranker, "native-surrogate", samples=n).identity for n in (32, 33))
    assert native("y", reranker, "native-surrogate").identity == twin != other
    changed = native("x", reranker, "native-upr", settings={"max_document_tokens": 20}).identity
    assert changed != made.identity


def test_the_reference_needs_an_answer(reranker: GradReranker, questions: list[Question]) -> None:
    made = native("loo", reranker, "native-leave-one-out", settings={"target": "reference"})
    assert made.with_reference
    with pytest.raises(InvalidArgumentError, match="reference"):
        made.rank(questions[0].task())
