"""Where memory is short: the sentence encoder goes on in smaller batches, and every call says once that it did."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from faulty import LACK_OF_MEMORY, Fault, faulty
from sentence_transformers import SentenceTransformer
from test_embedding import tiny_transformer
from test_faults import EVERY, SOURCES, enough_for_one, name_of
from through import letters
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker
from gradrerank.errors import ContextOverflowError, GradRerankWarning, LowMemoryWarning
from gradrerank.lm.retrying import in_batches
from gradrerank.shortage import note_shortage, told_once
from gradrerank.sources.embedding import SentenceEncoder, embed

ANSWER = "At nine."
TEXTS = ["tram", "bus tram", "cake", "egg egg tram", "bus", "egg cake bus tram", "tram tram"]


class Small(SentenceTransformer):
    """A transformer with memory for so many texts at a time."""

    fits: int
    error: Callable[[], Exception]
    batches: list[int]

    def forward(self, features: Any, **options: Any) -> Any:
        n = len(features["offsets"])
        self.batches.append(n)
        if n > self.fits:
            raise self.error()
        return super().forward(features, **options)


def small(fits: int, kind: str = "cuda", **options: Any) -> tuple[SentenceEncoder, Small]:
    model = Small(modules=list(tiny_transformer()), device="cpu")
    model.fits, model.error, model.batches = fits, LACK_OF_MEMORY[kind], []
    return SentenceEncoder(model, **options), model


def low_memory(caught: Any) -> list[str]:
    return [str(w.message) for w in caught if issubclass(w.category, LowMemoryWarning)]


# -- the sentence encoder ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(LACK_OF_MEMORY))
@pytest.mark.parametrize(("fits", "size"), [(1, 1), (2, 1), (3, 3), (5, 3)])
def test_an_encoder_with_little_memory_gives_the_same_vectors(kind: str, fits: int, size: int) -> None:
    expected = SentenceEncoder(tiny_transformer()).encode(TEXTS)
    encoder, model = small(fits, kind, batch_size=6)
    with pytest.warns(LowMemoryWarning, match=f"down to {size} at a time, each an embedding of a text") as told:
        found = encoder.encode(TEXTS)
    assert len(told) == 1
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert max(n for n in model.batches if n <= fits) == size


def test_an_encoder_with_enough_memory_takes_whole_batches_longest_texts_first() -> None:
    encoder, model = small(100, batch_size=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(encoder.encode(TEXTS), SentenceEncoder(tiny_transformer()).encode(TEXTS))
    assert model.batches == [3, 3, 1]


@pytest.mark.parametrize("kind", list(LACK_OF_MEMORY))
def test_an_encoder_without_memory_is_an_error_and_works_again_later(kind: str) -> None:
    encoder, model = small(0, kind)
    for _ in range(2):
        with pytest.raises(ContextOverflowError, match="not enough memory for an embedding of .* 17 char.*free memory"):
            encoder.encode(TEXTS)
    model.fits = 100
    np.testing.assert_array_equal(encoder.encode(TEXTS), SentenceEncoder(tiny_transformer()).encode(TEXTS))


def test_what_was_encoded_before_memory_ran_out_is_asked_for_again() -> None:
    encoder, model = small(100)
    encoder.encode(TEXTS[:2])
    model.fits = 0
    with pytest.raises(ContextOverflowError):
        encoder.encode(TEXTS)
    model.batches.clear()
    np.testing.assert_array_equal(encoder.encode(TEXTS[:2]), SentenceEncoder(tiny_transformer()).encode(TEXTS[:2]))
    assert not model.batches, "known vectors need no memory"


def test_another_error_of_an_encoder_stays_what_it_is() -> None:
    encoder, model = small(0)
    model.error = lambda: RuntimeError("shape mismatch")
    with pytest.raises(RuntimeError, match="^shape mismatch$"):
        encoder.encode(TEXTS)


@pytest.mark.parametrize("kind", list(LACK_OF_MEMORY))
def test_an_encoder_of_the_callers_own_is_called_once_and_its_lack_of_memory_named(kind: str) -> None:
    calls: list[int] = []

    def encode(texts: Any) -> Any:
        calls.append(len(texts))
        raise LACK_OF_MEMORY[kind]()

    with pytest.raises(ContextOverflowError, match="not enough memory for embeddings of 7 texts.*or on another"):
        embed(encode, TEXTS)
    assert calls == [7]


@pytest.mark.parametrize(
    "settings",
    [{}, {"scorer": "similarity"}, {"selection": "mmr", "top_n": 3, "select_sources": False}],
    ids=["source choice", "scorer", "mmr"],
)
def test_wherever_vectors_are_asked_for_lack_of_memory_is_met(settings: dict[str, Any]) -> None:
    (model, tokenizer), _ = faulty()
    encoder, transformer = small(100)
    reranker = GradReranker((model, tokenizer), encoder=encoder, **settings)
    expected = [(d.text, d.score) for d in reranker.rerank(QUERY, SOURCES)]
    for fits in (1, 0, 100):
        reranker.encoder = encoder = SentenceEncoder(transformer)
        transformer.fits = fits
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if fits:
                assert [(d.text, d.score) for d in reranker.rerank(QUERY, SOURCES)] == [
                    (text, pytest.approx(score, abs=1e-5)) for text, score in expected
                ]
            else:
                with pytest.raises(ContextOverflowError, match="not enough memory for an embedding"):
                    reranker.rerank(QUERY, SOURCES)
        assert len(low_memory(caught)) == (fits == 1)


# -- told once for a call -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> tuple[GradReranker, Fault]:
    model, fault = faulty()
    return GradReranker(model, encoder=letters, select_sources=False), fault


@pytest.fixture
def short(pair: tuple[GradReranker, Fault]) -> Iterator[GradReranker]:
    """A reranker with memory for one item at a time, whatever is asked."""
    reranker, fault = pair
    reranker.generator.store.clear()
    answer = len(reranker.generator.layout.answer_continuation(QUERY, ANSWER))
    fault.limit("forward", max(answer, enough_for_one(reranker)), LACK_OF_MEMORY["cuda"])
    yield reranker
    fault.clear()


@pytest.mark.parametrize("scorer", [s for s in EVERY if not name_of(s).lower().startswith("mixture")], ids=name_of)
def test_every_scorer_says_once_that_memory_was_short(short: GradReranker, scorer: Any) -> None:
    with pytest.warns(LowMemoryWarning, match=r"down to [12] at a time, each a document of \d+ tokens") as caught:
        short.rerank(QUERY, SOURCES, scorer=scorer)
    assert len(low_memory(caught)) == 1


CALLS: dict[str, Callable[[GradReranker], Any]] = {
    "rerank": lambda r: r.rerank(QUERY, SOURCES),
    "rerank_batch": lambda r: r.rerank_batch([QUERY, "Why is the house red?"], SOURCES),
    "index": lambda r: r.index(SOURCES),
    "cite": lambda r: r.cite(QUERY, SOURCES, ANSWER),
    "explain_tokens": lambda r: r.explain_tokens(QUERY, SOURCES),
    "gate_path": lambda r: r.gate_path(QUERY, SOURCES),
    "calibrate_scores": lambda r: r.calibrate_scores([QUERY], SOURCES, [[DOCUMENTS[0]]], method="platt"),
}


@pytest.mark.parametrize("call", list(CALLS))
def test_every_call_says_it_once_and_points_to_the_caller(
    short: GradReranker, pair: tuple[GradReranker, Fault], call: str
) -> None:
    with pytest.warns(LowMemoryWarning) as caught:
        CALLS[call](short)
    assert len(low_memory(caught)) == 1
    assert [w.filename for w in caught if issubclass(w.category, LowMemoryWarning)] == [__file__]
    pair[1].clear()
    short.generator.store.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", GradRerankWarning)
        CALLS[call](short)


def test_all_stages_that_ran_short_stand_in_one_warning(pair: tuple[GradReranker, Fault]) -> None:
    reranker, fault = pair
    reranker.generator.store.clear()
    encoder, _ = small(2)
    fault.limit("forward", enough_for_one(reranker), LACK_OF_MEMORY["cuda"])
    twin = GradReranker(reranker.generator, encoder=encoder, scorer="ablation")
    with pytest.warns(LowMemoryWarning) as caught:
        twin.rerank(QUERY, SOURCES)
    fault.clear()
    (told,) = low_memory(caught)
    for stage in ("embedding of a text", r"document of ", "question behind "):
        assert told.count(stage) == 1, told


def test_a_call_that_fails_does_not_warn(pair: tuple[GradReranker, Fault]) -> None:
    reranker, fault = pair
    reranker.generator.store.clear()
    fault.limit("forward", 0, LACK_OF_MEMORY["cuda"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", LowMemoryWarning)
        with pytest.raises(ContextOverflowError):
            reranker.rerank(QUERY, SOURCES)
    fault.clear()


def test_the_smallest_batch_of_each_kind_of_work_is_told() -> None:
    with pytest.warns(LowMemoryWarning) as caught, told_once():
        note_shortage("a row behind 80 tokens", 8)
        with told_once():
            note_shortage("a row behind 90 tokens", 2)
        note_shortage("a row behind 70 tokens", 4)
        note_shortage("a document", 16)
    (told,) = low_memory(caught)
    assert "(down to 2 at a time, each a row behind 90 tokens; down to 16 at a time, each a document)" in told


def test_nothing_is_carried_over_from_a_call_that_failed() -> None:
    with pytest.raises(KeyError), told_once():
        note_shortage("a row", 1)
        raise KeyError
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with told_once():
            pass


def test_threads_do_not_hear_of_each_other() -> None:
    told: list[str] = []
    both = threading.Barrier(2, timeout=20)

    def call(n: int) -> None:
        with told_once():
            both.wait()
            note_shortage(f"work {chr(97 + n)}", n + 1)
            both.wait()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        threads = [threading.Thread(target=call, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        told = sorted(low_memory(caught))
    assert len(told) == 2
    assert "work a" in min(told) + max(told) and all(("work a" in t) != ("work b" in t) for t in told)


def test_batches_outside_of_a_call_say_it_at_once() -> None:
    def work(batch: Any) -> Any:
        if len(batch) > 2:
            raise MemoryError
        return batch

    with pytest.warns(LowMemoryWarning, match="down to 2 at a time, each a number"):
        in_batches(range(9), 9, work, "a number")


def test_a_shortage_can_be_noted_without_torch() -> None:
    code = "import sys, gradrerank.shortage, gradrerank.errors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
