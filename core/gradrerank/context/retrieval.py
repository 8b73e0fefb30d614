"""What retrieval said of the candidates, on a scale that no source can stretch.

Ranks and scores of retrievers are a noisy signal of relevance. By ranks, every source counts alike
(reciprocal rank fusion, Cormack et al. 2009). By scores, those of each source are first

* turned, where they grow along the source's own list: then they are distances;
* centred at their median, divided by their spread about it and bent into -1 to 1, so that neither a
  constant factor nor one far-off score changes what the others say; a source whose scores are all
  equal, or missing, says nothing;
* shrunk by how far the source agrees with the model on this query: the rank correlation of its
  scores with the utilities, 0 where it is negative, times k / (k + 4) for k scores. A source of
  noise is correlated with nothing and fades.

Ranks never stand in for scores that are missing: where no source gives any, ``"score"`` adds nothing, and
the reranker warns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gradrerank.documents import Provenance
    from gradrerank.sources.pool import Candidate

Numbers = NDArray[np.float64]

FUSIONS = ("auto", "off", "rrf", "score")
# The constant of reciprocal rank fusion in its paper.
_RRF = 60
# Scores that a correlation is worth as much as no knowledge of it.
_DOUBT = 4


def retrieval_evidence(
    kind: str, candidates: Sequence[Candidate], utilities: Sequence[float], weights: Mapping[str, float] | None
) -> Numbers:
    """What retrieval says of each candidate, about zero.

    Args:
        kind: ``"rrf"`` (ranks) or ``"score"`` (scores).
        candidates: n candidates with their provenance.
        utilities: What the model said of them.
        weights: Weights of the sources between 0 and 1, or None.

    Returns:
        [n] numbers without a unit, of a spread of about 1; zeros where retrieval says nothing.

    Raises:
        KeyError: When there is no fusion of that kind; settings are checked before.
    """
    return {"rrf": _by_ranks, "score": _by_scores}[kind](candidates, utilities, weights)


def _by_ranks(
    candidates: Sequence[Candidate], utilities: Sequence[float], weights: Mapping[str, float] | None
) -> Numbers:
    del utilities
    fused = np.array([sum(_weight(weights, p.source) / (_RRF + p.rank) for p in _first_of_each(c)) for c in candidates])
    spread = fused.std()
    return (fused - fused.mean()) / spread if spread > 1e-12 else np.zeros(len(candidates))


def _by_scores(
    candidates: Sequence[Candidate], utilities: Sequence[float], weights: Mapping[str, float] | None
) -> Numbers:
    found: dict[str, list[tuple[int, int, float]]] = {}
    for i, candidate in enumerate(candidates):
        for p in _first_of_each(candidate):
            if p.score is not None and np.isfinite(p.score):
                found.setdefault(p.source, []).append((i, p.rank, float(p.score)))
    total, said = np.zeros(len(candidates)), np.asarray(utilities, dtype=float)
    for source, entries in sorted(found.items()):
        at = np.array([i for i, _, _ in entries])
        ranks, scores = (np.array([entry[k] for entry in entries], dtype=float) for k in (1, 2))
        bent = _bent(-scores if rank_correlation(scores, ranks) > 0 else scores)
        trust = max(0.0, rank_correlation(bent, said[at])) * len(at) / (len(at) + _DOUBT)
        total[at] += _weight(weights, source) * trust * 2 * bent
    return total


def _first_of_each(candidate: Candidate) -> list[Provenance]:
    """The best occurrence of a candidate in each of its sources."""
    return list({p.source: p for p in reversed(candidate.provenance)}.values())


def _weight(weights: Mapping[str, float] | None, source: str) -> float:
    return 1.0 if weights is None else weights[source]


def _bent(scores: Numbers) -> Numbers:
    """Scores about their median, in units of twice their spread, bent into -1 to 1."""
    largest = float(np.abs(scores).max())
    if largest == 0:
        return np.zeros(len(scores))
    scaled = scores / largest  # so that scores of any size can be subtracted and squared
    centred = scaled - np.median(scaled)
    spread = 1.4826 * float(np.median(np.abs(centred))) or float(centred.std())
    if spread <= 1e-9:
        return np.zeros(len(scores))
    return np.asarray(np.tanh(centred / (2 * spread)))


def rank_correlation(one: Numbers, other: Numbers) -> float:
    """Spearman's correlation with average ranks for ties; 0 where one side is constant.

    Args:
        one: [k] numbers.
        other: [k] numbers.

    Example:
        >>> rank_correlation(np.array([1.0, 2.0, 5.0]), np.array([3.0, 4.0, 9.0]))
        1.0
    """
    a, b = _ranks(one), _ranks(other)
    a, b = a - a.mean(), b - b.mean()
    size = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return round(float((a * b).sum()) / size, 12) if size > 0 else 0.0


def _ranks(values: Numbers) -> Numbers:
    """Places from 1, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=float)
