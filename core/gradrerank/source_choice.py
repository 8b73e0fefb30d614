"""Which sources are kept: by f(A) before anything is read, by utility after all is scored, or by both.

``source_choice`` of :class:`~gradrerank.settings.Settings`:

- ``"embedding"``: the greedy maximiser of f(A) (:mod:`gradrerank.sources.combination`). Only the chosen
  sources are read.
- ``"gradient"``: one pass over the documents of all sources; the sources by their utility
  (:mod:`gradrerank.sources.contribution`), as long as it is positive.
- ``"both"``: the greedy maximiser of f(A) + sum over s in A of U_s / sum over all s' of |U_s'|, which adds
  the signed share of a source's utility to its cosine with the query. All sources are read.

In each case at most ``max_sources`` are kept, the first one is kept whatever its worth, and a source with a
floor in ``per_source`` always is. Documents that only the other sources found are dropped as
``"source_not_selected"``, with their score where they were scored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gradrerank.context.fusion import final_scores
from gradrerank.documents import DroppedDocument
from gradrerank.scorers.base import Scores
from gradrerank.scorers.linked import LINKS
from gradrerank.sources.combination import ChosenSources, choose_sources, combine_greedily
from gradrerank.sources.contribution import Contribution, contributions, source_agreement
from gradrerank.sources.pool import restrict

if TYPE_CHECKING:
    from gradrerank.call import Call
    from gradrerank.lm.generator import Generator
    from gradrerank.settings import Settings
    from gradrerank.sources.embedding import Encoder

SOURCE_CHOICES = ("embedding", "gradient", "both")


def choose_before_reading(call: Call, use: Settings, encoder: Encoder) -> None:
    """Choose by f(A), or weigh the sources for a choice by both; where there is something to choose.

    Args:
        call: The query; its pool is cut to the chosen sources where f(A) alone decides.
        use: The settings.
        encoder: The sentence encoder; not asked where utility alone decides.
    """
    if not use.select_sources or len(call.selected) < 2 or use.source_choice == "gradient":
        return
    sources = {name: call.pool.sources[name] for name in call.selected}
    limits = (use.source_lambda, use.max_sources)
    call.chosen = choose_sources(call.query, sources, encoder, source_lambda=limits[0], max_sources=limits[1])
    if use.source_choice == "embedding":
        call.selected = _with_floors(call, call.chosen.names)
        call.pool = restrict(call.pool, call.selected)


def credit_sources(call: Call, use: Settings, generator: Generator) -> None:
    """Say what each source contributed, and how far they agree where that was asked for.

    Args:
        call: The query with its scores.
        use: The settings; ``source_agreement`` takes one row of a batch for each token of the target.
        generator: The model.
    """
    found_by = [candidate.sources for candidate in call.pool.candidates]
    call.contributions = contributions(found_by, call.scores.utilities)
    if use.source_agreement and len(call.contributions) > 1:
        call.agreement = source_agreement(found_by, call.token_utilities(generator))


def choose_after_scoring(call: Call, use: Settings, scorer: str) -> None:
    """Choose by utility, alone or with f(A); where there is something to choose.

    Args:
        call: The query with its scores; its candidates are cut to those of the chosen sources.
        use: The settings.
        scorer: Name of the scorer.
    """
    if not use.select_sources or len(call.selected) < 2 or use.source_choice == "embedding":
        return
    utilities = {name: _utility(call.contributions, name) for name in call.selected}
    if call.chosen is None:
        names = best_by_utility(utilities, use.max_sources)
    else:
        call.chosen = best_by_both(call.chosen, utilities, use.source_lambda, use.max_sources)
        names = call.chosen.names
    call.selected = _with_floors(call, names)
    _keep(call, use, scorer)


def best_by_utility(utilities: Mapping[str, float], max_sources: int | None = None) -> tuple[str, ...]:
    """The sources of positive utility, best first.

    Args:
        utilities: Utility by source; at least one.
        max_sources: How many at most; None for no limit.

    Returns:
        Names; of equal utilities the first by name leads. Where none is positive, the best one alone.

    Example:
        >>> best_by_utility({"crm": -0.5, "web": 0.25, "wiki": 1.0})
        ('wiki', 'web')
    """
    ranked = sorted(utilities, key=lambda name: (-utilities[name], name))
    helpful = [name for name in ranked if utilities[name] > 0] or ranked[:1]
    return tuple(helpful[:max_sources])


def best_by_both(
    chosen: ChosenSources, utilities: Mapping[str, float], source_lambda: float, max_sources: int | None = None
) -> ChosenSources:
    """The greedy choice where the signed share of utility is added to the cosine with the query.

    Args:
        chosen: The sources with their cosines.
        utilities: Utility by source; one that is not there has none.
        source_lambda: Weight of redundancy.
        max_sources: How many at most; None for no limit.

    Returns:
        The choice; its gains are those in f(A) alone, in the order of this choice.
    """
    names = list(chosen.relevance)
    total = math.fsum(abs(utilities.get(name, 0.0)) for name in names)
    shares = [utilities.get(name, 0.0) / total if total else 0.0 for name in names]
    worth = np.array(list(chosen.relevance.values())) + np.array(shares)
    best = combine_greedily(worth, chosen.similarity, source_lambda=source_lambda, max_sources=max_sources)
    gains = {name: gain - share for name, gain, share in zip(names, best.gains, shares, strict=True)}
    return replace(chosen, names=tuple(names[i] for i in best.chosen), gains=gains)


def _utility(found: Mapping[str, Contribution], name: str) -> float:
    """0 for a source none of whose documents was read."""
    return found[name].utility if name in found else 0.0


def _with_floors(call: Call, names: Sequence[str]) -> list[str]:
    """The chosen sources, and those of which the caller wants some documents whatever the choice."""
    floors = [n for n in call.selected if n not in names and call.per_source.get(n, (0, None))[0]]
    return [*names, *floors]


def _keep(call: Call, use: Settings, scorer: str) -> None:
    """Drop the scored candidates that no selected source found."""
    candidates, selected = call.pool.candidates, frozenset(call.selected)
    kept = [i for i, c in enumerate(candidates) if not selected.isdisjoint(c.sources)]
    if len(kept) == len(candidates):
        return
    final = final_scores(call, use, scorer)
    left_out = tuple(
        DroppedDocument(c.document, c.provenance, "source_not_selected", final.scores[i])
        for i, c in enumerate(candidates)
        if selected.isdisjoint(c.sources)
    )
    call.pool = replace(call.pool, candidates=tuple(candidates[i] for i in kept), dropped=call.pool.dropped + left_out)
    call.documents = [call.documents[i] for i in kept]
    call.by_token = None  # what helps beside fewer documents is another question
    spans = [call.scores.spans[i] for i in kept] if call.scores.spans else ()
    stages = [call.scores.stages[i] for i in kept] if call.scores.stages else ()
    details = dict(call.scores.details)
    if scorer.endswith(f"+{LINKS}"):
        place = {old: new for new, old in enumerate(kept)}
        details[LINKS] = [[place[i], place[j]] for i, j in details[LINKS] if i in place and j in place]
    call.scores = Scores([call.scores.utilities[i] for i in kept], spans, details, stages)
