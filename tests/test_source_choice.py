"""The choice of sources by utility, what each contributed, and calibrated bounds, in the whole pipeline."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker, Scores, ScoringJob
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.scorers.token_utilities import token_utilities
from gradrerank.source_choice import best_by_both, best_by_utility
from gradrerank.sources.combination import ChosenSources, combination_value
from gradrerank.sources.contribution import source_agreement

UTILITIES = {"good": 2.0, "fair": 0.5, "shared": 1.0, "bad": -1.5, "poor": -0.25}


class ByText:
    """Scores that are known."""

    name = "known"

    def __init__(self) -> None:
        self.n_read = 0

    def score(self, job: ScoringJob) -> Scores:
        self.n_read = len(job.documents)
        return Scores([UTILITIES[d.text] for d in job.documents])


def encoder(texts: list[str]) -> list[list[float]]:
    """The query and the bad source lie close together; the good one is off."""
    near = {"q": [1.0, 0.0], "bad": [1.0, 0.1], "poor": [1.0, 0.2]}
    return [near.get(text, [0.2, 1.0]) for text in texts]


SOURCES = {"wiki": ["good", "shared"], "web": ["fair", "shared"], "spam": ["bad"], "news": ["poor"]}


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=encoder)


def ranked(reranker: GradReranker, sources: Any = SOURCES, **settings: Any) -> Any:
    return reranker.rerank("q", sources, scorer=ByText(), **settings)


def test_gradient_keeps_the_sources_of_positive_utility_and_drops_the_rest_with_their_scores(
    reranker: GradReranker,
) -> None:
    result = ranked(reranker, source_choice="gradient")
    assert [d.text for d in result] == ["good", "shared", "fair"]
    assert [(s.name, s.selected) for s in result.sources] == [
        ("wiki", True), ("web", True), ("news", False), ("spam", False),
    ]  # fmt: skip
    assert {(d.document.text, d.reason, d.score) for d in result.dropped} == {
        ("bad", "source_not_selected", -1.5),
        ("poor", "source_not_selected", -0.25),
    }


@pytest.mark.parametrize(("limit", "names"), [(1, ["wiki"]), (2, ["wiki", "web"]), (9, ["wiki", "web"])])
def test_gradient_keeps_at_most_max_sources(reranker: GradReranker, limit: int, names: list[str]) -> None:
    result = ranked(reranker, source_choice="gradient", max_sources=limit)
    assert [s.name for s in result.sources if s.selected] == names


def test_a_document_that_a_kept_source_found_too_stays_with_its_whole_provenance(reranker: GradReranker) -> None:
    result = ranked(reranker, source_choice="gradient", max_sources=1)
    assert [d.text for d in result] == ["good", "shared"]
    assert set(result[1].sources) == {"wiki", "web"}


def test_gradient_asks_no_encoder() -> None:
    def broken(texts: list[str]) -> Any:
        raise AssertionError("not asked for")

    assert len(ranked(GradReranker(tiny(), encoder=broken), source_choice="gradient")) == 3


def test_where_nothing_helps_the_least_harmful_source_is_kept(reranker: GradReranker) -> None:
    result = ranked(reranker, {"spam": ["bad"], "news": ["poor"]}, source_choice="gradient")
    assert [d.text for d in result] == ["poor"]


def test_embedding_reads_only_what_it_chose_and_both_reads_all(reranker: GradReranker) -> None:
    read = {}
    for choice in ("embedding", "gradient", "both"):
        scorer = ByText()
        result = reranker.rerank("q", SOURCES, scorer=scorer, source_choice=choice, max_sources=1)
        read[choice] = (scorer.n_read, [s.name for s in result.sources if s.selected])
    assert read == {"embedding": (1, ["spam"]), "gradient": (5, ["wiki"]), "both": (5, ["news"])}


def test_all_sources_are_kept_where_none_is_to_be_chosen(reranker: GradReranker) -> None:
    for choice in ("gradient", "both", "embedding"):
        result = ranked(reranker, source_choice=choice, select_sources=False)
        assert len(result) == 5 and all(s.selected for s in result.sources)


def test_a_source_with_a_floor_is_kept_whatever_its_utility(reranker: GradReranker) -> None:
    result = ranked(reranker, source_choice="gradient", per_source={"spam": (1, None)})
    assert [s.name for s in result.sources if s.selected] == ["wiki", "web", "spam"]
    assert "bad" in [d.text for d in result]


def test_a_dropped_document_has_its_prior_in_its_score(reranker: GradReranker) -> None:
    result = ranked(reranker, source_choice="gradient", weights={"wiki": 1.0, "web": 1.0, "spam": 0.5, "news": 1.0})
    (bad,) = [d for d in result.dropped if d.document.text == "bad"]
    n_target = len(reranker.generator.layout.query_continuation("q").target)
    assert bad.score == pytest.approx(-1.5 + math.log(0.5) / n_target, abs=1e-5)


@given(st.permutations(list(SOURCES)))
def test_the_order_of_the_sources_does_not_matter(order: list[str]) -> None:
    for choice in ("gradient", "both"):
        moved = ranked(SHARED, {name: SOURCES[name] for name in order}, source_choice=choice, max_sources=2)
        first = ranked(SHARED, source_choice=choice, max_sources=2)
        assert [d.text for d in moved] == [d.text for d in first]
        assert moved.sources == first.sources


SHARED = GradReranker(tiny(), encoder=encoder)


@given(st.dictionaries(st.sampled_from("abcd"), st.floats(-2, 2), min_size=1), st.integers(1, 4))
def test_by_utility_no_better_source_is_left_out(utilities: dict[str, float], limit: int) -> None:
    chosen = best_by_utility(utilities, limit)
    assert 1 <= len(chosen) <= limit
    left = [u for name, u in utilities.items() if name not in chosen and u > 0]
    assert all(utilities[name] >= max(left, default=-9.0) for name in chosen)
    assert len(chosen) == 1 or all(utilities[name] > 0 for name in chosen)


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.lists(st.integers(-9, 9), min_size=3, max_size=3))
def test_both_is_within_its_guarantee_of_the_best_combination(relevance: list[float], units: list[int]) -> None:
    names, similarity = ["a", "b", "c"], np.full((3, 3), 0.1)
    utilities = dict(zip(names, map(float, units), strict=True))
    chosen = ChosenSources((), {}, dict(zip(names, relevance, strict=True)), similarity)
    found = best_by_both(chosen, utilities, 0.1)
    total = sum(map(abs, units)) or 1
    worth = np.array(relevance) + np.array(units) / total

    def value(subset: Any) -> float:
        return combination_value(worth, similarity, list(subset), 0.1)

    subsets = [s for size in (1, 2, 3) for s in itertools.combinations(range(3), size)]
    best = max(map(value, subsets))
    assert value(map(names.index, found.names)) >= (1 - 1 / math.e) * best - 1e-9 or best < 0
    # A chosen source's gain is what it added to f(A) alone.
    chosen_so_far: list[int] = []
    for name in found.names:
        before = combination_value(np.array(relevance), similarity, chosen_so_far, 0.1)
        chosen_so_far.append(names.index(name))
        after = combination_value(np.array(relevance), similarity, chosen_so_far, 0.1)
        assert found.gains[name] == pytest.approx(after - before, abs=1e-9)
    assert list(found.gains) == names


# -- reports -----------------------------------------------------------------------------------------


def test_reports_tell_what_each_source_contributed_also_those_left_out(reranker: GradReranker) -> None:
    result = ranked(reranker, source_choice="gradient", max_sources=1, top_n=1)
    found = {s.name: (s.utility, s.share) for s in result.sources}
    assert found == {
        "wiki": (2.5, pytest.approx(2.5 / 3.5)),
        "web": (1.0, pytest.approx(1.0 / 3.5)),
        "spam": (-1.5, 0.0),
        "news": (-0.25, 0.0),
    }
    assert math.fsum(u for u, _ in found.values()) == pytest.approx(sum(UTILITIES.values()))


def test_a_source_that_was_not_read_says_nothing(reranker: GradReranker) -> None:
    result = ranked(reranker, source_choice="embedding", max_sources=1)
    found = {s.name: s for s in result.sources}
    assert (found["spam"].utility, found["wiki"].utility, found["wiki"].share) == (-1.5, None, None)
    empty = reranker.rerank("q", {"a": [], "b": []})
    assert all(s.utility is None for s in empty.sources)


def test_agreement_is_that_of_the_token_utilities() -> None:
    reranker = GradReranker(tiny())
    sources = {"a": DOCUMENTS[:2], "b": DOCUMENTS[1:4], "c": DOCUMENTS[4:]}
    result = reranker.rerank(QUERY, sources, select_sources=False, source_agreement=True)
    found_by = [list(d.sources) for d in result]
    layout = reranker.generator.layout
    documents = layout.documents([(None, d.text) for d in result])
    job = ScoringJob(QUERY, documents, layout.query_continuation(QUERY), reranker.generator)
    expected = source_agreement(found_by, token_utilities(job))
    for s in result.sources:
        assert dict(s.agreement) == pytest.approx(expected.cosines[s.name], abs=1e-3)
        assert s.name not in s.agreement
    assert result.details["source_volume"] == pytest.approx(expected.volume, abs=1e-3)
    assert json.loads(json.dumps(result.to_dict()))["sources"][0]["agreement"].keys() == {"b", "c"}
    cheap = reranker.rerank(QUERY, sources, select_sources=False)
    assert all(s.agreement == {} for s in cheap.sources) and "source_volume" not in cheap.details
    assert cheap.tokens["question"] < result.tokens["question"]


def test_one_source_has_nobody_to_agree_with() -> None:
    result = GradReranker(tiny()).rerank(QUERY, DOCUMENTS, source_agreement=True)
    assert result.sources[0].agreement == {} and "source_volume" not in result.details
    assert result.sources[0].utility == pytest.approx(sum(d.score for d in result), abs=1e-4)


# -- calibration -------------------------------------------------------------------------------------


def labelled(n: int = 12) -> tuple[list[str], list[dict[str, list[Document]]], list[list[str]]]:
    rng = np.random.default_rng(0)
    queries = [f"What about number {i}?" for i in range(n)]
    sources = [{"a": [Document(f"{d} {i}", id=f"{i}-{j}") for j, d in enumerate(DOCUMENTS)]} for i in range(n)]
    return queries, sources, [[f"{i}-{j}" for j in rng.choice(5, 2, replace=False)] for i in range(n)]


@pytest.mark.parametrize("method", ["isotonic", "platt"])
def test_C16_min_score_is_a_probability_once_calibrated(method: str) -> None:
    reranker = GradReranker(tiny())
    queries, sources, gold = labelled()
    curve = reranker.calibrate_scores(queries, sources, gold, method=method, min_score=1e9, top_n=2)
    assert (curve.n_documents, curve.n_gold, curve.scorer, curve.target) == (60, 24, "gates+likelihood+links", "query")
    full = reranker.rerank(queries[0], sources[0], calibration=curve)
    probabilities = [d.scores["probability"] for d in full]
    assert probabilities == pytest.approx(curve.probabilities([d.score for d in full]))
    assert probabilities == sorted(probabilities, reverse=True)
    for bound in (0.0, probabilities[2], 1.0):
        cut = reranker.rerank(queries[0], sources[0], calibration=curve, min_score=bound)
        assert [d.text for d in cut] == [d.text for d, p in zip(full, probabilities, strict=True) if p >= bound]
        assert {d.reason for d in cut.dropped} <= {"min_score"}
    assert "probability" not in reranker.rerank(queries[0], sources[0])[0].scores


def test_a_calibration_of_another_scorer_or_target_is_refused_before_the_model_is_asked() -> None:
    reranker = GradReranker(tiny())
    curve = reranker.calibrate_scores(*labelled())
    with pytest.raises(InvalidArgumentError, match=r"calibration was fitted on scorer 'gates\+likelihood\+links'"):
        reranker.rerank(QUERY, DOCUMENTS, calibration=curve, scorer="ablation")
    with pytest.raises(InvalidArgumentError, match="min_score must be a probability between 0 and 1"):
        GradReranker(tiny(), calibration=curve, min_score=-0.5)
    with pytest.raises(InvalidTypeError, match="calibration must be a ScoreCalibration or None"):
        GradReranker(tiny(), calibration="isotonic")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"source_choice": "gradients"}, "did you mean 'gradient'"), ({"source_choice": None}, "source_choice")],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        GradReranker(tiny(), **settings)
    with pytest.raises(InvalidTypeError, match="source_agreement must be a bool"):
        GradReranker(tiny(), source_agreement=1)  # type: ignore[arg-type]


def test_what_agreement_and_coverage_both_read_passes_through_the_model_once() -> None:
    reranker = GradReranker(tiny(), encoder=encoder)
    sources = {"web": DOCUMENTS[:2], "wiki": DOCUMENTS[2:]}
    asked: dict[str, Any] = {"select_sources": False, "selection": "coverage", "top_n": 2}
    alone = reranker.rerank(QUERY, sources, **asked)
    both = reranker.rerank(QUERY, sources, **asked, source_agreement=True)
    assert [d.text for d in both] == [d.text for d in alone]
    assert both.tokens["question"] == alone.tokens["question"] and both.sources[0].agreement
    # Beside fewer documents the words are read anew, so that asking how sources agree changes no choice.
    fewer: dict[str, Any] = {"source_choice": "gradient", "max_sources": 1, "selection": "coverage", "top_n": 2}
    told, untold = (reranker.rerank(QUERY, sources, **fewer, source_agreement=told) for told in (True, False))
    assert [d.text for d in told] == [d.text for d in untold] and not all(s.selected for s in told.sources)
