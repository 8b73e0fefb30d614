"""Projection on the sparse simplex: the nearest mixture of at most k documents.

The iterated form of the mixture scorer moves the weights along the gradient and then brings them
back to weights that are >= 0, sum to 1, and use at most k documents.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gradrerank.errors import InvalidArgumentError
from gradrerank.validation import check_optional_count


def project_simplex(v: ArrayLike, k: int | None = None) -> NDArray[np.float64]:
    """Euclidean projection on the probability simplex with at most k non-zeros.

    Keeps the k largest entries (of equal ones the first) and projects those on the plain simplex:
    w_i = max(v_i - theta, 0), with theta such that the w_i sum to 1, found by sorting (Duchi,
    Shalev-Shwartz, Singer and Chandra, "Efficient projections onto the l1-ball for learning in
    high dimensions", 2008). That these two steps give an exact nearest point is due to Kyrillidis,
    Becker, Cevher and Koch, "Sparse projections onto the simplex", 2013.

    Args:
        v: The vector, shape [n], n >= 1; left as it is.
        k: The largest number of non-zeros; None, or anything >= n, for no limit.

    Returns:
        The weights, shape [n]: >= 0, summing to 1, at most k of them non-zero.

    Raises:
        InvalidArgumentError: When v is not a vector of at least one finite number, or k is not
            None and not a whole number from 1.

    Example:
        >>> project_simplex([0.9, 0.5, -1.0]).round(3).tolist()
        [0.7, 0.3, 0.0]
        >>> project_simplex([0.9, 0.5, -1.0], k=1).tolist()
        [1.0, 0.0, 0.0]
    """
    vector = np.asarray(v, dtype=np.float64)
    if vector.ndim != 1 or vector.size == 0:
        raise InvalidArgumentError(f"v must be a vector with at least one entry, got shape {vector.shape}")
    if not np.isfinite(vector).all():
        raise InvalidArgumentError(f"v must be finite, got {vector[~np.isfinite(vector)][0]} among its entries")
    support = np.argsort(-vector, kind="stable")[: check_optional_count("k", k)]
    weights = np.zeros_like(vector)
    weights[support] = _project_descending(vector[support])
    return weights


def _project_descending(u: NDArray[np.float64]) -> NDArray[np.float64]:
    """Projection on the plain simplex of a vector whose entries descend."""
    # Adding a constant does not move the projection, and an entry 1 or more below the largest gets
    # weight 0: so shift and clip, and no size of the input can overflow or eat up the digits.
    with np.errstate(over="ignore"):
        u = np.maximum(u - u[0], -1.0)
    thetas = (np.cumsum(u) - 1.0) / np.arange(1, u.size + 1)
    n_active = np.flatnonzero(u > thetas)[-1]
    weights = np.maximum(u - thetas[n_active], 0.0)
    normed: NDArray[np.float64] = weights / weights.sum()  # the sum is 1 but for rounding
    return normed
