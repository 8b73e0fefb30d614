"""What each source contributed: its share of the utilities, and whether sources pull the same way.

The utility of a source is the sum of the utilities of its documents. A document that several sources
found is shared equally among them, so the utilities of all sources add up to that of all documents:

    U_s = sum over i found by s of  phi_i / (number of sources that found i)

Two sources agree as far as they help the same words. With v_s[t] = the sum, shared in the same way, of
the utilities of their documents for token t of the target (:mod:`gradrerank.scorers.token_utilities`),

    agreement(s, s') = cos(v_s, v_s')         1: they help and hurt the same words;  -1: one hurts where the other helps
    volume           = sqrt(det G)            G the cosines of all sources

The volume is that of the box which the sources' directions span: 1 where none says anything of another,
0 where one direction follows from the others, because they repeat or because they oppose each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradrerank.errors import ScoringError


@dataclass(frozen=True, slots=True)
class Contribution:
    """What one source contributed.

    Args:
        utility: The sum of its shares of the documents' utilities, in nats.
        share: Its share of all positive utility, between 0 and 1; 0 where there is none.
    """

    utility: float
    share: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether sources pull the same way.

    Args:
        cosines: For each source the cosine with each of the others. A source whose documents do nothing to
            any token has no direction, and is left out.
        volume: sqrt(det G) of the sources with a direction; None where there are fewer than two. It is 0
            where there are more of them than tokens.
    """

    cosines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    volume: float | None = None


def contributions(found_by: Sequence[Sequence[str]], utilities: Sequence[float]) -> dict[str, Contribution]:
    """The contribution of every source that found a document.

    Args:
        found_by: For each of n documents the names of the sources that found it, each once.
        utilities: Their n utilities.

    Returns:
        By name of the source, in order of name.

    Raises:
        ScoringError: When utilities are too large to be added up.

    Example:
        >>> found = contributions([["web"], ["web", "wiki"], ["wiki"]], [0.5, 1.0, -0.25])
        >>> found["web"].utility, found["wiki"].utility, found["web"].share.__round__(2)
        (1.0, 0.25, 0.67)
    """
    parts: dict[str, list[float]] = {name: [] for name in sorted({name for names in found_by for name in names})}
    for names, utility in zip(found_by, utilities, strict=True):
        for name in names:
            parts[name].append(utility / len(names))
    try:
        helped = math.fsum(max(part, 0.0) for own in parts.values() for part in own)
        return {
            name: Contribution(math.fsum(own), math.fsum(max(part, 0.0) for part in own) / helped if helped else 0.0)
            for name, own in parts.items()
        }
    except OverflowError as error:
        largest = max(utilities, key=abs)
        raise ScoringError(f"the utilities are too large to be added up by source: one is {largest}") from error


def source_agreement(found_by: Sequence[Sequence[str]], token_utilities: NDArray[np.float64]) -> Agreement:
    """Agreement and conflict between the sources.

    Args:
        found_by: For each of n documents the names of the sources that found it, each once. A document that
            two sources found draws them together, as it should: they say the same.
        token_utilities: [T, n], the utility of every document for every token of the target.

    Returns:
        The cosines and the volume.

    Example:
        >>> source_agreement([["web"], ["wiki"]], np.array([[1.0, -2.0], [0.0, 0.0]])).cosines
        {'web': {'wiki': -1.0}, 'wiki': {'web': -1.0}}
    """
    names = sorted({name for each in found_by for name in each})
    owned = np.array([[(name in each) / len(each) for name in names] for each in found_by])
    owned = owned.reshape(len(found_by), len(names))
    directions = token_utilities @ owned
    lengths = np.linalg.norm(directions, axis=0)
    moved = np.flatnonzero(lengths)
    names, units = [names[i] for i in moved], directions[:, moved] / lengths[moved]
    if len(names) < 2:
        return Agreement()
    cosines = np.clip(units.T @ units, -1.0, 1.0)
    singular = np.linalg.svd(units, compute_uv=False)
    volume = float(np.prod(singular)) if len(names) <= len(units) else 0.0
    return Agreement(
        {a: {b: float(cosines[i, j]) for j, b in enumerate(names) if j != i} for i, a in enumerate(names)},
        min(volume, 1.0),
    )
