"""Rankings that every result must be compared with, none of which asks the language model.

Each is a function from a task to n scores in the order of its documents, higher is better. Equal scores
keep the order in which the documents came.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradrerank.documents import Document
from gradrerank.evaluation.extras import need
from gradrerank.evaluation.questions import Task
from gradrerank.sources.embedding import Encoder, SentenceEncoder, embed
from gradrerank.sources.pool import RANK_OFFSET

Baseline = Callable[[Task], Sequence[float]]


def full_text(document: Document) -> str:
    """Title and text, as every lexical and dense baseline reads them."""
    return f"{document.title}\n{document.text}" if document.title else document.text


def as_they_came(task: Task) -> list[float]:
    """The order of the file: that of a run, or of a shuffle."""
    return [-float(place) for place in range(len(task.documents))]


def random_order(task: Task, seed: int) -> list[float]:
    """An order that depends on nothing but the seed and the question."""
    digest = hashlib.sha256(f"{seed} {task.query}".encode("utf-8", "surrogatepass")).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    return [float(score) for score in rng.permutation(len(task.documents))]


def longest_first(task: Task) -> list[float]:
    """Number of characters of the text."""
    return [float(len(d.text)) for d in task.documents]


def shortest_first(task: Task) -> list[float]:
    """Minus the number of characters of the text."""
    return [-length for length in longest_first(task)]


def bm25(task: Task) -> list[float]:
    """BM25 of bm25s over the candidates alone, with its own defaults and English stop words."""
    bm25s = need("bm25s")
    if not task.documents:
        return []
    quiet: dict[str, Any] = {"stopwords": "en", "show_progress": False}
    corpus = bm25s.tokenize([full_text(d) for d in task.documents], **quiet)
    query = bm25s.tokenize([task.query], return_ids=False, **quiet)[0]
    known = [token for token in query if token in corpus.vocab]
    if not known:
        return [0.0] * len(task.documents)
    index = bm25s.BM25()
    index.index(corpus, show_progress=False)
    return [float(score) for score in index.get_scores(known)]


def cosine(task: Task, encoder: Encoder) -> list[float]:
    """Cosine of the embeddings of query and document."""
    vectors = embed(encoder, [task.query, *(full_text(d) for d in task.documents)])
    return [float(score) for score in vectors[1:] @ vectors[0]]


def reader(encoder: Encoder) -> Callable[[Task], object]:
    """Encodes the documents of a task, so that an encoder that remembers them has only the query left."""
    return lambda task: encoder.encode([full_text(d) for d in task.documents])


def reciprocal_rank_fusion(task: Task, parts: Sequence[Baseline]) -> list[float]:
    """Sum of 1 / (60 + rank) over some rankings (Cormack, Clarke and Buettcher 2009)."""
    totals = [0.0] * len(task.documents)
    for part in parts:
        for rank, index in enumerate(order_of(part(task)), start=1):
            totals[index] += 1 / (RANK_OFFSET + rank)
    return totals


def order_of(scores: Sequence[float]) -> list[int]:
    """Positions from the highest score down; equal scores keep their order.

    Example:
        >>> order_of([0.1, 0.5, 0.5])
        [1, 2, 0]
    """
    return sorted(range(len(scores)), key=lambda i: -scores[i])


def baselines(encoder: Encoder | None = None, *, seed: int = 0) -> dict[str, Baseline]:
    """All baselines by name.

    Args:
        encoder: Sentence encoder of ``minilm``; None for the embedded MiniLM.
        seed: Seed of ``random``.

    Returns:
        ``as-given``, ``random``, ``longest``, ``shortest``, ``bm25``, ``minilm`` and ``rrf`` (of the last two).
    """
    dense = SentenceEncoder(device="cpu") if encoder is None else encoder

    def by_cosine(task: Task) -> list[float]:
        return cosine(task, dense)

    return {
        "as-given": as_they_came,
        "random": lambda task: random_order(task, seed),
        "longest": longest_first,
        "shortest": shortest_first,
        "bm25": bm25,
        "minilm": by_cosine,
        "rrf": lambda task: reciprocal_rank_fusion(task, (bm25, by_cosine)),
    }
