"""Weights of sources: how far the caller trusts each of them, before anything was read.

A weight acts as the prior probability of its source. A utility is a difference of mean
log-likelihoods over the T tokens of the target, so by Bayes' rule the weight adds

    log(w) / T,    w = the largest weight among the sources that found the document

with weights scaled so that the largest is 1: equal weights change nothing, a smaller one can only
lower a score, and a source of weight 0 is left out. In the retrieval order, the weight multiplies
the source's term of reciprocal rank fusion.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.validation import check_number

Weights = Mapping[str, float] | Sequence[float]


def check_weights(weights: Any, names: Collection[str] | None = None) -> dict[str, float] | None:
    """Weights by source name, scaled so that the largest is 1.

    Args:
        weights: One weight from 0 for each source, by name or in the order of the sources; a source
            that a mapping leaves out has the largest weight. None for no weights.
        names: The sources, in order; None checks only what can be checked without them.

    Returns:
        A weight between 0 and 1 for every source, or None where there are no weights.

    Raises:
        InvalidArgumentError: When a weight is negative or not finite, all are 0, a name is not that of a
            source, or their number differs from that of the sources.
        InvalidTypeError: When weights is neither a mapping nor a sequence.

    Example:
        >>> check_weights({"wiki": 3, "web": 1.5}, ["wiki", "web", "notes"])
        {'wiki': 1.0, 'web': 0.5, 'notes': 1.0}
    """
    if weights is None:
        return None
    if isinstance(weights, (str, bytes)) or not isinstance(weights, (Mapping, Sequence)):
        raise InvalidTypeError(f"weights must map source names to numbers, got {type(weights).__name__} {weights!r}")
    if not isinstance(weights, Mapping):
        if names is None:
            names = [str(i) for i in range(len(weights))]
        if len(weights) != len(names):
            raise InvalidArgumentError(
                f"weights has {len(weights)} numbers for {len(names)} sources: {', '.join(names)}"
            )
        weights = dict(zip(names, weights, strict=True))
    checked = {name: check_number(f"weights[{name!r}]", weight, minimum=0.0) for name, weight in weights.items()}
    unknown = [] if names is None else sorted(set(checked) - set(names))
    if unknown:
        raise InvalidArgumentError(
            f"weights names {unknown[0]!r}, which is no source; sources are {', '.join(names or ())}"
        )
    # A source that is not named is trusted like the most trusted one that is, or fully where none is.
    largest = max(checked.values(), default=0.0) or 1.0
    scaled = {name: checked.get(name, largest) / largest for name in (checked if names is None else names)}
    # One weight of 0 without the sources beside it may be meant: it switches that source off.
    if len(scaled) > (names is None) and not any(scaled.values()):
        raise InvalidArgumentError(f"weights must not all be 0, got {dict(weights)!r}")
    return scaled


def log_prior(sources: Collection[str], weights: Mapping[str, float] | None) -> float:
    """Log of the largest weight among some sources, in nats; 0 without weights.

    Args:
        sources: Names of the sources that found a document; at least one has a weight above 0.
        weights: Weights as :func:`check_weights` gives them.

    Example:
        >>> log_prior(["web"], {"wiki": 1.0, "web": 1.0})
        0.0
    """
    if weights is None:
        return 0.0
    return math.log(max(weights[name] for name in sources))
