"""Gates in attention: the gradient, the loss and the caches against slower truths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny, tiny_model, tiny_tokenizer

from gradrerank.lm.generator import Generator
from gradrerank.lm.memory import Memory
from gradrerank.lm.prompt import Continuation
from gradrerank.lm.small_attention import is_small

FAMILIES = ["llama", "mistral", "qwen2", "gemma3", "gpt2", "opt"]


def generator_of(family: str = "llama", **options: object) -> Generator:
    model, tokenizer = tiny(family, dtype=options.pop("dtype", torch.float64))
    return Generator(model, tokenizer, name=family, **options)


@pytest.fixture(scope="module")
def exact() -> Generator:
    """A tiny GPT-2 in float64: its norms too compute in float64, so differences are arithmetic."""
    return generator_of("gpt2")


def read(generator: Generator, texts: list[str] = DOCUMENTS) -> tuple[Memory, Continuation]:
    documents = generator.layout.documents([(None, text) for text in texts])
    return generator.remember(documents), generator.layout.answer_continuation(QUERY, "At nine.")


def mean_loss(generator: Generator, memory: Memory, continuation: Continuation, gates: torch.Tensor) -> torch.Tensor:
    return generator.losses(memory, continuation, gates).mean(-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("z", [0.2, 1.0, 1.7])
def test_gradient_equals_the_finite_difference_of_the_loss(family: str, z: float) -> None:
    generator = generator_of(family)
    memory, continuation = read(generator)
    n = len(DOCUMENTS)
    found = generator.gate_gradients(memory, continuation, torch.full((1, n), z)).gradients.sum((1, 2))[0]
    # Norms and rotations of most families compute in float32 whatever the model's dtype: their step must be
    # large enough to drown that rounding, and four points make it exact enough. GPT-2 and OPT are float64
    # throughout, and the kinks of OPT's ReLU call for a small step.
    step, losses = 1e-5 if family in ("gpt2", "opt") else 1e-2, {}
    for k in (-2, -1, 1, 2):
        rows = torch.full((n, n), z, dtype=torch.float64) + k * step * torch.eye(n, dtype=torch.float64)
        losses[k] = mean_loss(generator, memory, continuation, rows)
    expected = (8 * (losses[1] - losses[-1]) - (losses[2] - losses[-2])) / (12 * step)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_gradient_at_a_closed_gate_equals_the_one_sided_difference(exact: Generator) -> None:
    memory, continuation = read(exact)
    n = len(DOCUMENTS)
    gates = torch.ones(1, n, dtype=torch.float64)
    gates[0, 2] = 0.0
    slope = exact.gate_gradients(memory, continuation, gates).gradients.sum((1, 2))[0, 2]
    nudged = gates.clone()
    nudged[0, 2] = 1e-4
    low, high = mean_loss(exact, memory, continuation, torch.cat([gates, nudged]))
    assert slope.item() == pytest.approx((high - low).item() / 1e-4, rel=1e-3)


def test_gradient_of_one_head_equals_the_finite_difference_in_that_head(exact: Generator) -> None:
    memory, continuation = read(exact)
    n, layer, head, document, step = len(DOCUMENTS), 1, 2, 3, 1e-5
    found = exact.gate_gradients(memory, continuation, torch.ones(1, n), layers=[layer])
    assert found.gradients.shape == (1, 1, exact.n_heads, n)

    def loss_at(value: float) -> float:
        gates = [torch.ones(1, exact.n_heads, n, dtype=torch.float64) for _ in range(exact.n_layers)]
        gates[layer][0, head, document] = value
        with exact.exact_mode(grad=False):
            return float(exact.token_losses(memory, [continuation], gates).mean)

    slope = (loss_at(1 + step) - loss_at(1 - step)) / (2 * step)
    assert found.gradients[0, 0, head, document].item() == pytest.approx(slope, rel=1e-3, abs=1e-10)


def test_gradients_of_rows_do_not_mix(exact: Generator) -> None:
    memory, continuation = read(exact)
    rows = torch.rand(3, len(DOCUMENTS), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    together = exact.gate_gradients(memory, continuation, rows)
    for row in range(3):
        alone = exact.gate_gradients(memory, continuation, rows[row : row + 1])
        torch.testing.assert_close(together.gradients[row], alone.gradients[0])
        torch.testing.assert_close(together.loss[row], alone.loss[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_closing_a_gate_is_the_same_as_not_having_the_document(family: str) -> None:
    generator = generator_of(family)
    # The longest document stays, since questions begin after the longest one.
    longest = max(range(len(DOCUMENTS)), key=lambda i: len(generator.layout.documents([(None, DOCUMENTS[i])])[0]))
    left_out = 0 if longest != 0 else 1
    memory, continuation = read(generator)
    gates = torch.ones(1, len(DOCUMENTS))
    gates[0, left_out] = 0.0
    fewer, _ = read(generator, [d for i, d in enumerate(DOCUMENTS) if i != left_out])
    closed = generator.losses(memory, continuation, gates)
    absent = generator.losses(fewer, continuation, torch.ones(1, len(DOCUMENTS) - 1))
    torch.testing.assert_close(closed, absent)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_document_behind_open_gates_is_the_ordinary_prompt(family: str) -> None:
    generator = generator_of(family)
    # Longer than the attention window of the sliding families, so that the window is put to the test.
    text = " ".join(DOCUMENTS)
    document = generator.layout.documents([("Title", text)])[0]
    assert len(document) > 60
    continuation = generator.layout.answer_continuation(QUERY, "At nine.")
    ids = generator.layout.prefix + document.ids + continuation.question + continuation.target
    # Eager attention is the plain truth here: mask and softmax written out.
    model = tiny_model(family, dtype=torch.float64)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -len(continuation.target) - 1 : -1]
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(continuation.target), reduction="none")
    memory = generator.remember([document])
    torch.testing.assert_close(
        generator.losses(memory, continuation, torch.ones(1, 1))[0], expected, rtol=1e-6, atol=1e-6
    )


def test_sliding_window_shorter_than_the_question_is_refused() -> None:
    generator = generator_of("mistral")
    document = generator.layout.documents([(None, DOCUMENTS[0])])
    continuation = generator.layout.query_continuation("who " * 70)
    with pytest.raises(ValueError, match="window of 60"):
        generator.losses(generator.remember(document), continuation, torch.ones(1, 1))


@settings(max_examples=25)
@given(data=st.data())
def test_gated_loss_and_gradient_equal_eager_attention_with_a_log_gate_mask(
    exact: Generator, data: st.DataObject
) -> None:
    """The oracle: one flat sequence, a float mask that holds log z, autograd through the mask."""
    n = data.draw(st.integers(1, 4))
    texts = data.draw(st.lists(st.sampled_from(DOCUMENTS), min_size=n, max_size=n, unique=True))
    # Open gates take a way of their own.
    some = st.one_of(st.just([1.0] * n), st.lists(st.floats(0.05, 2.0), min_size=n, max_size=n))
    gates = torch.tensor([data.draw(some)], dtype=torch.float64)
    memory, continuation = read(exact, texts)
    found = exact.gate_gradients(memory, continuation, gates)
    loss, slope = eager_loss_and_slope(exact, texts, continuation, gates[0])
    assert found.loss.item() == pytest.approx(loss, rel=1e-8)
    torch.testing.assert_close(found.gradients.sum((1, 2))[0], slope, rtol=1e-6, atol=1e-10)


def eager_loss_and_slope(
    generator: Generator, texts: list[str], continuation: Continuation, gates: torch.Tensor
) -> tuple[float, torch.Tensor]:
    documents = generator.layout.documents([(None, text) for text in texts])
    first, longest = len(generator.layout.prefix), max(map(len, documents))
    new = continuation.question + continuation.target[:-1]
    ids, positions = list(generator.layout.prefix), list(range(first))
    owner = [-1] * first
    for index, document in enumerate(documents):
        ids += document.ids
        positions += range(first, first + len(document))
        owner += [index] * len(document)
    start = len(ids)
    ids += new
    positions += range(first + longest, first + longest + len(new))
    owner += [-2] * len(new)
    z = gates.clone().requires_grad_()
    rows = []
    for q in range(len(ids)):
        row = []
        for k in range(len(ids)):
            seen = k <= q and (owner[k] in (-1, owner[q]) or owner[q] == -2)
            gate = z[owner[k]].log() if q >= start and owner[k] >= 0 else torch.zeros((), dtype=torch.float64)
            row.append(gate if seen else torch.tensor(-torch.inf, dtype=torch.float64))
        rows.append(torch.stack(row))
    model = tiny_model("gpt2", dtype=torch.float64)
    model.set_attn_implementation("eager")
    output = model(
        torch.tensor([ids]), attention_mask=torch.stack(rows)[None, None], position_ids=torch.tensor([positions])
    )
    logits = output.logits[0, -len(continuation.target) :]
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(continuation.target))
    return float(loss.detach()), torch.autograd.grad(loss, z)[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_caches_do_not_depend_on_neighbours_batch_size_or_order(family: str) -> None:
    reference = generator_of(family, dtype=torch.float32, batch_size=1)
    documents = reference.layout.documents([(None, text) for text in DOCUMENTS])
    alone = [reference.reader.read([document.ids])[0] for document in documents]
    for batch_size in (1, 3, 16):
        generator = generator_of(family, dtype=torch.float32, batch_size=batch_size)
        order = [3, 0, 4, 1, 2]
        for index, cache in zip(order, generator.reader.read([documents[i].ids for i in order]), strict=True):
            torch.testing.assert_close(cache.keys, alone[index].keys, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(cache.values, alone[index].values, rtol=1e-4, atol=1e-5)


def test_documents_in_the_store_send_no_token_through_the_model(exact: Generator) -> None:
    from collections import Counter

    generator = generator_of()
    documents = generator.layout.documents([(None, text) for text in DOCUMENTS])
    cold, warm = Counter[str](), Counter[str]()
    generator.remember(documents[:2], tokens=cold)
    generator.remember(documents, tokens=cold)
    generator.remember(documents, tokens=warm)
    assert cold["documents"] == sum(map(len, documents))
    assert warm["documents"] == 0


def test_pieces_of_a_document_add_up_to_the_document(exact: Generator) -> None:
    """Splitting a gate in two splits its gradient, and moves none of it."""
    documents = exact.layout.documents([(None, text) for text in DOCUMENTS])
    continuation = exact.layout.query_continuation(QUERY)
    whole = exact.gate_gradients(exact.remember(documents), continuation, torch.ones(1, len(documents)))
    halves = [[2 * i + (t >= len(d) // 2) for t in range(len(d))] for i, d in enumerate(documents)]
    split = exact.gate_gradients(exact.remember(documents, halves), continuation, torch.ones(1, 2 * len(documents)))
    torch.testing.assert_close(split.gradients.unflatten(-1, (-1, 2)).sum(-1), whole.gradients)


@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_blocks_of_any_size_give_the_same(exact: Generator, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    memory, continuation = read(exact)
    gates = torch.rand(2, len(DOCUMENTS), generator=torch.Generator().manual_seed(1))
    gates[0, 0] = 0
    expected = exact.gate_gradients(memory, continuation, gates)
    assert len(memory.plans) == 1
    monkeypatch.setattr("gradrerank.lm.gated_attention._BLOCK_BYTES", {"cpu": 0})
    monkeypatch.setattr("gradrerank.lm.gated_attention._LEAST_TOKENS", size)
    found = exact.gate_gradients(memory, continuation, gates)
    assert sum(block.end - block.start for block in memory.plans[size]) == len(memory)
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_open_gates_give_the_same_where_a_memory_is_too_large_to_keep_weights(
    family: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = generator_of(family, dtype=dtype)
    memory, continuation = read(generator)
    gates = torch.ones(1, len(DOCUMENTS))
    kept = generator.gate_gradients(memory, continuation, gates)
    only = generator.gate_gradients(memory, continuation, gates, layers=[generator.n_layers - 1])
    monkeypatch.setattr("gradrerank.lm.small_attention._KEPT_BYTES", 0)
    found = generator.gate_gradients(memory, continuation, gates)
    torch.testing.assert_close(only.gradients[:, 0], kept.gradients[:, -1])
    if dtype == torch.bfloat16:
        # Two ways to round.
        pair = kept.gradients.flatten(), found.gradients.flatten()
        assert torch.nn.functional.cosine_similarity(*pair, dim=0) > 0.9
        return
    near = {torch.float64: 1e-6, torch.float32: 1e-4}[dtype]
    torch.testing.assert_close(kept.gradients, found.gradients, rtol=0, atol=near * float(found.gradients.abs().max()))
    torch.testing.assert_close(kept.loss, found.loss, rtol=near, atol=0)


def test_small_attention_is_what_a_single_question_takes_and_a_batch_does_not(exact: Generator) -> None:
    memory, _ = read(exact)
    query, key, gates = torch.zeros(1, 4, 3, 8), torch.zeros(1, 2, 3, 8), torch.ones(1, 4, memory.n_spans)
    assert is_small(query, key, gates, memory)
    assert not is_small(query.repeat(2, 1, 1, 1), key.repeat(2, 1, 1, 1), gates.repeat(2, 1, 1), memory)
    assert not is_small(query, key, gates * 0.5, memory)
    assert not is_small(query.repeat(1, 1, 100_000, 1), key.repeat(1, 1, 100_000, 1), gates, memory)


def test_layers_below_the_lowest_gated_one_get_no_backward_pass(exact: Generator) -> None:
    """The gradient of the last layer alone is that layer's part of the full gradient."""
    memory, continuation = read(exact)
    gates = torch.ones(1, len(DOCUMENTS))
    full = exact.gate_gradients(memory, continuation, gates).gradients
    last = exact.gate_gradients(memory, continuation, gates, layers=[exact.n_layers - 1]).gradients
    torch.testing.assert_close(last[:, 0], full[:, -1])


def test_bfloat16_gives_the_gradient_of_float32_up_to_its_rounding() -> None:
    wide, narrow = generator_of(dtype=torch.float32), generator_of(dtype=torch.bfloat16)
    slopes = []
    for generator in (wide, narrow):
        memory, continuation = read(generator)
        found = generator.gate_gradients(memory, continuation, torch.ones(1, len(DOCUMENTS)))
        assert found.gradients.dtype == torch.float32
        slopes.append(found.gradients.sum((1, 2))[0])
    assert torch.nn.functional.cosine_similarity(*slopes, dim=0) > 0.95


def test_weights_changed_in_place_are_noticed() -> None:
    model, tokenizer = tiny("llama")
    generator = Generator(model, tokenizer)
    documents = generator.layout.documents([(None, text) for text in DOCUMENTS])
    continuation = generator.layout.query_continuation(QUERY)
    before = generator.losses(generator.remember(documents), continuation, torch.ones(1, 5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after = generator.losses(generator.remember(documents), continuation, torch.ones(1, 5))
    fresh = Generator(model, tokenizer)
    expected = fresh.losses(fresh.remember(documents), continuation, torch.ones(1, 5))
    assert not torch.allclose(before, after)
    torch.testing.assert_close(after, expected)


def refused_models() -> dict[str, tuple[Any, str]]:
    """By what they are called: a configuration or a model, and the reason that is given for it."""
    import transformers as t

    shared = {"vocab_size": len(tiny_tokenizer()), "hidden_size": 64, "num_attention_heads": 4}
    grouped = {**shared, "intermediate_size": 128, "num_key_value_heads": 2}
    bert = t.BertConfig(**shared, intermediate_size=128, num_hidden_layers=2, is_decoder=False)
    elsewhere = "its attention does not go through"
    # Bert's attention can be exchanged since transformers 5 only; what it would do with gates is not asked before that.
    reads_ahead = "it reads ahead" if int(t.__version__.partition(".")[0]) >= 5 else elsewhere
    return {
        "mamba": (
            t.MambaConfig(vocab_size=shared["vocab_size"], hidden_size=32, num_hidden_layers=2, state_size=4),
            elsewhere,
        ),
        "lfm2": (t.Lfm2Config(**grouped, num_hidden_layers=4, full_attn_idxs=[2]), "layers other than attention"),
        "bloom": (
            t.BloomConfig(vocab_size=shared["vocab_size"], hidden_size=32, n_layer=2, n_head=4),
            "cannot be gated in Bloom",
        ),
        "gemma2": (t.Gemma2Config(**grouped, num_hidden_layers=2, head_dim=16), "softcap"),
        "bert": (t.BertLMHeadModel(bert), reads_ahead),
        "t5": (
            t.T5ForConditionalGeneration(
                t.T5Config(vocab_size=shared["vocab_size"], d_model=32, d_ff=48, num_layers=2, num_heads=4, d_kv=8)
            ),
            "It must be a causal language model",
        ),
    }


@pytest.mark.parametrize("name", list(refused_models()))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_model_whose_attention_cannot_be_gated_is_refused_with_the_reason(name: str, dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM

    made, reason = refused_models()[name]
    model = AutoModelForCausalLM.from_config(made) if not isinstance(made, torch.nn.Module) else made
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(4)
    with pytest.raises(ValueError, match=reason):
        Generator(model.to(dtype).eval(), tiny_tokenizer())
