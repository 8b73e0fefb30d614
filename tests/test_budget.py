"""Token budgets and limits by source: never overshot, nothing lost, every reason told."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from choices import choice_job
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker, RerankResult, Scores, ScoringJob
from gradrerank.context.choosing import InOrder, choose
from gradrerank.context.limits import Limits, check_per_source
from gradrerank.context.ordering import arrange
from gradrerank.context.prompt_tokens import PromptTokens, counted
from gradrerank.documents import placed
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError
from gradrerank.lm.prompt import DocumentTokens
from gradrerank.settings import Settings


class ByNumber:
    """Scores a document by the number that it begins with, or by its length."""

    name = "number"

    def score(self, job: ScoringJob) -> Scores:
        first = [d.text.split()[0] for d in job.documents]
        return Scores([float(w) if w.lstrip("-").isdigit() else float(len(w)) for w in first])


def words(text: str) -> int:
    return len(text.split())


def with_start(text: str) -> int:
    """As a tokenizer that puts a token before every text."""
    return 1 + words(text)


def merging(text: str) -> int:
    """As a tokenizer that joins characters across the border of two documents, or splits more there."""
    return (len(text) + 2) // 3 + text.count(".\n\n")


def erratic(text: str) -> int:
    """Neither additive nor monotone."""
    return words(text) + zlib.crc32(text.encode()) % 7


def shrinking(text: str) -> int:
    return max(0, 40 - words(text))


COUNTERS = [words, with_start, merging, erratic, shrinking, lambda text: np.int64(len(text)), lambda text: 0]


def encoder(texts: list[str]) -> np.ndarray:
    return np.array([[text.lower().count(c) + 0.1 for c in "abcdefghij"] for text in texts])


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=encoder, select_sources=False)


def everything(result: RerankResult) -> list[tuple[str, int]]:
    return sorted((p.source, p.rank) for item in (*result.documents, *result.dropped) for p in item.provenance)


POOLS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.lists(
        st.tuples(st.integers(-3, 9), st.integers(0, 12)).map(lambda t: f"{t[0]} " + "word and more. " * t[1]),
        max_size=5,
    ),
    min_size=1,
    max_size=3,
)
BOUNDS = st.one_of(st.integers(0, 3), st.tuples(st.integers(0, 2), st.sampled_from([None, 2, 3])))


@settings(max_examples=80)
@given(
    POOLS,
    st.sampled_from([None, *COUNTERS]),
    st.integers(1, 120),
    st.sampled_from(["order", "knapsack", "mmr"]),
    st.sampled_from([None, 1, 3]),
    st.sampled_from([None, 0, 5]),
    st.dictionaries(st.sampled_from(["a", "b"]), BOUNDS, max_size=2),
    st.sampled_from(["score", "ascending", "edges", "source"]),
    st.booleans(),
)
def test_no_bound_is_ever_broken_and_no_document_lost(
    reranker: GradReranker,
    pool: dict[str, list[str]],
    counter: Any,
    budget: int,
    selection: str,
    top_n: int | None,
    min_score: float | None,
    per_source: dict[str, Any],
    order: str,
    compress: bool,
) -> None:
    pool = {"a": [], "b": [], **pool}
    result = reranker.rerank(
        QUERY,
        pool,
        scorer=ByNumber(),
        token_budget=budget,
        token_counter=counter,
        selection=selection,
        top_n=top_n,
        min_score=min_score,
        per_source=per_source,
        order=order,
        compress=compress,
    )
    count = counter or (lambda text: len(reranker.generator.tokenizer.content([text])[0]))
    used = int(count(result.context())) if len(result) else 0
    assert used <= budget
    if counter is not None:
        assert result.context_tokens == used
    else:
        apart = reranker.generator.layout.documents([(d.title, d.excerpt) for d in result])
        assert max(used, sum(map(len, apart))) == result.context_tokens <= budget
    assert top_n is None or len(result) <= top_n
    assert min_score is None or all(d.score >= min_score for d in result)
    for name, (_, most) in check_per_source(per_source).items():
        assert most is None or sum(name in d.sources for d in result) <= most
    assert everything(result) == sorted((n, r + 1) for n, docs in pool.items() for r in range(len(docs)))
    assert sorted(d.rank for d in result) == list(range(1, len(result) + 1))
    ranked = sorted(result, key=lambda d: d.rank)
    assert [d.score for d in ranked] == sorted((d.score for d in result), reverse=True)


@settings(max_examples=40)
@given(st.permutations(range(6)), st.sampled_from(["order", "knapsack", "mmr"]), st.sampled_from(COUNTERS[:4]))
def test_the_choice_does_not_depend_on_the_order_in_which_sources_and_documents_come(
    reranker: GradReranker, order: list[int], selection: str, counter: Any
) -> None:
    texts = [f"{i} {'some words here. ' * (i % 3 + 1)}" for i in range(6)]
    pools = ({"a": texts[:4], "b": texts[2:]}, {"b": [texts[i] for i in order if i > 1], "a": texts[3::-1]})
    one, other = (
        reranker.rerank(
            QUERY,
            pool,
            scorer=ByNumber(),
            token_budget=30,
            token_counter=counter,
            selection=selection,
            per_source={"a": (1, 2)},
        )
        for pool in pools
    )
    assert [d.text for d in one] == [d.text for d in other]


def test_a_document_that_is_longer_than_what_is_left_is_passed_over_not_cut(reranker: GradReranker) -> None:
    texts = ["9 a b c d", "8 " + "w " * 20, "7 a b", "6 a b c d e f"]
    result = reranker.rerank("q", texts, scorer=ByNumber(), token_budget=9, token_counter=words)
    assert [d.text for d in result] == [texts[0], texts[2]]
    assert [(d.document.text, d.reason) for d in result.dropped] == [
        (texts[1], "token_budget"),
        (texts[3], "token_budget"),
    ]
    assert (result.context(), result.context_tokens) == ("9 a b c d\n\n7 a b", 8)


def test_C26_the_whole_text_counts_where_the_model_reads_only_its_beginning(reranker: GradReranker) -> None:
    long = DOCUMENTS[4] * 4
    with pytest.warns(UserWarning, match="read only in part"):
        result = reranker.rerank(QUERY, [long], max_document_tokens=16, token_budget=50)
    assert [d.reason for d in result.dropped] == ["token_budget"]


def test_C16_a_budget_that_fits_nothing_is_an_empty_result_and_no_error(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, DOCUMENTS, token_budget=1)
    assert (len(result), result.context(), result.context_tokens) == (0, "", 0)
    assert {d.reason for d in result.dropped} == {"token_budget"}


def test_titles_count_as_they_are_placed(reranker: GradReranker) -> None:
    document = Document("They run hourly.", title="Trams of the harbour")
    kept = reranker.rerank(QUERY, [document], token_counter=words, token_budget=8)
    assert (kept.context(), kept.context_tokens) == ("Title: Trams of the harbour\nThey run hourly.", 8)
    assert len(reranker.rerank(QUERY, [document], token_counter=words, token_budget=7)) == 0


def test_context_is_what_the_model_reads(reranker: GradReranker) -> None:
    """The words that this package puts around a document are those that its prompt has."""
    (read,) = reranker.generator.layout.documents([("Trams", "They run.")])
    assert reranker.generator.tokenizer.decode(read.ids) == placed("Trams", "They run.") + "\n\n"


def test_without_a_budget_nothing_is_counted(reranker: GradReranker) -> None:
    assert reranker.rerank(QUERY, DOCUMENTS).context_tokens is None
    assert reranker.rerank(QUERY, DOCUMENTS, token_counter=words).context_tokens == sum(map(words, DOCUMENTS))
    assert json.loads(json.dumps(reranker.rerank(QUERY, DOCUMENTS).to_dict()))["context_tokens"] is None


@pytest.mark.parametrize("answer", [-1, 2.0, "3", None, True, np.float32(3)])
def test_a_counter_that_does_not_count_is_an_error_that_says_so(reranker: GradReranker, answer: Any) -> None:
    with pytest.raises(ScoringError, match="token_counter must return a whole number >= 0, got"):
        reranker.rerank(QUERY, DOCUMENTS, token_budget=50, token_counter=lambda text: answer)


def test_an_error_of_the_counter_names_the_document_and_its_cause(reranker: GradReranker) -> None:
    def broken(text: str) -> int:
        if "Kettles" in text:
            raise LookupError("no tokenizer")
        return 1

    sources = {"web": [Document(text, id=f"d{i}") for i, text in enumerate(DOCUMENTS)]}
    with pytest.raises(ScoringError, match="document 'd1' of source 'web': LookupError: no tokenizer") as raised:
        reranker.rerank(QUERY, sources, selection="knapsack", token_budget=50, token_counter=broken)
    assert isinstance(raised.value.__cause__, LookupError)
    with pytest.raises(ScoringError, match="failed for the joined documents .*'d1' of source 'web'"):
        reranker.rerank(QUERY, sources, token_counter=broken)
    with pytest.raises(ScoringError, match=r"got float 1.5 for document 'The red house is old.' of source 'documents'"):
        reranker.rerank(QUERY, DOCUMENTS[3:4], token_counter=lambda text: 1.5)


@pytest.mark.parametrize("budget", [0, -1, True, 2.5, "9"])
def test_C04_a_bad_budget_is_refused_by_name(reranker: GradReranker, budget: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="token_budget must be a whole number >= 1 or None"):
        reranker.rerank(QUERY, DOCUMENTS, token_budget=budget)
    with pytest.raises(InvalidTypeError, match="token_counter must be callable, got int"):
        Settings(token_counter=3)  # type: ignore[arg-type]


def test_apart_or_joined_the_larger_number_counts() -> None:
    tokens = PromptTokens(["ab", "cd"], len, [5, 6])
    assert (tokens.together([0]), tokens.together([0, 1]), tokens.together([])) == (5, 11, 0)
    assert PromptTokens(["ab", "cd"], len, [1, 1]).together([0, 1]) == len("ab\n\ncd")
    assert counted(lambda text: np.int32(4), "x") == 4


# -- limits and floors by source ----------------------------------------------------------------------------

PLACES = {
    "a": ["9 only a", "5 both", "4 last of a"],
    "b": ["8 only b", "5 both", "1 last of b"],
}


def kept(reranker: GradReranker, per_source: Any, **options: Any) -> list[str]:
    result = reranker.rerank("q", PLACES, scorer=ByNumber(), per_source=per_source, **options)
    return [d.text.split()[0] for d in result]


def test_a_limit_passes_over_the_rest_of_a_source(reranker: GradReranker) -> None:
    result = reranker.rerank("q", PLACES, scorer=ByNumber(), per_source={"a": 1})
    assert [d.text[0] for d in result] == ["9", "8", "1"]
    assert [(d.document.text[0], d.reason) for d in result.dropped] == [("5", "per_source"), ("4", "per_source")]


def test_a_document_of_two_sources_counts_for_both(reranker: GradReranker) -> None:
    assert kept(reranker, {"a": 2, "b": 2}) == ["9", "8", "5"]
    assert kept(reranker, {"a": 3, "b": 1}) == ["9", "8", "4"]
    assert kept(reranker, {"b": 0}) == ["9", "4"]


def test_a_floor_takes_the_best_of_its_source_before_all_others(reranker: GradReranker) -> None:
    assert kept(reranker, {"b": (1, None)}, top_n=1) == ["8"]
    assert kept(reranker, {"b": (2, None)}, top_n=2) == ["8", "5"]
    assert kept(reranker, {"a": (1, 1), "b": (1, None)}, top_n=3) == ["9", "8", "1"]


def test_one_document_of_two_sources_fills_both_floors_and_leaves_the_place_of_the_best_free() -> None:
    floors = {"web": (1, None), "wiki": (1, None)}
    found = [("news",), ("web",), ("web", "wiki"), ("wiki",)]
    assert choose(InOrder(), choice_job([4, 3, 2, 1], sources=found, top_n=2, per_source=floors)).kept == (0, 2)
    # The place that is let go serves another floor that stood behind it.
    found = [("web",), ("web", "wiki"), ("news",)]
    job = choice_job([3, 2, 1], sources=found, top_n=2, per_source={**floors, "news": (1, None)})
    assert choose(InOrder(), job).kept == (1, 2)


@given(
    st.lists(st.sets(st.sampled_from("abc"), min_size=1).map(sorted), min_size=1, max_size=7),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3).map(lambda least: (least, None)), max_size=3),
    st.sampled_from([None, 1, 2, 4]),
)
def test_no_document_is_kept_for_a_floor_that_is_filled_without_it(
    found: list[list[str]], floors: dict[str, tuple[int, int | None]], top_n: int | None
) -> None:
    def filled(kept: Collection[int]) -> int:
        counts = {name: sum(name in found[i] for i in kept) for name in floors}
        return sum(min(counts[name], least) for name, (least, _) in floors.items())

    required = Limits(found, top_n, floors).floors()
    assert all(filled([i for i in required if i != out]) < filled(required) for out in required)
    # Nothing that still fits would fill more, and without top_n every floor is filled as far as it goes.
    if top_n is None or len(required) < top_n:
        assert filled(required) == filled(range(len(found)))


def test_a_floor_that_cannot_be_reached_is_filled_as_far_as_it_goes(reranker: GradReranker) -> None:
    assert kept(reranker, {"b": (9, None)}) == ["9", "8", "5", "4", "1"]
    assert kept(reranker, {"b": (9, None)}, min_score=5) == ["9", "8", "5"]
    assert kept(reranker, {"b": (3, None)}, token_budget=5, token_counter=words) == ["8", "5"]


def test_a_source_with_a_floor_is_read_whatever_the_choice_of_sources() -> None:
    reranker = GradReranker(tiny(), encoder=encoder, max_sources=1)
    left_out = next(s.name for s in reranker.rerank(QUERY, PLACES).sources if not s.selected)
    result = reranker.rerank(QUERY, PLACES, per_source={left_out: (2, None)}, top_n=2)
    assert sum(left_out in d.sources for d in result) == 2


@pytest.mark.parametrize(
    ("per_source", "message"),
    [
        ({"aa": 1}, "per_source names 'aa', which is no source; sources are a, b"),
        ({"a": -1}, r"per_source\['a'\] must be a whole number >= 0 or a pair"),
        ({"a": True}, r"per_source\['a'\]"),
        ({"a": None}, r"per_source\['a'\]"),
        ({"a": (1, 2, 3)}, r"per_source\['a'\]"),
        ({"a": (None, 2)}, r"per_source\['a'\]"),
        ({"a": (3, 2)}, r"per_source\['a'\] has the floor 3 above its limit 2"),
        ({"": 1}, "per_source must name sources"),
        ([1, 2], "per_source must map source names"),
    ],
)
def test_C15_impossible_limits_are_refused_by_name(reranker: GradReranker, per_source: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        kept(reranker, per_source)


def test_limits_may_be_numpy_numbers_and_lists() -> None:
    assert check_per_source({"a": np.int64(2), "b": [1, None]}) == {"a": (0, 2), "b": (1, None)}


# -- order --------------------------------------------------------------------------------------------------


def test_the_documents_stand_in_the_order_that_was_asked_for(reranker: GradReranker) -> None:
    ranks = {
        order: [d.rank for d in reranker.rerank("q", PLACES, scorer=ByNumber(), order=order)]
        for order in ("score", "ascending", "edges", "source")
    }
    assert ranks == {
        "score": [1, 2, 3, 4, 5],
        "ascending": [5, 4, 3, 2, 1],
        "edges": [1, 3, 5, 4, 2],
        "source": [1, 3, 4, 2, 5],
    }


@given(st.sets(st.integers(0, 30)), st.sampled_from(["score", "ascending", "edges", "source"]))
def test_arranging_loses_nothing(places: set[int], order: str) -> None:
    homes = ["abc"[i % 3] for i in range(31)]
    arranged = arrange(places, order, homes)
    assert sorted(arranged) == sorted(places)
    if order == "edges" and len(arranged) > 2:
        worst = arranged.index(max(places))
        assert abs(worst - (len(arranged) - 1) / 2) <= 1
        assert {arranged[0], arranged[-1]} == set(sorted(places)[:2])
    if order == "source":
        seen = [homes[i] for i in arranged]
        assert all(seen[i] == seen[i - 1] or seen[i] not in seen[:i] for i in range(1, len(seen)))


def test_the_best_document_is_named_in_every_order(reranker: GradReranker) -> None:
    shown = repr(reranker.rerank("q", PLACES, scorer=ByNumber(), order="edges", per_source={"a": 0}))
    assert "best=+8.0000" in shown


@pytest.mark.parametrize("name", ["order", "selection"])
def test_an_unknown_name_is_refused_with_the_known_ones(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} must be one of"):
        Settings(**{name: "best"})


def test_documents_as_the_core_counts_them_are_those_that_it_reads(reranker: GradReranker) -> None:
    documents: list[DocumentTokens] = reranker.generator.layout.documents([(None, text) for text in DOCUMENTS])
    result = reranker.rerank(QUERY, DOCUMENTS, token_budget=10**6)
    assert result.context_tokens == sum(map(len, documents))
