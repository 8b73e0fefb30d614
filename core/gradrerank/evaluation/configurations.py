"""What is compared: named functions from a task to a ranking.

A configuration knows everything that its rankings depend on (``identity``), so that a run that was
stopped reuses the results of exactly the same configuration and no others.
"""

from __future__ import annotations

import math
import time
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gradrerank.errors import InvalidArgumentError, ScoringError, TruncationWarning
from gradrerank.evaluation.baselines import Baseline, order_of
from gradrerank.evaluation.ledger import key_of
from gradrerank.evaluation.questions import Task
from gradrerank.scorers import DEFAULT_SCORER, EncodedScorer, as_scorer
from gradrerank.scorers.linked import PASSED_ON, LinkedScorer, passed_on
from gradrerank.scorers.mentions import mentions
from gradrerank.settings import Settings

if TYPE_CHECKING:
    from gradrerank.documents import Document
    from gradrerank.lm.fingerprint import Fingerprint
    from gradrerank.lm.generator import Generator
    from gradrerank.reranker import GradReranker
    from gradrerank.scorers import Scorer


@dataclass(frozen=True, slots=True)
class Ranked:
    """A ranking and what it cost.

    Args:
        scores: Score by id of document, best first: the order is that of the mapping, which differs from
            that of the scores where a ranking weighs more than them. Documents that are not in it were not
            kept.
        tokens: Tokens that passed through the language model, by stage; those of the documents only
            where they were not in the store yet.
        seconds: Time to rank, with the documents in the store where there is one.
        reading: Time to read documents into the store before.
    """

    scores: Mapping[str, float]
    tokens: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    reading: float = 0.0

    @property
    def order(self) -> list[str]:
        """Ids, best first."""
        return list(self.scores)

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the order of the scores is kept."""
        return {
            "scores": dict(self.scores),
            "tokens": dict(self.tokens),
            "seconds": self.seconds,
            "reading": self.reading,
        }


@dataclass(frozen=True, slots=True)
class Configuration:
    """A named way to rank.

    Args:
        name: Its name in tables.
        rank: From a task to a ranking.
        identity: Names everything that the ranking depends on beside the task; None for a function of
            which nothing is known, whose results are never taken from an earlier run.
        with_reference: Whether it reads the reference answer.
        parts: Configurations whose rankings it is made from, each of which is computed once, however many
            are made from it; nothing for one that ranks by itself.
        join: From the task and the rankings of the parts to the ranking, where there are parts.
        whole: Whether a task is ranked by ``rank`` although there are parts, since it is more than they make.
    """

    name: str
    rank: Callable[[Task], Ranked]
    identity: str | None = None
    with_reference: bool = False
    parts: tuple[Configuration, ...] = ()
    join: Callable[[Task, Sequence[Ranked]], Ranked] | None = None
    whole: Callable[[Task], bool] = lambda task: False


def ranked(task: Task, scores: Sequence[float], **costs: Any) -> Ranked:
    """Scores in the order of the documents as a ranking; equal ones keep the order of the task."""
    return Ranked({task.ids[i]: float(scores[i]) for i in order_of(scores)}, **costs)


def checked(found: Ranked, task: Task, name: str) -> Ranked:
    """Refuse a ranking that cannot be of this task.

    Args:
        found: The ranking.
        task: The task.
        name: The configuration's name, for the message.

    Raises:
        ScoringError: When it is no ranking, or holds an unknown document or a score that is not finite.
    """
    if not isinstance(found, Ranked):
        raise ScoringError(f"configuration {name!r} must return Ranked, got {type(found).__name__}")
    unknown = set(found.scores) - set(task.ids)
    if unknown:
        raise ScoringError(f"configuration {name!r} ranked the unknown document {min(unknown)!r}")
    if not all(math.isfinite(value) for value in found.scores.values()):
        raise ScoringError(f"configuration {name!r} gave a score that is not finite: {dict(found.scores)}")
    return found


def baseline(
    name: str, function: Baseline, identity: str, prepare: Callable[[Task], object] | None = None
) -> Configuration:
    """A baseline as a configuration.

    Args:
        name: Its name.
        function: From a task to n scores.
        identity: What its scores depend on.
        prepare: Reads the documents beforehand, in a time of its own.
    """

    def rank(task: Task) -> Ranked:
        start = time.perf_counter()
        if prepare is not None:
            prepare(task)
        middle = time.perf_counter()
        scores = function(task)
        return ranked(task, scores, seconds=time.perf_counter() - middle, reading=middle - start)

    return Configuration(name, rank, identity)


def library(
    name: str,
    reranker: GradReranker,
    scorer: Scorer,
    *,
    retrieval: tuple[str, Baseline] | None = None,
    **settings: Any,
) -> Configuration:
    """A scorer of this package with some settings as a configuration.

    Documents are read into the store first, in a time of their own, so that configurations that share
    them are compared alike whichever comes first. Links are added to the ranking without them, which may be
    known already, where nothing else would come between: no fusion, and no choice among several sources.

    Args:
        name: Its name.
        reranker: The reranker.
        scorer: The scorer.
        retrieval: Name and function of a baseline that orders and scores the documents of each source,
            as a retriever would have; None takes them as they come, without scores.
        **settings: Fields of :class:`~gradrerank.settings.Settings` that differ from the reranker's own.
    """
    use = reranker.settings.override(scorer=scorer, top_n=None, min_score=None, **settings)
    own = {key: value for key, value in use.as_dict().items() if key != "scorer"}

    def rank(task: Task) -> Ranked:
        sources = _retrieved(task, retrieval[1]) if retrieval else task.sources
        with warnings.catch_warnings():
            # Cut at max_document_tokens on purpose, for all configurations alike.
            warnings.simplefilter("ignore", TruncationWarning)
            start = time.perf_counter()
            read = reranker.index(sources, max_document_tokens=use.max_document_tokens, progress=False)
            middle = time.perf_counter()
            result = reranker.rerank(task.query, sources, scorer=scorer, reference=task.reference, **own)
        seconds = time.perf_counter() - middle
        # A document that occurs twice is ranked once; it is found under every one of its ids.
        scores = {str(p.id): d.score for d in result for p in d.provenance}
        tokens = {**result.tokens, "documents": result.tokens.get("documents", 0) + read.tokens}
        return Ranked(scores, tokens, seconds, middle - start)

    retriever = retrieval[0] if retrieval else None
    identity = key_of("library", repr(scorer), _shown(use), retriever, repr(reranker.encoder), model_name(reranker))
    direct = Configuration(name, rank, identity, with_reference=use.target == "reference")
    if not isinstance(scorer, LinkedScorer) or not _scores_are_final(use):
        return direct
    inner = scorer.scorer.scorer if isinstance(scorer.scorer, EncodedScorer) else scorer.scorer
    unlinked = library(name, reranker, inner, retrieval=retrieval, **{**settings, "select_sources": False})
    return _from_parts(direct, linked(name, unlinked, signed=True, weight=scorer.weight), chooses=use.select_sources)


def _from_parts(direct: Configuration, added: Configuration, *, chooses: bool) -> Configuration:
    """A configuration that is made from a known ranking where no choice among several sources comes between."""

    def whole(task: Task) -> bool:
        return chooses and len(set(task.names)) > 1

    def rank(task: Task) -> Ranked:
        return direct.rank(task) if whole(task) else added.rank(task)

    return replace(added, rank=rank, identity=direct.identity, whole=whole)


def combination(name: str, parts: Sequence[tuple[float, Configuration]]) -> Configuration:
    """The weighted sum of the z-scores of other configurations.

    Args:
        name: Its name.
        parts: Weights and configurations.
    """
    weights = [weight for weight, _ in parts]
    return _made_from(name, [part for _, part in parts], lambda task, found: add_up(task, weights, found), weights)


def linked(name: str, part: Configuration, *, signed: bool, weight: float = PASSED_ON) -> Configuration:
    """Another configuration, with links added as :class:`~gradrerank.scorers.linked.LinkedScorer` adds them.

    Args:
        name: Its name.
        part: The other configuration.
        signed: Whether its scores have a sign that means something; the mean of all documents is zero where not.
        weight: As for the scorer.
    """
    return _made_from(
        name, [part], lambda task, found: add_links(task, found[0], signed=signed, weight=weight), [signed, weight]
    )


def _made_from(
    name: str, parts: Sequence[Configuration], join: Callable[[Task, Sequence[Ranked]], Ranked], how: Sequence[Any]
) -> Configuration:
    known = [part.identity for part in parts]
    identity = None if None in known else key_of("made from", list(how), known)

    def rank(task: Task) -> Ranked:
        return join(task, [part.rank(task) for part in parts])

    return Configuration(name, rank, identity, any(part.with_reference for part in parts), tuple(parts), join)


def add_links(task: Task, found: Ranked, *, signed: bool, weight: float) -> Ranked:
    """What a ranking becomes when documents pass a part of their score to those they name.

    Documents that the ranking did not keep take no part.

    Args:
        task: The task.
        found: The ranking.
        signed: Whether its scores are signed utilities.
        weight: The part that is passed on.
    """
    start = time.perf_counter()
    kept = {name: d for name, d in zip(task.ids, task.documents, strict=True) if name in found.scores}
    scores = [found.scores[name] for name in kept]
    middle = 0.0 if signed or not scores else math.fsum(scores) / len(scores)
    named = mentions([d.title for d in kept.values()], [d.text for d in kept.values()])
    added = passed_on([score - middle for score in scores], named, weight)
    totals = {name: score + more for name, score, more in zip(kept, scores, added, strict=True)}
    order = sorted(totals, key=lambda name: -totals[name])
    seconds = found.seconds + time.perf_counter() - start
    return Ranked({name: totals[name] for name in order}, found.tokens, seconds, found.reading)


def add_up(task: Task, weights: Sequence[float], rankings: Sequence[Ranked]) -> Ranked:
    """Sum of the rankings' z-scores; a ranking that says the same of all documents adds nothing.

    A document that a ranking did not keep gets that ranking's lowest score.

    Args:
        task: The task.
        weights: One weight for each ranking.
        rankings: The rankings.
    """
    totals = [0.0] * len(task.documents)
    for weight, found in zip(weights, rankings, strict=True):
        lowest = min(found.scores.values(), default=0.0)
        values = [found.scores.get(name, lowest) for name in task.ids]
        mean = math.fsum(values) / max(len(values), 1)
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(len(values), 1))
        if deviation > 1e-12 * max(map(abs, values), default=0.0):
            totals = [total + weight * (v - mean) / deviation for total, v in zip(totals, values, strict=True)]
    tokens: dict[str, int] = {}
    for found in rankings:
        for stage, count in found.tokens.items():
            tokens[stage] = tokens.get(stage, 0) + count
    times = {"seconds": sum(r.seconds for r in rankings), "reading": sum(r.reading for r in rankings)}
    return ranked(task, totals, tokens=tokens, **times)


# One for each generator, since reading every byte of the weights takes a while.
_fingerprints: weakref.WeakKeyDictionary[Generator, Fingerprint] = weakref.WeakKeyDictionary()


def model_name(reranker: GradReranker) -> str:
    """Names the model's weights and the words of its prompt, the same in every process."""
    from gradrerank.lm.fingerprint import Fingerprint

    generator, layout = reranker.generator, reranker.generator.layout
    if generator not in _fingerprints:
        _fingerprints[generator] = Fingerprint(generator.plain, lasting=True)
    words = [repr(layout.texts), list(layout.prefix), list(layout.tail), generator.limit]
    return key_of(_fingerprints[generator].current(), words)


def _retrieved(task: Task, function: Baseline) -> dict[str, list[Document]]:
    """Documents of each source, best first, with the scores that a retriever gave."""
    scores = function(task)
    order = order_of(scores)
    documents = tuple(replace(task.documents[i], score=float(scores[i])) for i in order)
    return replace(task, documents=documents, names=tuple(task.names[i] for i in order)).sources


def _scores_are_final(use: Settings) -> bool:
    """Whether documents are ranked by what the scorer gives, all of those that were read."""
    between = (
        "weights",
        "fusion",
        "max_candidates",
        "max_document_tokens",
        "selection",
        "token_budget",
        "per_source",
        "order",
        "source_choice",
    )
    usual = Settings()
    return all(getattr(use, name) == getattr(usual, name) for name in between)


def _shown(use: Settings) -> str:
    # Beside any scorer but the default one nothing is added.
    idle = use.fusion == "auto" and as_scorer(use.scorer).name != DEFAULT_SCORER
    return repr({**use.as_dict(), "scorer": None, **({"fusion": "off"} if idle else {})})


def as_configuration(name: str, given: Any) -> Configuration:
    """A configuration, or a plain function from a task to a ranking, under a name.

    Args:
        name: The name.
        given: A configuration or a function.

    Raises:
        InvalidArgumentError: When it is neither.
    """
    if isinstance(given, Configuration):
        return replace(given, name=name)
    if not callable(given):
        raise InvalidArgumentError(f"configuration {name!r} must be a Configuration or a function, got {given!r}")
    return Configuration(name, given)
