"""From utilities to probabilities: how likely is a document of this score worth reading?

A utility is in nats of one query's loss, so the same bound cuts deep for one query and not at all for
another. On questions with known gold documents, :meth:`ScoreCalibration.fit` learns the probability that
a document is worth reading:

- ``"isotonic"``: the best rising step function of the score alone (Zadrozny and Elkan, 2002). It assumes
  nothing but that more is better, and wants several hundred documents.
- ``"platt"``: a logistic curve in the score and in the score standardised within its query, on Platt's
  smoothed labels (Platt, "Probabilistic outputs for support vector machines", 1999). It can say that a
  document stands out among those found with it, and does with a few dozen.

Either way a higher score never means a lower probability among the documents of one query, so ``min_score``
on the probability cuts the same ranking, only elsewhere. A calibration holds for the scorer, target, model
and kind of documents that it was fitted on; scorer and target are checked, the rest is yours to keep.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.validation import check_choice, check_number

if TYPE_CHECKING:
    from gradrerank.documents import RerankResult

METHODS = ("isotonic", "platt")
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ScoreCalibration:
    """The probability that a document is worth reading, by its score.

    Args:
        method: ``"isotonic"`` or ``"platt"``.
        scorer: Name of the scorer whose scores it takes.
        target: Kind of target: ``"query"``, ``"draft"`` or ``"reference"``.
        knots: For ``"isotonic"``, pairs of score and probability, both rising; straight lines in between,
            and the first and last probability beyond.
        coefficients: For ``"platt"``, the factors of the score and of the standardised score, both >= 0, and
            the intercept.
        n_documents: Documents that it was fitted on.
        n_gold: How many of them were worth reading.

    Raises:
        InvalidArgumentError: When a value cannot be used.

    Example:
        >>> curve = ScoreCalibration(method="isotonic", scorer="gates", target="query", knots=((0, 0.1), (1, 0.9)))
        >>> [round(p, 2) for p in curve.probabilities([-1.0, 0.5, 2.0])]
        [0.1, 0.5, 0.9]
        >>> ScoreCalibration.from_json(curve.to_json()) == curve
        True
    """

    method: str
    scorer: str
    target: str
    knots: tuple[tuple[float, float], ...] = ()
    coefficients: tuple[float, float, float] = (0.0, 0.0, 0.0)
    n_documents: int = 0
    n_gold: int = 0

    def __post_init__(self) -> None:
        """Check the numbers, which may come from a file."""
        check_choice("method", self.method, METHODS)
        knots = tuple((check_number("knots", x), check_number("knots", y)) for x, y in self.knots)
        if len(self.coefficients) != 3:
            raise InvalidArgumentError(f"coefficients must be three numbers, got {self.coefficients!r}")
        a, b, c = (check_number("coefficients", value) for value in self.coefficients)
        rising = all(x1 < x2 and y1 <= y2 for (x1, y1), (x2, y2) in zip(knots, knots[1:], strict=False))
        if not rising or any(not 0 <= y <= 1 for _, y in knots):
            raise InvalidArgumentError(f"knots must rise, with probabilities between 0 and 1, got {self.knots!r}")
        if self.method == "isotonic" and not knots:
            raise InvalidArgumentError("knots must hold at least one pair for method 'isotonic'")
        if a < 0 or b < 0:
            raise InvalidArgumentError(f"coefficients of scores must be >= 0, got {self.coefficients!r}")
        object.__setattr__(self, "knots", knots)
        object.__setattr__(self, "coefficients", (a, b, c))

    @classmethod
    def fit(
        cls, results: Sequence[RerankResult], gold: Sequence[Collection[str]], *, method: str = "isotonic"
    ) -> ScoreCalibration:
        """Learn from questions whose gold documents are known (needs scikit-learn).

        Every document that was scored counts, kept or cut, but for those of sources that were not chosen.

        Args:
            results: Results of n queries, all by the same scorer on the same kind of target.
            gold: For each of them the ids, or the texts, of the documents worth reading.
            method: ``"isotonic"`` or ``"platt"``.

        Raises:
            InvalidArgumentError: When the numbers differ, scorers or targets are mixed, or all scored
                documents are gold or none is.
            InvalidTypeError: When the gold of a query is a str.
        """
        wanted = check_gold(gold, len(results), method)
        kinds = sorted({(r.scorer, r.target) for r in results})
        if len(kinds) != 1:
            raise InvalidArgumentError(f"results must share one scorer and target, got {kinds}")
        queries = [_labelled(result, ids) for result, ids in zip(results, wanted, strict=True)]
        features = np.concatenate([_features(scores) for scores, _ in queries])
        labels = np.concatenate([found for _, found in queries])
        if labels.size == 0 or labels.all() or not labels.any():
            raise InvalidArgumentError(
                f"{int(labels.sum())} of {labels.size} scored documents are gold; a calibration needs both kinds, and "
                f"gold names documents by id or text{_first_of(wanted)}"
            )
        fitted: dict[str, Any] = (
            {"knots": _isotonic(features[:, 0], labels)}
            if method == "isotonic"
            else {"coefficients": _platt(features, labels)}
        )
        (scorer, target), n_gold = kinds[0], int(labels.sum())
        return cls(method=method, scorer=scorer, target=target, n_documents=labels.size, n_gold=n_gold, **fitted)

    def probabilities(self, scores: Sequence[float]) -> list[float]:
        """The probability of each document of one query.

        Args:
            scores: Scores of all documents of the query: ``"platt"`` compares them.
        """
        features = _features(np.asarray(scores, dtype=np.float64))
        if self.method == "isotonic":
            x, y = zip(*self.knots, strict=True)
            return [float(p) for p in np.interp(features[:, 0], x, y)]
        a, b, c = self.coefficients
        return [float(p) for p in _logistic(features @ np.array([a, b]) + c)]

    def least_score(self, scores: Sequence[float], least_probability: float) -> float:
        """The lowest of the scores of one query that reaches a probability.

        Args:
            scores: Scores of all documents of the query.
            least_probability: The bound, itself included.

        Returns:
            That score; where none reaches the bound, a number just above all scores.
        """
        pairs = zip(scores, self.probabilities(scores), strict=True)
        reached = [score for score, probability in pairs if probability >= least_probability]
        return min(reached, default=math.nextafter(max(scores, default=0.0), math.inf))

    def check_fits(self, scorer: str, target: str) -> None:
        """Refuse scores of another kind.

        Raises:
            InvalidArgumentError: When scorer or target differ from those that it was fitted on.
        """
        if (scorer, target) != (self.scorer, self.target):
            raise InvalidArgumentError(
                f"calibration was fitted on scorer {self.scorer!r} and target {self.target!r}, not on scorer "
                f"{scorer!r} and target {target!r}; fit another one, or pass calibration=None"
            )

    def to_dict(self) -> dict[str, Any]:
        """As plain strings, numbers and lists."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {**plain, "knots": [list(pair) for pair in self.knots], "coefficients": list(self.coefficients)}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> ScoreCalibration:
        """Read what :meth:`to_dict` wrote.

        Raises:
            InvalidArgumentError: When it is nothing of the kind.
        """
        try:
            knots = tuple((x, y) for x, y in fields["knots"])
            return cls(**{**fields, "knots": knots, "coefficients": tuple(fields["coefficients"])})
        except KeyError as error:
            raise InvalidArgumentError(f"this is no calibration: it has no {error}") from error
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"this is no calibration: {error}") from error

    def to_json(self) -> str:
        """As JSON text, for a file."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> ScoreCalibration:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidArgumentError: When it is no such text.
        """
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidArgumentError(f"this is no calibration: {error}") from error
        return cls.from_dict(fields)

    def __repr__(self) -> str:
        """One short line."""
        fitted = f"{self.n_gold} gold of {self.n_documents} documents"
        return f"ScoreCalibration({self.method!r}, scorer={self.scorer!r}, target={self.target!r}, {fitted})"


def check_gold(gold: Any, n_queries: int, method: str) -> list[frozenset[str]]:
    """What a calibration is fitted on and how, checked before anything is ranked for it.

    Args:
        gold: What the caller passed as gold: for each query ids or texts of documents.
        n_queries: Number of queries.
        method: What the caller passed as method.

    Raises:
        InvalidArgumentError: When there is no query, the numbers differ, or there is no such method.
        InvalidTypeError: When gold is no sequence of collections of strings; the message says where.
    """
    check_choice("method", method, METHODS)
    if isinstance(gold, str) or not isinstance(gold, Sequence):
        raise InvalidTypeError(f"gold must be a list with the ids or texts of each query, got {gold!r}")
    if len(gold) != n_queries:
        raise InvalidArgumentError(f"gold has {len(gold)} collections for {n_queries} queries")
    if not n_queries:
        raise InvalidArgumentError("there must be at least one query to learn from, got none")
    for i, named in enumerate(gold):
        if isinstance(named, str) or not isinstance(named, Collection):
            raise InvalidTypeError(
                f"gold[{i}] must be a collection of ids or texts, got {type(named).__name__} {named!r}"
            )
        for each in named:
            if not isinstance(each, str):
                raise InvalidTypeError(f"gold[{i}] must hold ids or texts, got {type(each).__name__} {each!r} in it")
    return [frozenset(named) for named in gold]


def _first_of(gold: Sequence[frozenset[str]]) -> str:
    """One of the names that were given, for a message."""
    first = min((name for named in gold for name in named), default=None)
    return "" if first is None else f", for instance {first[:60]!r}"


def _labelled(result: RerankResult, wanted: frozenset[str]) -> tuple[Vector, NDArray[np.bool_]]:
    """Scores of all documents of a query that were scored, and which of them are gold."""
    scored = [(d.score, d.text, d.provenance) for d in result.documents]
    cut = [d for d in result.dropped if d.reason != "source_not_selected"]
    scored += [(d.score, d.document.text, d.provenance) for d in cut if d.score is not None]
    found = [text in wanted or any(p.id in wanted for p in provenance) for _, text, provenance in scored]
    return np.array([score for score, _, _ in scored], dtype=np.float64), np.array(found, dtype=bool)


def _features(scores: Vector) -> Vector:
    """[n, 2] the scores of one query, as they are and standardised; no spread, no difference."""
    spread = scores.std() if scores.size else 0.0
    standard = (scores - scores.mean()) / spread if spread > 0 else np.zeros_like(scores)
    return np.stack([scores, standard], axis=1)


def _isotonic(scores: Vector, labels: NDArray[np.bool_]) -> tuple[tuple[float, float], ...]:
    from sklearn.isotonic import IsotonicRegression

    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, increasing=True, out_of_bounds="clip").fit(scores, labels)
    x, y = fitted.X_thresholds_.astype(float), fitted.y_thresholds_.astype(float)
    return tuple(zip(x.tolist(), np.clip(y, 0.0, 1.0).tolist(), strict=True))


def _platt(features: Vector, labels: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Factors >= 0 and intercept: a feature that would count the wrong way round does not count."""
    from sklearn.linear_model import LogisticRegression

    n_gold = int(labels.sum())
    # Platt's smoothed labels: each document counts as both kinds, by a little.
    up = np.where(labels, (n_gold + 1) / (n_gold + 2), 1 / (labels.size - n_gold + 2))
    both, kinds, weights = np.tile(features, (2, 1)), np.repeat([1, 0], labels.size), np.concatenate([up, 1 - up])
    scale = np.where(features.std(0) > 0, features.std(0), 1.0)
    used, factors = [0, 1], np.zeros(2)
    while used:
        model = LogisticRegression(C=1e6, max_iter=1000).fit(both[:, used] / scale[used], kinds, weights)
        if (model.coef_[0] >= 0).all():
            factors[used] = model.coef_[0] / scale[used]
            return float(factors[0]), float(factors[1]), float(model.intercept_[0])
        used.pop(int(np.argmin(model.coef_[0])))
    return 0.0, 0.0, math.log(up.sum() / (1 - up).sum())


def _logistic(values: Vector) -> Vector:
    # By tanh, which does not overflow.
    result: Vector = 0.5 * (1.0 + np.tanh(0.5 * values))
    return result
