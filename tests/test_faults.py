"""When something breaks: no memory, numbers that are none, answers that cannot be used. Never a wrong score."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from faulty import LACK_OF_MEMORY, Fault, faulty
from tiny import DOCUMENTS, QUERY

from gradrerank import DocumentStore, GradReranker
from gradrerank.errors import ContextOverflowError, ScoringError
from gradrerank.lm.retrying import in_batches
from gradrerank.scorers import SCORERS, GatesScorer, MixtureScorer, Scorer, Scores, SurrogateScorer

# Every scorer with a name that asks the model, whatever names there are, and what some can do besides.
EVERY: list[Any] = [
    *(name for name in SCORERS if name != "similarity"),
    "gates+likelihood",
    GatesScorer(steps=4),
    GatesScorer(best=1),
    MixtureScorer(steps=2),
    SurrogateScorer(interactions=True),
]
BACKWARD = [s for s in EVERY if not (isinstance(s, str) and s in ("ablation", "likelihood", "attention", "surrogate"))]
BACKWARD = [s for s in BACKWARD if not isinstance(s, SurrogateScorer)]
SOURCES = {"a": DOCUMENTS[:3], "b": DOCUMENTS[2:]}


def name_of(scorer: Any) -> str:
    return scorer if isinstance(scorer, str) else repr(scorer)


every_scorer = pytest.mark.parametrize("scorer", EVERY, ids=name_of)
every_gradient = pytest.mark.parametrize("scorer", BACKWARD, ids=name_of)


@pytest.fixture(scope="module")
def pair() -> tuple[GradReranker, Fault]:
    model, fault = faulty()
    return GradReranker(model, select_sources=False), fault


@pytest.fixture
def reranker(pair: tuple[GradReranker, Fault]) -> Iterator[GradReranker]:
    pair[0].generator.store.clear()
    yield pair[0]
    pair[1].clear()


@pytest.fixture
def fault(pair: tuple[GradReranker, Fault]) -> Fault:
    return pair[1]


def scored(reranker: GradReranker, scorer: Any, top_n: int | None = None) -> dict[str, float]:
    return {d.text: d.score for d in reranker.rerank(QUERY, SOURCES, scorer=scorer, top_n=top_n)}


def enough_for_one(reranker: GradReranker) -> int:
    """As many tokens as the longest of what cannot be divided has: a document, or a prompt of one soft token."""
    layout = reranker.generator.layout
    documents = layout.documents([(None, text) for text in DOCUMENTS])
    return max(*map(len, documents), len(layout.prefix) + 1 + len(layout.query_continuation(QUERY)))


# -- memory ---------------------------------------------------------------------------------------------------


@every_scorer
def test_with_little_memory_the_scores_are_the_same(reranker: GradReranker, fault: Fault, scorer: Any) -> None:
    expected = scored(reranker, scorer, top_n=3)
    reranker.generator.store.clear()
    fault.limit("forward", enough_for_one(reranker), LACK_OF_MEMORY["cuda"])
    found = scored(reranker, scorer, top_n=3)
    assert list(found) == list(expected) and found == pytest.approx(expected, abs=1e-4)
    assert fault.met or name_of(scorer).lower().startswith("mixture"), "the limit was never met"


@every_gradient
def test_with_little_memory_for_gradients_too(reranker: GradReranker, fault: Fault, scorer: Any) -> None:
    expected = scored(reranker, scorer)
    fault.limit("backward", enough_for_one(reranker), LACK_OF_MEMORY["cuda"])
    assert scored(reranker, scorer) == pytest.approx(expected, abs=1e-4)


def test_points_of_a_path_that_do_not_fit_together_pass_apart(reranker: GradReranker, fault: Fault) -> None:
    expected = scored(reranker, GatesScorer(steps=8))
    one = len(reranker.generator.layout.query_continuation(QUERY))
    fault.limit("backward", one, LACK_OF_MEMORY["older"])
    assert scored(reranker, GatesScorer(steps=8)) == pytest.approx(expected, abs=1e-4)
    assert fault.met >= 2


@every_scorer
def test_without_memory_the_error_says_so_and_the_next_call_works(
    reranker: GradReranker, fault: Fault, scorer: Any
) -> None:
    expected = scored(reranker, scorer)
    for warm in (True, False):
        if not warm:
            reranker.generator.store.clear()
        fault.limit("forward", 0, LACK_OF_MEMORY["cuda"])
        with pytest.raises(ContextOverflowError, match="not enough memory for .*CUDA out of memory.*fewer"):
            reranker.rerank(QUERY, SOURCES, scorer=scorer)
        fault.clear()
        assert scored(reranker, scorer) == pytest.approx(expected, abs=1e-6)


@every_gradient
def test_without_memory_for_a_gradient(reranker: GradReranker, fault: Fault, scorer: Any) -> None:
    expected = scored(reranker, scorer)
    fault.limit("backward", 0, LACK_OF_MEMORY["cuda"])
    with pytest.raises(ContextOverflowError, match="not enough memory for "):
        reranker.rerank(QUERY, SOURCES, scorer=scorer)
    fault.clear()
    assert scored(reranker, scorer) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", list(LACK_OF_MEMORY))
def test_every_way_to_say_that_memory_ran_out_is_understood(reranker: GradReranker, fault: Fault, kind: str) -> None:
    fault.limit("forward", enough_for_one(reranker), LACK_OF_MEMORY[kind])
    assert len(reranker.rerank(QUERY, SOURCES, scorer="ablation")) == 5
    assert fault.met
    fault.limit("forward", 0, LACK_OF_MEMORY[kind])
    with pytest.raises(ContextOverflowError, match="not enough memory"):
        reranker.rerank(QUERY, SOURCES, scorer="gates")


@pytest.mark.parametrize("target", ["draft", "query"])
def test_whatever_else_asks_the_model_says_it_too(reranker: GradReranker, fault: Fault, target: str) -> None:
    reranker.rerank(QUERY, SOURCES)
    fault.limit("forward", 0, LACK_OF_MEMORY["cuda"])
    for call in (reranker.rerank, reranker.explain_tokens, reranker.gate_path):
        with pytest.raises(ContextOverflowError, match="not enough memory"):
            call(QUERY, SOURCES, target=target)
    with pytest.raises(ContextOverflowError, match="not enough memory"):
        reranker.cite(QUERY, SOURCES, "At nine.")
    reranker.generator.store.clear()
    with pytest.raises(ContextOverflowError, match="not enough memory for a document of"):
        reranker.index(SOURCES)


def test_another_error_of_the_model_stays_what_it_is(reranker: GradReranker, fault: Fault) -> None:
    fault.limit("forward", 0, lambda: RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="^shape mismatch$"):
        reranker.rerank(QUERY, SOURCES)


def test_a_kept_error_keeps_no_tensor_of_the_failed_pass(reranker: GradReranker, fault: Fault) -> None:
    reranker.rerank(QUERY, SOURCES)
    fault.limit("backward", 0, LACK_OF_MEMORY["cuda"])
    with pytest.raises(ContextOverflowError) as caught:
        reranker.rerank(QUERY, SOURCES)
    cause = caught.value.__cause__
    assert cause is not None
    frame, held = cause.__traceback__, []
    while frame is not None:
        code = frame.tb_frame.f_code
        if "/gradrerank/lm/" in code.co_filename and code.co_name not in ("in_batches", "naming_lack_of_memory"):
            held += [v for v in frame.tb_frame.f_locals.values() if isinstance(v, torch.Tensor) and v.requires_grad]
        frame = frame.tb_next
    assert not held


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("fits", [1, 2, 5])
def test_batches_shrink_to_what_fits_and_lose_nothing(size: int, fits: int) -> None:
    sizes: list[int] = []

    def work(batch: Any) -> list[int]:
        if len(batch) > fits:
            raise MemoryError
        sizes.append(len(batch))
        return [-item for item in batch]

    assert in_batches(range(23), size, work, "a number") == [-i for i in range(23)]
    assert max(sizes) <= min(size, fits) and min(size, fits) / 2 <= max(sizes)


# -- numbers that are none ------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "inf"])
@every_scorer
def test_a_loss_that_is_no_number_is_an_error_of_the_scorer(
    reranker: GradReranker, fault: Fault, scorer: Any, value: float
) -> None:
    expected = scored(reranker, scorer)
    fault.spoil("forward", value)  # the documents are in the store: only the question is spoiled
    with pytest.raises(ScoringError, match=r"(document|subset|set) \d+ is (nan|-?inf)") as caught:
        reranker.rerank(QUERY, SOURCES, scorer=scorer, top_n=2)
    assert getattr(scorer, "name", scorer).split("+")[0] in str(caught.value) or "subset" in str(caught.value)
    fault.clear()
    assert scored(reranker, scorer) == expected


@pytest.mark.parametrize("value", [math.nan, math.inf], ids=["nan", "inf"])
@every_gradient
def test_a_gradient_that_is_no_number_is_an_error_that_names_the_document(
    reranker: GradReranker, fault: Fault, scorer: Any, value: float
) -> None:
    expected = scored(reranker, scorer)
    fault.spoil("backward", value)
    with pytest.raises(ScoringError, match=r"document \d+ is (nan|-?inf)"):
        reranker.rerank(QUERY, SOURCES, scorer=scorer, top_n=2)
    fault.clear()
    assert scored(reranker, scorer) == expected


@every_scorer
def test_a_document_that_becomes_no_numbers_is_named_and_never_stored(
    reranker: GradReranker, fault: Fault, scorer: Any
) -> None:
    expected = scored(reranker, scorer)
    reranker.generator.store.clear()
    fault.spoil("forward", math.nan)
    with pytest.raises(ScoringError, match="document|score"):
        reranker.rerank(QUERY, SOURCES, scorer=scorer)
    assert len(reranker.generator.store) == 0
    fault.clear()
    assert scored(reranker, scorer) == pytest.approx(expected, abs=1e-6)


def test_it_is_the_one_document_that_is_named(reranker: GradReranker, fault: Fault) -> None:
    at_a_time = reranker.generator.reader.batch_size
    calls: list[int] = []

    def third(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * math.nan if len(calls) == 3 else x

    reranker.generator.reader.batch_size = 1
    fault.forward = third
    try:
        with pytest.raises(ScoringError, match=r"the document 'The tram runs .* \(\d+ tokens\) becomes numbers"):
            reranker.rerank(QUERY, {"a": DOCUMENTS})
    finally:
        reranker.generator.reader.batch_size = at_a_time
    assert len(reranker.generator.store) == 2, "those before it were kept"


@pytest.mark.parametrize("read", ["explain_tokens", "gate_path"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_no_number_reaches_a_picture_either(reranker: GradReranker, fault: Fault, read: str, where: str) -> None:
    reranker.rerank(QUERY, SOURCES)
    fault.spoil(where, math.nan)
    with pytest.raises(ScoringError, match="is nan, expected a finite number"):
        getattr(reranker, read)(QUERY, SOURCES)


def test_no_number_reaches_a_citation(reranker: GradReranker, fault: Fault) -> None:
    reranker.rerank(QUERY, SOURCES)
    fault.spoil("backward", math.nan)
    with pytest.raises(ScoringError, match="is nan"):
        reranker.cite(QUERY, SOURCES, "At nine.")


@pytest.mark.parametrize("where", ["one", "all"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_embedding_that_is_no_number_is_an_error(reranker: GradReranker, value: float, where: str) -> None:
    def encode(texts: Any) -> Any:
        rows = np.ones((len(texts), 4)) + np.arange(4)
        rows[slice(None) if where == "all" else -1, 2] = value
        return rows

    own = GradReranker(reranker.generator, encoder=encode)
    with pytest.raises(ScoringError, match="encoder"):
        own.rerank(QUERY, SOURCES)


class Rubbish:
    """A scorer of the caller's own."""

    name = "rubbish"

    def __init__(self, answer: Callable[[int], Any]) -> None:
        self.answer = answer

    def score(self, job: Any) -> Any:
        return self.answer(len(job.documents))


@pytest.mark.parametrize(
    "answer",
    [
        lambda n: None,
        lambda n: [1.0] * n,
        lambda n: Scores([]),
        lambda n: Scores([1.0] * (n + 1)),
        lambda n: Scores([1.0] * (n - 1)),
        lambda n: Scores(["one"] * n),
        lambda n: Scores([[1.0]] * n),
        lambda n: Scores([1j] * n),
        lambda n: Scores([-math.inf] * n),
        lambda n: Scores(np.full(n, np.nan)),
        lambda n: Scores(torch.full((n,), math.inf).tolist()),
        lambda n: Scores([1.0] * n, spans=[[]] * (n - 1)),
    ],
)
def test_C05_what_a_scorer_gives_is_checked_and_the_scorer_named(reranker: GradReranker, answer: Any) -> None:
    scorer: Scorer = Rubbish(answer)
    with pytest.raises(ScoringError, match="'rubbish'"):
        reranker.rerank(QUERY, SOURCES, scorer=scorer)
    assert len(reranker.rerank(QUERY, SOURCES)) == 5


def test_a_store_is_shared_by_a_faulty_and_a_whole_model_without_harm() -> None:
    store = DocumentStore()
    (model, tokenizer), fault = faulty()
    expected = scored(GradReranker((model, tokenizer), select_sources=False), "gates")
    first = GradReranker((model, tokenizer), store=store, select_sources=False)
    fault.spoil("forward", math.nan)
    with pytest.raises(ScoringError):
        first.rerank(QUERY, SOURCES)
    fault.clear()
    second = GradReranker((model, tokenizer), store=store, select_sources=False)
    assert scored(second, "gates") == expected
