"""The pipeline as a user sees it, case by case."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GatesScorer, GradReranker, RerankResult, Scores, ScoringJob
from gradrerank.errors import (
    ContextOverflowError,
    InvalidArgumentError,
    InvalidTypeError,
    NoSignalWarning,
    ScoringError,
)


class ByLength:
    """Scores a document by its text alone, and counts its calls."""

    name = "length"

    def __init__(self) -> None:
        self.calls = 0

    def score(self, job: ScoringJob) -> Scores:
        self.calls += 1
        return Scores([float(len(d.text)) for d in job.documents])


def encoder(texts: list[str]) -> np.ndarray:
    """Letters counted: enough to tell sources apart, quick and without a model."""
    return np.array([[text.lower().count(c) + 0.1 for c in "abcdefghij"] for text in texts])


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=encoder)


SOURCES = {
    "wiki": [Document(DOCUMENTS[0], id="w1"), Document(DOCUMENTS[1], id="w2", title="Kettles")],
    "web": [Document(DOCUMENTS[2], id="e1", score=0.4), Document(DOCUMENTS[0], id="e2", metadata={"file": "e"})],
    "notes": [DOCUMENTS[3], DOCUMENTS[4]],
}


def order(result: RerankResult) -> list[str]:
    return [d.text for d in result]


# -- what comes out -----------------------------------------------------------------------------------------


def test_every_document_is_ranked_or_dropped_with_its_provenance(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, SOURCES, top_n=2, max_sources=2)
    left, right = result.documents, result.dropped
    seen = [(p.source, p.rank) for item in (*left, *right) for p in item.provenance]
    assert sorted(seen) == [(n, r) for n in ("notes", "web", "wiki") for r in (1, 2)]
    assert [d.rank for d in result] == [1, 2]
    assert {d.reason for d in right} <= {"top_n", "source_not_selected"}
    assert [s.name for s in result.sources if s.selected] == [s.name for s in result.sources][:2]
    assert all(isinstance(s.gain, float) for s in result.sources)
    assert set(result.timings) == {"pool", "sources", "target", "score", "select", "total"}
    assert result.tokens["documents"] > 0
    assert (result.scorer, result.target, result.target_text) == ("gates+likelihood+links", "query", QUERY)


def test_C08_one_text_in_two_sources_is_one_document_with_both_occurrences(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, SOURCES, select_sources=False)
    assert len(result) == 5
    ferry = next(d for d in result if d.text == DOCUMENTS[0])
    assert ferry.id == "w1"
    assert {name: (p.rank, p.id) for name, p in ferry.sources.items()} == {"wiki": (1, "w1"), "web": (2, "e2")}
    assert ferry.sources["web"].metadata == {"file": "e"}


def test_result_is_plain_data(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, SOURCES)
    data = json.loads(json.dumps(result.to_dict()))
    assert [d["text"] for d in data["documents"]] == order(result)
    assert all(type(d.score) is float and type(d.scores["gates"]) is float for d in result)
    table = result.to_pandas()
    assert list(table["score"]) == [d.score for d in result]
    assert len(repr(result)) < 250
    assert repr(reranker) == "GradReranker('LlamaForCausalLM', scorer='gates+likelihood+links', target='query')"


def test_loss_and_target_of_a_reference(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, SOURCES, target="reference", reference="At nine.")
    assert (result.target, result.target_text) == ("reference", "At nine.")
    assert result.details["loss"] > 0
    assert order(result) != [] and result[0].score >= result[-1].score


def test_arguments_of_a_call_override_the_objects_own() -> None:
    strict = GradReranker(tiny(), top_n=1, min_score=1e9, encoder=encoder)
    assert len(strict.rerank(QUERY, SOURCES)) == 0
    assert len(strict.rerank(QUERY, SOURCES, min_score=None)) == 1
    assert len(strict.rerank(QUERY, SOURCES, min_score=None, top_n=None, select_sources=False)) == 5
    with pytest.raises(InvalidTypeError, match="no setting 'topn'"):
        strict.rerank(QUERY, SOURCES, topn=3)


# -- C01 to C06 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sources", [{}, {"a": []}, {"a": [], "b": []}, [], {"a": iter(())}])
def test_C01_no_documents_give_an_empty_result_without_scoring(reranker: GradReranker, sources: Any) -> None:
    scorer = ByLength()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = reranker.rerank("q", sources, scorer=scorer)
    assert (len(result), scorer.calls, result.dropped) == (0, 0, ())
    assert [s.selected for s in result.sources] == [False] * len(result.sources)


def test_C01_an_empty_source_changes_nothing_in_a_full_one(reranker: GradReranker) -> None:
    alone = reranker.rerank(QUERY, {"a": DOCUMENTS})
    beside = reranker.rerank(QUERY, {"a": DOCUMENTS, "empty": []})
    assert [(d.text, d.score) for d in alone] == [(d.text, d.score) for d in beside]
    assert [(s.name, s.selected) for s in beside.sources] == [("a", True), ("empty", False)]


def test_C02_blank_documents_are_set_aside_with_the_reason(reranker: GradReranker) -> None:
    real = "Kettles boil at 100 C."
    alone = reranker.rerank("boiling point", {"a": [real]})
    mixed = reranker.rerank("boiling point", {"a": [real, "", "   ", "\u200b", "\n\t"]})
    assert mixed[0].score == alone[0].score
    assert [(d.document.text, d.reason) for d in mixed.dropped] == [(t, "blank") for t in ("", "   ", "\u200b", "\n\t")]


def test_C02_all_blank_returns_without_scoring(reranker: GradReranker) -> None:
    scorer = ByLength()
    result = reranker.rerank("q", {"a": ["", "\u200b"]}, scorer=scorer)
    assert (len(result), scorer.calls, len(result.dropped)) == (0, 0, 2)


@settings(max_examples=30)
@given(st.permutations([("", "x"), ("alpha", "a"), ("alpha", "a"), ("  ", None), ("beta!", "b"), ("gammas", "c")]))
def test_C03_a_document_keeps_its_own_text_id_and_score(
    reranker: GradReranker, documents: list[tuple[str, str | None]]
) -> None:
    given_documents = [Document(t, id=i, metadata={"text": t}) for t, i in documents]
    result = reranker.rerank("q", {"s": given_documents}, scorer=ByLength())
    assert [(d.text, d.id, d.score) for d in result] == [
        ("gammas", "c", 6.0),
        ("alpha", "a", 5.0),
        ("beta!", "b", 5.0),
    ] or [(d.text, d.id, d.score) for d in result] == [("gammas", "c", 6.0), ("beta!", "b", 5.0), ("alpha", "a", 5.0)]
    for d in result:
        assert d.metadata == {"text": d.text}
        assert all(given_documents[p.rank - 1].text == d.text for p in d.provenance)


@settings(max_examples=10)
@given(shuffle=st.permutations(range(5)))
def test_C03_C32_scores_do_not_depend_on_the_order_of_documents(reranker: GradReranker, shuffle: list[int]) -> None:
    straight = {d.text: d.score for d in reranker.rerank(QUERY, {"a": DOCUMENTS})}
    shuffled = reranker.rerank(QUERY, {"a": [DOCUMENTS[i] for i in shuffle]})
    assert {d.text: d.score for d in shuffled} == pytest.approx(straight, abs=1e-5)
    assert order(shuffled) == sorted(straight, key=lambda t: -straight[t])


@pytest.mark.parametrize("top_n", [0, -1, True, 2.0, "2"])
def test_C04_top_n_of_another_kind_is_refused_by_name(reranker: GradReranker, top_n: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"top_n must be a whole number >= 1 or None, got"):
        reranker.rerank("q", {"a": ["x"]}, top_n=top_n)
    with pytest.raises(InvalidArgumentError, match="top_n"):
        GradReranker(tiny(), top_n=top_n)


@pytest.mark.parametrize(("top_n", "n"), [(50, 5), (None, 5), (1, 1), (np.int64(2), 2)])
def test_C04_top_n_larger_than_the_pool_keeps_all(reranker: GradReranker, top_n: Any, n: int) -> None:
    assert len(reranker.rerank(QUERY, {"a": DOCUMENTS}, top_n=top_n)) == n


def test_C05_any_iterable_is_read_once(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, {"a": (d for d in DOCUMENTS), "b": tuple(DOCUMENTS[:2]), "c": map(str, "xy")})
    assert sum(s.n_documents for s in result.sources) == 9


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("wiki", r"sources is a str"),
        ({"wiki": "text"}, r"sources\['wiki'\] is a str"),
        ({"wiki": ["a", None]}, r"sources\['wiki'\]\[1\] is NoneType, expected Document or str"),
        ({"wiki": 3}, r"sources\['wiki'\] is"),
        (None, "sources is"),
        ({3: ["a"]}, "name of a source must be a str"),
    ],
)
def test_C05_wrong_kinds_are_named_with_source_and_position(reranker: GradReranker, sources: Any, message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        reranker.rerank("q", sources)


def test_C05_a_scorer_that_answers_for_too_few_documents_is_an_error(reranker: GradReranker) -> None:
    class Short:
        name = "short"

        def score(self, job: ScoringJob) -> Scores:
            return Scores([1.0] * (len(job.documents) - 1))

    with pytest.raises(ScoringError, match="scorer 'short' returned 4 utilities"):
        reranker.rerank("q", {"a": DOCUMENTS}, scorer=Short())


@pytest.mark.parametrize(
    ("query", "error"), [("", ValueError), ("  ", ValueError), ("\u200b", ValueError), (None, TypeError)]
)
def test_C06_a_missing_query_is_named(reranker: GradReranker, query: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="query must"):
        reranker.rerank(query, {"a": ["x"]})


# -- C09 to C16 -----------------------------------------------------------------------------------------------

ODD = {"tags": ["x"], "box": {"p": {1, 2}}, "arr": np.arange(3), "when": datetime(2026, 1, 2), 5: "int key"}


def test_C09_odd_metadata_is_neither_read_nor_lost(reranker: GradReranker) -> None:
    first, second = Document("Trams.", id="a", metadata=ODD), Document("Trams.", id="b", metadata=dict(ODD))
    result = reranker.rerank("q", {"a": [first], "b": [second]}, select_sources=False)
    assert len(result) == 1
    assert result[0].metadata.keys() == ODD.keys()
    assert result[0].metadata["box"] == ODD["box"]


@pytest.mark.parametrize("scorer", ["gates", "mixture", "ablation", "broken"])
def test_C10_nothing_that_was_passed_changes(reranker: GradReranker, scorer: str) -> None:
    class Broken:
        name = "broken"

        def score(self, job: ScoringJob) -> Scores:
            raise RuntimeError("half way")

    documents = [Document(t, id=str(i), metadata={"n": {"deep": [i]}}) for i, t in enumerate([*DOCUMENTS, ""])]
    sources = {"a": documents, "b": documents[::-1]}
    before = copy.deepcopy(sources)
    try:
        first = reranker.rerank(QUERY, sources, scorer=Broken() if scorer == "broken" else scorer)
    except RuntimeError:
        assert scorer == "broken"
    else:
        kept = copy.deepcopy(first.to_dict())
        reranker.rerank("another query", sources, scorer=scorer)
        assert first.to_dict() == kept
        first[0].metadata["x"] = {}
        first[0].metadata["n"]["deep"].append("written")
    assert sources == before
    assert [d.metadata for d in documents] == [d.metadata for d in before["a"]]


def test_C10_metadata_that_cannot_be_copied_is_shared(reranker: GradReranker) -> None:
    import threading

    lock = threading.Lock()
    result = reranker.rerank("q", {"a": [Document("x", metadata={"lock": lock})]})
    assert result[0].metadata["lock"] is lock


def test_C11_no_retrieval_score_is_not_zero(reranker: GradReranker) -> None:
    documents = [
        Document("a", score=None),
        Document("b", score=0.1),
        Document("c", score=-0.3),
        Document("d", score=0.0),
    ]
    result = reranker.rerank("q", {"bm25": [Document("a", score=14.2)], "dense": documents}, select_sources=False)
    found = {d.text: {n: p.score for n, p in d.sources.items()} for d in result}
    assert found == {"a": {"bm25": 14.2, "dense": None}, "b": {"dense": 0.1}, "c": {"dense": -0.3}, "d": {"dense": 0.0}}


def test_C12_only_plain_numbers_come_out_and_no_tensor_stays_alive(reranker: GradReranker) -> None:
    documents = [Document(t, score=np.float32(0.5)) for t in DOCUMENTS]
    result = reranker.rerank(QUERY, {"a": documents, "b": documents}, scorer=GatesScorer(pieces="sentence"))
    json.dumps(result.to_dict())
    pending, seen = [result.to_dict()], 0
    while pending:
        item = pending.pop()
        seen += 1
        assert not isinstance(item, (torch.Tensor, np.generic))
        pending += item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else []
    assert seen > 50


def test_C14_scaling_one_sources_scores_changes_nothing(reranker: GradReranker) -> None:
    def rank(factor: float) -> list[str]:
        bm25 = [Document(t, score=factor * s) for t, s in zip(DOCUMENTS[:3], (31.0, 12.0, 12.0), strict=True)]
        dense = [Document(t, score=s) for t, s in zip(DOCUMENTS[2:], (0.82, 0.79, -0.1), strict=True)]
        return order(reranker.rerank(QUERY, {"bm25": bm25, "dense": dense}))

    assert rank(1) == rank(100) == rank(1e-6)


def test_C15_weights_move_scores_by_the_logarithm_of_the_prior(reranker: GradReranker) -> None:
    sources = {"wiki": DOCUMENTS[:3], "web": DOCUMENTS[2:]}
    plain = {d.text: d.score for d in reranker.rerank(QUERY, sources, select_sources=False)}
    weighed = reranker.rerank(QUERY, sources, select_sources=False, weights={"wiki": 2, "web": 1})
    length = len(reranker.generator.layout.query_continuation(QUERY).target)
    for document in weighed:
        prior = 0.0 if "wiki" in document.sources else -np.log(2) / length
        assert document.scores["prior"] == pytest.approx(prior)
        assert document.score == pytest.approx(plain[document.text] + prior, abs=1e-6)
    heavy = reranker.rerank(QUERY, sources, select_sources=False, weights=[0.999999, 1e-6])
    light = reranker.rerank(QUERY, sources, select_sources=False, weights=[1e-6, 0.999999])
    assert set(order(heavy)[:3]) == set(DOCUMENTS[:3])
    assert set(order(light)[:3]) == set(DOCUMENTS[2:])
    scaled = reranker.rerank(QUERY, sources, select_sources=False, weights=[20, 10])
    assert [d.score for d in scaled] == [d.score for d in weighed]


def test_C15_a_source_of_weight_zero_is_left_out(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, {"wiki": DOCUMENTS[:3], "web": DOCUMENTS[2:]}, weights={"web": 0, "wiki": 1})
    assert set(order(result)) == set(DOCUMENTS[:3])
    assert {d.document.text: d.reason for d in result.dropped} == dict.fromkeys(DOCUMENTS[3:], "source_not_selected")
    assert {s.name: s.selected for s in result.sources} == {"wiki": True, "web": False}
    alone = reranker.rerank(QUERY, {"wiki": DOCUMENTS[:3], "web": DOCUMENTS[2:]}, weights={"web": 0})
    assert [(d.text, d.score) for d in alone] == [(d.text, d.score) for d in result]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5], "1 numbers for 2 sources"),
        ([0, 0], "must not all be 0"),
        ([-1, 2], "weights"),
        ([float("nan"), 1], "weights"),
        ({"wikii": 1}, "'wikii', which is no source"),
        ({"wiki": 0, "web": 0}, "must not all be 0"),
        ("ab", "must map source names"),
    ],
)
def test_C15_weights_that_cannot_be_meant_are_named(reranker: GradReranker, weights: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        reranker.rerank("q", {"wiki": ["a"], "web": ["b"]}, weights=weights)


def test_C16_min_score_is_inclusive_on_the_stored_score(reranker: GradReranker) -> None:
    scores = [d.score for d in reranker.rerank(QUERY, {"a": DOCUMENTS})]
    bound = reranker.rerank(QUERY, {"a": DOCUMENTS}, min_score=scores[2])
    assert [d.score for d in bound] == scores[:3]
    assert {d.reason for d in bound.dropped} == {"min_score"}
    assert sorted((d.score for d in bound.dropped), reverse=True) == scores[3:]
    assert len(reranker.rerank(QUERY, {"a": DOCUMENTS}, min_score=1e9)) == 0


# -- targets ----------------------------------------------------------------------------------------------------


def test_draft_by_the_callers_own_writer_from_the_best_documents() -> None:
    asked: list[tuple[str, list[str]]] = []

    def writer(query: str, texts: list[str]) -> str:
        asked.append((query, texts))
        return "At nine."

    own = GradReranker(tiny(), encoder=encoder, draft_writer=writer, draft_documents=2, target="draft")
    result = own.rerank(QUERY, {"a": DOCUMENTS})
    assert asked == [(QUERY, DOCUMENTS[:2])]
    assert (result.target, result.target_text, result.tokens.get("draft")) == ("draft", "At nine.", None)
    reference = own.rerank(QUERY, {"a": DOCUMENTS}, target="reference", reference="At nine.")
    assert [d.score for d in result] == [d.score for d in reference]


def test_a_blank_draft_falls_back_to_the_query_visibly() -> None:
    own = GradReranker(tiny(), draft_writer=lambda query, texts: "  ", target="draft")
    with pytest.warns(NoSignalWarning, match="draft is blank"):
        result = own.rerank(QUERY, {"a": DOCUMENTS})
    assert (result.target, result.target_text) == ("query", QUERY)


def test_a_draft_that_is_no_text_is_an_error() -> None:
    own = GradReranker(tiny(), draft_writer=lambda query, texts: None, target="draft")  # type: ignore[arg-type,return-value]
    with pytest.raises(ScoringError, match="draft_writer must return a str, got NoneType"):
        own.rerank(QUERY, {"a": DOCUMENTS})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "reference"}, "target='reference' needs reference="),
        ({"target": "reference", "reference": " "}, "reference must not be blank"),
        ({"target": "query", "reference": "x"}, "read by target='reference' only"),
        ({"target": "answer"}, "target must be one of"),
        ({"scorer": "gate"}, "scorer must be one of"),
        ({"min_score": "high"}, "min_score must"),
        ({"source_lambda": -1}, "source_lambda must"),
        ({"max_document_tokens": 3}, "max_document_tokens must be a whole number >= 8 or None, got 3"),
    ],
)
def test_combinations_that_cannot_be_meant_are_errors_at_the_call(
    reranker: GradReranker, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        reranker.rerank("q", {"a": ["x"]}, **options)


def test_C13_an_error_of_the_callers_own_code_keeps_its_type_and_says_where_it_arose(reranker: GradReranker) -> None:
    def broken() -> Iterator[str]:
        yield "The tram leaves hourly."
        raise OSError("the index is closed")

    with pytest.raises(OSError, match="the index is closed") as reading:
        reranker.rerank(QUERY, {"web": broken()})
    assert reading.value.__notes__ == ["while the documents of sources['web'] were read"]

    def refuse(query: str, texts: list[str]) -> str:
        raise ZeroDivisionError("no draft")

    with pytest.raises(ZeroDivisionError) as writing:
        GradReranker(tiny(), draft_writer=refuse, target="draft").rerank("When?", {"web": ["A tram."]})
    assert writing.value.__notes__ == ["while draft_writer wrote a draft for the query 'When?'"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"store": 3}, "store must be a DocumentStore or None, got int 3"),
        ({"use_chat_template": "x"}, "use_chat_template must be True, False or None, got 'x'"),
        ({"show_progress": "x"}, "show_progress must be True, False or None, got 'x'"),
        ({"cache_bytes": -1}, "cache_bytes must be"),
        ({"cache_folder": 3}, "cache_folder, the folder of a DiskStore, must be a path, got 3"),
    ],
)
def test_C05_what_makes_a_reranker_is_checked_under_the_names_of_its_arguments(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match=message):
        GradReranker(tiny(), **options)


def test_C27_a_document_that_does_not_fit_is_named_with_its_sources(reranker: GradReranker) -> None:
    long = Document("ferry " * 600, id="d7")
    message = r"document 'd7' is longer than the model's context: \d+ tokens .* \(source 'web', 'wiki'\)"
    with pytest.raises(ContextOverflowError, match=message):
        reranker.rerank(QUERY, {"wiki": [DOCUMENTS[0], long], "web": [long]}, select_sources=False)
    with pytest.raises(ContextOverflowError, match=message):
        reranker.index({"wiki": [DOCUMENTS[0], long], "web": [long]})


# -- C17, C18, C31, C32 ------------------------------------------------------------------------------------------


def test_C18_threads_get_what_one_thread_gets(reranker: GradReranker) -> None:
    calls = [(f"{QUERY} {i}", {"a": random.Random(i).sample(DOCUMENTS, 4)}, [None, 30, 16][i % 3]) for i in range(48)]

    def run(call: tuple[str, dict[str, list[str]], int | None]) -> list[tuple[str, float]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = reranker.rerank(call[0], call[1], max_document_tokens=call[2])
        return [(d.text, d.score) for d in result]

    alone = [run(call) for call in calls]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(run, calls))
    for one, other in zip(alone, together, strict=True):
        assert [t for t, _ in one] == [t for t, _ in other]
        assert [s for _, s in one] == pytest.approx([s for _, s in other], abs=1e-6)


def test_C17_works_inside_a_running_loop(reranker: GradReranker) -> None:
    async def main() -> list[str]:
        return order(reranker.rerank(QUERY, SOURCES))

    assert asyncio.run(main()) == asyncio.run(main()) == order(reranker.rerank(QUERY, SOURCES))


def test_C31_a_score_of_exactly_zero_for_all_warns_and_keeps_the_retrieval_order(reranker: GradReranker) -> None:
    class Silent:
        name = "silent"

        def score(self, job: ScoringJob) -> Scores:
            return Scores([0.0] * len(job.documents))

    with pytest.warns(NoSignalWarning, match="'silent' gave every document exactly 0"):
        result = reranker.rerank("q", {"a": DOCUMENTS}, scorer=Silent())
    assert order(result) == DOCUMENTS


@pytest.mark.parametrize("batch_size", [1, 2, 7])
def test_C32_scores_do_not_depend_on_the_batch(reranker: GradReranker, batch_size: int) -> None:
    documents = [*DOCUMENTS, "The tram runs. " * 30]
    reference = reranker.rerank(QUERY, {"a": documents})
    other = GradReranker(tiny(), batch_size=batch_size).rerank(QUERY, {"a": documents})
    assert order(other) == order(reference)
    assert [d.score for d in other] == pytest.approx([d.score for d in reference], abs=1e-5)


def test_C32_repeats_are_equal_and_the_global_generator_is_untouched() -> None:
    torch.manual_seed(7)
    state, first = torch.get_rng_state(), GradReranker(tiny(), encoder=encoder).rerank(QUERY, SOURCES)
    for seed in range(5):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        again = GradReranker(tiny(), encoder=encoder).rerank(QUERY, SOURCES)
        assert torch.equal(torch.get_rng_state(), before)
        assert [(d.text, d.score) for d in again] == [(d.text, d.score) for d in first]
    assert torch.equal(torch.manual_seed(7).get_state(), state)


def test_order_of_the_sources_does_not_matter(reranker: GradReranker) -> None:
    forward = reranker.rerank(QUERY, SOURCES)
    backward = reranker.rerank(QUERY, dict(reversed(SOURCES.items())))
    assert order(forward) == order(backward)
    assert forward.sources == backward.sources


@pytest.mark.parametrize("family", ["mistral", "qwen2", "gemma3", "gpt2", "opt"])
def test_other_families_rank_end_to_end(family: str) -> None:
    result = GradReranker(tiny(family), encoder=encoder).rerank(QUERY, SOURCES, target="draft", draft_tokens=4)
    assert len(result) >= 2
    assert any(d.score for d in result)
