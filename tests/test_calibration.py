"""Probabilities from scores: against scikit-learn, against the truth of synthetic data, and in files."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.isotonic import IsotonicRegression
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import (
    Document,
    DroppedDocument,
    GradReranker,
    Provenance,
    RankedDocument,
    RerankResult,
    ScoreCalibration,
    Scores,
    ScoringJob,
)
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.reliability import expected_calibration_error, reliability_curve

METHODS = ["isotonic", "platt"]


def result_of(scores: list[float], *, cut: int = 0, scorer: str = "gates", target: str = "query") -> RerankResult:
    """Documents d0, d1, ... with these scores; the last ``cut`` of them were cut."""
    found = [(f"text {i}", (Provenance("web", i + 1, id=f"d{i}"),), score) for i, score in enumerate(scores)]
    kept, dropped = found[: len(found) - cut], found[len(found) - cut :]
    return RerankResult(
        "q",
        tuple(RankedDocument(t, p[0].id, None, {}, s, i + 1, p) for i, (t, p, s) in enumerate(kept)),
        (),
        tuple(DroppedDocument(Document(t, id=p[0].id), p, "top_n", s) for t, p, s in dropped),
        scorer=scorer,
        target=target,
    )


def simulated(n_queries: int, seed: int, *, shift: float = 0.0) -> tuple[list[RerankResult], list[list[str]], Any, Any]:
    """Scores drawn around 0, or around a mean of each query, and gold by a known logistic curve of them."""
    rng = np.random.default_rng(seed)
    results, gold, scores, labels = [], [], [], []
    for _ in range(n_queries):
        own = rng.normal(0, 1, 10)
        found = rng.random(10) < 1 / (1 + np.exp(1.0 - 2.5 * own))
        moved = (own + rng.normal(0, shift)).tolist()
        results.append(result_of(moved, cut=3))
        gold.append([f"d{i}" for i in np.flatnonzero(found)])
        scores.append(moved)
        labels.append(found)
    return results, gold, scores, labels


@pytest.mark.parametrize("method", METHODS)
def test_on_new_questions_what_is_predicted_comes_true(method: str) -> None:
    results, gold, _, _ = simulated(300, seed=0)
    _, _, scores, labels = simulated(300, seed=1)
    curve = ScoreCalibration.fit(results, gold, method=method)
    predicted = np.concatenate([curve.probabilities(own) for own in scores])
    assert curve.n_documents == 3000
    assert expected_calibration_error(predicted, np.concatenate(labels)) < 0.03
    for each in reliability_curve(predicted, np.concatenate(labels), bins=5):
        assert each.observed == pytest.approx(each.predicted, abs=0.08)


def test_platt_finds_the_curve_that_made_the_labels() -> None:
    results, gold, _, _ = simulated(500, seed=2)
    a, b, c = ScoreCalibration.fit(results, gold, method="platt").coefficients
    # Scores of a query have a spread of about 1, so score and standardised score share the slope of 2.5.
    assert a + b == pytest.approx(2.5, abs=0.3)
    assert c == pytest.approx(-1.0, abs=0.2)


def test_platt_sees_through_scores_that_shift_from_query_to_query() -> None:
    fits = {m: ScoreCalibration.fit(*simulated(300, seed=3, shift=5.0)[:2], method=m) for m in METHODS}
    _, _, scores, labels = simulated(300, seed=4, shift=5.0)
    error = {
        m: np.mean((np.concatenate([f.probabilities(own) for own in scores]) - np.concatenate(labels)) ** 2)
        for m, f in fits.items()
    }
    assert error["platt"] < 0.8 * error["isotonic"]


def test_isotonic_is_that_of_scikit_learn() -> None:
    results, gold, scores, labels = simulated(40, seed=5)
    curve = ScoreCalibration.fit(results, gold, method="isotonic")
    oracle = IsotonicRegression(out_of_bounds="clip").fit(np.concatenate(scores), np.concatenate(labels))
    asked = np.linspace(-5, 5, 101)
    assert curve.probabilities(asked.tolist()) == pytest.approx(oracle.predict(asked).tolist(), abs=1e-9)


@pytest.mark.parametrize("method", METHODS)
@given(scores=st.lists(st.floats(-20, 20), min_size=1, max_size=12), bound=st.floats(0, 1))
def test_within_a_query_more_score_is_never_less_probable_and_the_bound_cuts_there(
    method: str, scores: list[float], bound: float
) -> None:
    curve = CURVES[method]
    probabilities = curve.probabilities(scores)
    ranked = sorted(zip(scores, probabilities, strict=True))
    assert all(p <= q + 1e-12 for (_, p), (_, q) in zip(ranked, ranked[1:], strict=False))
    assert all(0 <= p <= 1 for p in probabilities)
    least = curve.least_score(scores, bound)
    assert [s >= least for s in scores] == [p >= bound for p in probabilities] or math.isclose(
        min(abs(p - bound) for p in probabilities), 0.0, abs_tol=1e-9
    )


CURVES = {m: ScoreCalibration.fit(*simulated(60, seed=6, shift=1.0)[:2], method=m) for m in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_tell_nothing_or_the_opposite_give_the_share_of_gold(method: str) -> None:
    rng = np.random.default_rng(7)
    results = [result_of(rng.normal(0, 1, 10).tolist()) for _ in range(100)]
    worst = [[f"d{i}" for i in np.argsort([d.score for d in r])[:2]] for r in results]
    curve = ScoreCalibration.fit(results, worst, method=method)
    assert curve.probabilities([-1.0, 0.0, 2.0]) == pytest.approx([0.2] * 3, abs=0.02)


def test_gold_is_found_by_the_id_of_any_occurrence_and_by_text_kept_or_cut() -> None:
    shared = RankedDocument("a", "x", None, {}, 2.0, 1, (Provenance("web", 1, id="x"), Provenance("wiki", 2, id="y")))
    result = RerankResult("q", (shared,), (), result_of([0.5, -1.0], cut=2).dropped, scorer="gates", target="query")
    for gold, n in ((["y"], 1), (["a"], 1), (["x", "y", "a"], 1), (["x", "d1"], 2), (["x", "text 0"], 2)):
        assert ScoreCalibration.fit([result], [gold]).n_gold == n


@pytest.mark.parametrize("method", METHODS)
def test_it_survives_files_copies_and_pickles(method: str) -> None:
    curve = CURVES[method]
    for twin in (
        ScoreCalibration.from_json(curve.to_json()),
        pickle.loads(pickle.dumps(curve)),
        copy.deepcopy(curve),
    ):
        assert twin == curve and hash(twin) == hash(curve)
        assert twin.probabilities([0.1, 0.7]) == curve.probabilities([0.1, 0.7])
    assert json.loads(curve.to_json())["method"] == method


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "{}",
        '{"knots": [], "coefficients": [0, 0]}',
        json.dumps({**json.loads(CURVES["platt"].to_json()), "coefficients": [-1, 0, 0]}),
        json.dumps({**json.loads(CURVES["isotonic"].to_json()), "knots": []}),
        json.dumps({**json.loads(CURVES["isotonic"].to_json()), "knots": [[0, 0.5], [1, 0.2]]}),
        json.dumps({**json.loads(CURVES["isotonic"].to_json()), "knots": [[0, 0.5], [1, 1.2]]}),
        json.dumps({**json.loads(CURVES["isotonic"].to_json()), "method": "magic"}),
    ],
)
def test_a_text_that_is_no_calibration_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="this is no calibration"):
        ScoreCalibration.from_json(text)


@pytest.mark.parametrize(
    ("queries", "gold", "message"),
    [
        ([QUERY, QUERY], [["x"]], "gold has 1 collections for 2 queries"),
        ([QUERY], None, "gold must be a list with the ids or texts of each query, got None"),
        ([QUERY], [3], r"gold\[0\] must be a collection of ids or texts, got int 3"),
        ([QUERY, QUERY], [["x"], ["y", ["z"]]], r"gold\[1\] must hold ids or texts, got list \['z'\]"),
        ([QUERY, ""], [["x"], []], r"queries\[1\] must hold some text"),
        ([], [], "at least one query"),
    ],
)
def test_what_to_learn_from_is_checked_before_anything_is_ranked(queries: Any, gold: Any, message: str) -> None:
    reranker, counted = GradReranker(tiny()), list[int]()
    with pytest.raises((InvalidArgumentError, InvalidTypeError), match=message):
        reranker.calibrate_scores(queries, DOCUMENTS, gold, scorer=_Seen(counted))
    assert not counted


class _Seen:
    name = "seen"

    def __init__(self, counted: list[int]) -> None:
        self.counted = counted

    def score(self, job: ScoringJob) -> Scores:
        self.counted.append(1)
        return Scores([float(len(d.text)) for d in job.documents])


def test_a_calibration_of_the_wrong_length_says_so() -> None:
    with pytest.raises(InvalidArgumentError, match=r"coefficients must be three numbers, got \(1, 2\)"):
        ScoreCalibration(method="platt", scorer="s", target="query", coefficients=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="it has no 'knots'"):
        ScoreCalibration.from_dict({})


def test_what_cannot_be_learned_from_is_refused() -> None:
    results = [result_of([1.0, 0.0])]
    with pytest.raises(InvalidArgumentError, match="0 of 2 scored documents are gold.* for instance 'nobody'"):
        ScoreCalibration.fit(results, [["nobody"]])
    with pytest.raises(InvalidArgumentError, match="2 of 2 scored documents are gold"):
        ScoreCalibration.fit(results, [["d0", "d1"]])
    with pytest.raises(InvalidArgumentError, match="gold has 0 collections for 1 queries"):
        ScoreCalibration.fit(results, [])
    with pytest.raises(InvalidArgumentError, match="at least one query to learn from"):
        ScoreCalibration.fit([], [])
    with pytest.raises(InvalidArgumentError, match="results must share one scorer and target"):
        ScoreCalibration.fit([*results, result_of([1.0], scorer="mixture")], [["d0"], []])
    with pytest.raises(InvalidTypeError, match=r"gold\[0\] must be a collection of ids or texts, got str 'd0'"):
        ScoreCalibration.fit(results, ["d0"])
    with pytest.raises(InvalidArgumentError, match="method must be one of 'isotonic', 'platt'"):
        ScoreCalibration.fit(results, [["d0"]], method="beta")


def test_scores_of_another_scorer_or_target_are_refused() -> None:
    CURVES["platt"].check_fits("gates", "query")
    with pytest.raises(InvalidArgumentError, match="fitted on scorer 'gates' and target 'query', not on scorer 'abl"):
        CURVES["platt"].check_fits("ablation", "query")


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50), st.integers(1, 12))
def test_bins_partition_the_documents_and_the_error_is_a_weighted_mean(
    pairs: list[tuple[float, bool]], bins: int
) -> None:
    probabilities, labels = zip(*pairs, strict=True)
    curve = reliability_curve(probabilities, labels, bins=bins)
    assert sum(b.n for b in curve) == len(pairs)
    assert sum(b.n * b.predicted for b in curve) == pytest.approx(sum(probabilities))
    assert sum(b.n * b.observed for b in curve) == pytest.approx(sum(labels))
    error = expected_calibration_error(probabilities, labels, bins=bins)
    assert 0 <= error <= 1
    assert error >= abs(np.mean(probabilities) - np.mean(labels)) - 1e-9


def test_perfect_and_worst_predictions() -> None:
    assert expected_calibration_error([0.0, 1.0], [0, 1]) == 0.0
    assert expected_calibration_error([1.0, 0.0], [0, 1]) == 1.0


@pytest.mark.parametrize(("p", "y"), [([0.5], [1, 0]), ([1.5], [1]), ([float("nan")], [1]), ([], [])])
def test_probabilities_that_are_none_are_refused(p: list[float], y: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="probabilities"):
        expected_calibration_error(p, y)
