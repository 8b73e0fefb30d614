"""How good a ranking or an answer is, one number a question.

A measure that does not apply to a question (ranking measures without gold evidence, agreement with a
truth that is the same for every document) is left out of it rather than made up; reports say over how
many questions each mean is.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

from gradrerank.evaluation.extras import need


def ranking_measures(order: Sequence[str], gold: Mapping[str, int], k: int = 5) -> dict[str, float]:
    """Measures of the order in which documents are ranked.

    Args:
        order: Ids, best first and each once. Documents that are not in it were not found.
        gold: Relevance above 0 by id.
        k: Depth of recall and all-gold.

    Returns:
        ``nDCG@10``, ``R@k`` and ``RR`` (whose mean is MRR) of ir-measures, and ``all-gold@k``: 1 where
        all gold documents are among the first k (never, where there are more than k). Nothing without
        gold.

    Example:
        >>> ranking_measures(["b", "a"], {"a": 1}, k=1)["all-gold@1"]
        0.0
    """
    if not gold:
        return {}
    ir = need("ir_measures")
    # Places instead of scores: trec_eval would order equal scores by id.
    run = [ir.ScoredDoc("q", document, float(-place)) for place, document in enumerate(order)]
    qrels = [ir.Qrel("q", document, grade) for document, grade in gold.items()]
    wanted = {"nDCG@10": ir.nDCG @ 10, f"R@{k}": ir.R @ k, "RR": ir.RR}
    found = ir.calc_aggregate(list(wanted.values()), qrels, run)
    measures = {name: float(found[measure]) for name, measure in wanted.items()}
    measures[f"all-gold@{k}"] = float(set(gold) <= set(order[:k]))
    return measures


def agreement(estimate: Mapping[str, float], truth: Mapping[str, float]) -> dict[str, float]:
    """Spearman correlation with the truth, equal values sharing their mean rank.

    Args:
        estimate: Scores by id. A document without a score stands behind all that have one.
        truth: True scores by id.

    Returns:
        ``{"spearman": rho}``; 0 for an estimate that says the same of every document; nothing where
        the truth does, since there is nothing to agree with.

    Example:
        >>> agreement({"a": 1.0, "b": 2.0, "c": 2.0}, {"a": 5.0, "b": 5.0, "c": 5.0})
        {}
    """
    if len(set(truth.values())) < 2:
        return {}
    lowest = min(estimate.values(), default=0.0)
    guess = [estimate.get(name, lowest - 1.0) for name in truth]
    if len(set(guess)) < 2:
        return {"spearman": 0.0}
    return {"spearman": float(need("scipy.stats").spearmanr(guess, list(truth.values())).statistic)}


_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """An answer as SQuAD compares it: lower case, no punctuation, no articles, single spaces.

    Args:
        answer: Any text.

    Example:
        >>> normalise("The  U.S. Senate!")
        'us senate'
    """
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, accepted: Sequence[str]) -> float:
    """1 where the normalised answer is one of those that are accepted, else 0.

    Args:
        answer: What was answered.
        accepted: At least one answer.
    """
    return float(any(normalise(answer) == normalise(gold) for gold in accepted))


def answer_f1(answer: str, accepted: Sequence[str]) -> float:
    """F1 of the words that an answer shares with the accepted one that fits best.

    Args:
        answer: What was answered.
        accepted: At least one answer.

    Returns:
        A number from 0 to 1. An answer without words matches only one without words.

    Example:
        >>> answer_f1("in Paris, France", ["Paris"])
        0.5
    """
    return max(_f1(normalise(answer).split(), normalise(gold).split()) for gold in accepted)


def _f1(answer: list[str], gold: list[str]) -> float:
    if not answer or not gold:
        return float(answer == gold)
    shared = (Counter(answer) & Counter(gold)).total()
    return 2 * shared / (len(answer) + len(gold))
