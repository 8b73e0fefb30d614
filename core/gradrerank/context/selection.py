"""Rank by utility and cut: by the number of documents and by a least utility."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradrerank.documents import DropReason
from gradrerank.scorers.checking import finite_score
from gradrerank.validation import check_optional_count, check_optional_number


@dataclass(frozen=True, slots=True)
class Selection:
    """Which candidates are in the ranking, by their position in the input.

    Args:
        kept: Positions of the ranked candidates, best first.
        dropped: Position and reason of each of the others, best first.
    """

    kept: tuple[int, ...]
    dropped: tuple[tuple[int, DropReason], ...]


def rank_and_cut(scores: Sequence[float], *, top_n: int | None, min_score: float | None) -> Selection:
    """Order candidates by score, then cut.

    Args:
        scores: Signed utility of each candidate, higher is better, negative where it hurts.
            Candidates with equal scores keep the order of the input, which is retrieval order.
        top_n: How many candidates to keep at most; None for all.
        min_score: The least score to keep, itself included, on the same signed scale as the
            scores; None for no bound. When nothing reaches it, nothing is kept.

    Returns:
        The selection. A candidate below min_score has the reason ``"min_score"`` even where top_n
        would have cut it too.

    Raises:
        ScoringError: When a score is not a finite number; the message names its position.
        InvalidArgumentError: When top_n or min_score cannot be used.

    Example:
        >>> rank_and_cut([0.1, 0.5, -0.2, 0.3], top_n=2, min_score=0.0)
        Selection(kept=(1, 3), dropped=((0, 'top_n'), (2, 'min_score')))
    """
    limit = check_optional_count("top_n", top_n)
    least = check_optional_number("min_score", min_score)
    plain = [finite_score(score, f"scores[{i}]") for i, score in enumerate(scores)]
    order = sorted(range(len(plain)), key=lambda i: -plain[i])
    reached = [i for i in order if least is None or plain[i] >= least]
    below = order[len(reached) :]  # the order descends, so whatever fails min_score is its tail
    kept = reached[:limit]
    dropped: list[tuple[int, DropReason]] = [(i, "top_n") for i in reached[len(kept) :]]
    return Selection(tuple(kept), (*dropped, *((i, "min_score") for i in below)))
