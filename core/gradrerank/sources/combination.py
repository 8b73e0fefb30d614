"""Which sources to read: relevant ones that do not say the same thing twice.

Each source s has a vector, the mean of the normalised embeddings of its documents. A combination A
of sources is worth

    f(A) = sum over s in A of cos(q, s)  -  lambda * sum over pairs s < s' in A of cos(s, s')

and is built greedily, one source at a time. Adding s to A gains cos(q, s) - lambda * (sum over t in
A of cos(s, t)), so f is submodular whenever lambda >= 0 and all cos(s, t) >= 0. It is monotone as
well when cos(q, s) >= lambda * (sum over all t other than s of cos(s, t)) for every s. Then the
greedy choice of at most k sources is worth at least (1 - 1/e) times the best choice of at most k
(Nemhauser, Wolsey and Fisher, "An analysis of approximations for maximizing submodular set
functions - I", 1978). A small lambda is needed for this guarantee alone; the choice is made in the
same way with a larger one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gradrerank.documents import Document
from gradrerank.errors import InvalidArgumentError
from gradrerank.sources.embedding import Encoder, embed, normalised
from gradrerank.sources.pool import same_text
from gradrerank.validation import check_number, check_optional_count, check_query

# Cosines are sums of hundreds of products: gains closer than this are equal, and rounding does not decide.
_EQUAL = 1e-12


@dataclass(frozen=True, slots=True)
class Combination:
    """A choice among n sources.

    Args:
        chosen: Indices of the chosen sources, in the order of choice.
        gains: For each of the n sources what it added to f when it was chosen; for one that was
            left out, what it would have added to the final choice.
    """

    chosen: tuple[int, ...]
    gains: tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ChosenSources:
    """A choice among named sources. Sources without documents are in none of its fields.

    Args:
        names: Names of the chosen sources, in the order of choice.
        gains: By name, as in :class:`Combination`, for the chosen and the others.
        relevance: By name, cos(query, source); in order of name.
        similarity: cos(source, source), shape [n, n], in the order of ``relevance``.
        cosines: cos(query, document) of every document, by :func:`~gradrerank.sources.pool.same_text`.
    """

    names: tuple[str, ...]
    gains: Mapping[str, float]
    relevance: Mapping[str, float]
    similarity: NDArray[np.float64]
    cosines: Mapping[tuple[str, str], float] = field(default_factory=dict)


def choose_sources(
    query: str,
    sources: Mapping[str, Sequence[Document]],
    encoder: Encoder,
    *,
    source_lambda: float,
    max_sources: int | None,
) -> ChosenSources:
    """Choose the sources to read for a query.

    The query and all documents are embedded in one call, each distinct text once, in an order that
    does not depend on the order of the mapping. A document is embedded as its title, a line break
    and its text, or as its text alone.

    Args:
        query: The query.
        sources: Documents by source name. A source without documents is never chosen.
        encoder: The sentence encoder, as for :func:`~gradrerank.sources.embedding.embed`.
        source_lambda: Weight of redundancy, lambda in f(A); >= 0.
        max_sources: How many sources to choose at most; None for no limit.

    Returns:
        The choice. Where no source has documents it is empty and the encoder is not called.

    Raises:
        InvalidArgumentError: When an argument cannot be used.
        ScoringError: When the encoder gives unusable vectors.

    Example:
        >>> def encoder(texts):
        ...     return [[float("tram" in t), float("cake" in t)] for t in texts]
        >>> sources = {"city": [Document("tram times")], "food": [Document("cake")]}
        >>> choose_sources("next tram", sources, encoder, source_lambda=0.3, max_sources=None).names
        ('city',)
    """
    check_query(query)
    weight, limit = _check_options(source_lambda, max_sources)
    texts = {name: [_embedded_text(d) for d in sources[name]] for name in sorted(sources) if len(sources[name])}
    if not texts:
        return ChosenSources((), {}, {}, np.zeros((0, 0)))
    distinct = list(dict.fromkeys([query, *(text for each in texts.values() for text in each)]))
    rows = embed(encoder, distinct)
    row_of = dict(zip(distinct, rows, strict=True))
    vectors = source_vectors({name: np.stack([row_of[text] for text in each]) for name, each in texts.items()})
    relevance, similarity = vectors @ row_of[query], vectors @ vectors.T
    combination = combine_greedily(relevance, similarity, source_lambda=weight, max_sources=limit)
    names = list(texts)
    return ChosenSources(
        names=tuple(names[i] for i in combination.chosen),
        gains=dict(zip(names, combination.gains, strict=True)),
        relevance=dict(zip(names, relevance.tolist(), strict=True)),
        similarity=similarity,
        cosines={
            same_text(d): float(row_of[_embedded_text(d)] @ row_of[query]) for name in names for d in sources[name]
        },
    )


def source_vectors(vectors: Mapping[str, NDArray[np.float64]]) -> NDArray[np.float64]:
    """The vector of each source: the mean of its documents' vectors, normalised.

    Args:
        vectors: By source, the embeddings of its documents, shape [m, d] with m >= 1 and rows of
            length 1.

    Returns:
        An array of shape [n, d], in the order of the mapping. Where documents cancel out, or have
        no direction, the row is zero and the source is neither relevant nor redundant.
    """
    return normalised(np.stack([rows.mean(axis=0) for rows in vectors.values()]))


def combination_value(
    relevance: NDArray[np.float64], similarity: NDArray[np.float64], subset: Sequence[int], source_lambda: float
) -> float:
    """f(A), as at the top of this module.

    Args:
        relevance: cos(q, s) of each source, shape [n].
        similarity: cos(s, s'), symmetric, shape [n, n]; its diagonal is not read.
        subset: Indices of the sources in A, each once.
        source_lambda: Weight of redundancy.

    Example:
        >>> combination_value(np.array([0.75, 0.5]), np.array([[1.0, 0.5], [0.5, 1.0]]), [0, 1], 0.5)
        1.0
    """
    chosen = np.asarray(subset, dtype=np.intp)
    pairs = np.triu(similarity[np.ix_(chosen, chosen)], k=1)
    return float(relevance[chosen].sum() - source_lambda * pairs.sum())


def combine_greedily(
    relevance: NDArray[np.float64],
    similarity: NDArray[np.float64],
    *,
    source_lambda: float,
    max_sources: int | None = None,
) -> Combination:
    """Build a combination by taking the source with the largest gain, again and again.

    It ends when no gain is above 0, or at max_sources. The first source is taken even when its
    gain is not above 0: a context without any source is never what a caller asked for. Of equal
    gains the lowest index leads, so callers pass the sources sorted by name.

    Args:
        relevance: cos(q, s) of each source, shape [n].
        similarity: cos(s, s'), symmetric, shape [n, n]; its diagonal is not read.
        source_lambda: Weight of redundancy, >= 0.
        max_sources: How many sources to choose at most; None for no limit.

    Returns:
        The combination; empty when there are no sources.

    Raises:
        InvalidArgumentError: When the shapes do not fit, a number is not finite, or an option cannot
            be used.

    Example:
        >>> similarity = np.array([[1.0, 0.9, 0.0], [0.9, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> combine_greedily(np.array([0.8, 0.7, 0.2]), similarity, source_lambda=1.0).chosen
        (0, 2)
    """
    weight, limit = _check_options(source_lambda, max_sources)
    _check_arrays(relevance, similarity)
    n = len(relevance)
    gains = np.array(relevance, dtype=np.float64)
    chosen: list[int] = []
    while len(chosen) < (n if limit is None else min(n, limit)):
        left = np.setdiff1d(np.arange(n), chosen)
        best = int(left[np.argmax(gains[left] >= gains[left].max() - _EQUAL)])
        if chosen and gains[best] <= _EQUAL:
            break
        chosen.append(best)
        left = left[left != best]
        gains[left] -= weight * similarity[left, best]
    return Combination(tuple(chosen), tuple(gains.tolist()))


def _check_options(source_lambda: float, max_sources: int | None) -> tuple[float, int | None]:
    return check_number("source_lambda", source_lambda, minimum=0), check_optional_count("max_sources", max_sources)


def _check_arrays(relevance: NDArray[np.float64], similarity: NDArray[np.float64]) -> None:
    n = relevance.size
    if relevance.shape != (n,) or similarity.shape != (n, n):
        raise InvalidArgumentError(
            f"relevance and similarity must have shapes [n] and [n, n], got {relevance.shape} and {similarity.shape}"
        )
    if not (np.isfinite(relevance).all() and np.isfinite(similarity).all()):
        raise InvalidArgumentError("relevance and similarity must be finite, got NaN or infinity")


def _embedded_text(document: Document) -> str:
    return f"{document.title}\n{document.text}" if document.title else document.text
