"""Which sources are kept, and what marks misinformation.

    python benchmarks/sources.py recall federated_5src.jsonl tatqa_test.jsonl
    python benchmarks/sources.py misinformation ramdocs.jsonl --targets query reference

``recall``: the share of gold documents that some kept source found, where 1, 2 or 3 sources may be kept:
chosen by f(A) for several lambdas, by utility, by both, at random (the mean over all combinations), or all
kept. A rule that stops early keeps fewer, which the column "kept" tells. Beside the rules of the package
stand two that it does not have: the source of the best document, and of the most positive utility.

``misinformation``: documents labelled ``correct``, ``misinfo`` or ``noise``. Within each question, the
chance that a document of the one label has the larger value than one of the other (AUC; .5 says
nothing): of the utility, and of the agreement, the cosine of a document's utilities for the target's
words with those of all other documents together.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from gradrerank import GradReranker
from gradrerank.evaluation import Question, read_questions
from gradrerank.evaluation.intervals import bootstrap_mean
from gradrerank.evaluation.questions import json_lines
from gradrerank.source_choice import best_by_both, best_by_utility
from gradrerank.sources.combination import choose_sources
from gradrerank.sources.contribution import contributions

LIMITS = (1, 2, 3)
LAMBDAS = (0.0, 0.1, 0.3, 0.5, 1.0)
PAIRS = (("correct", "misinfo"), ("correct", "noise"), ("misinfo", "noise"))


def main(argv: Sequence[str] | None = None, reranker: GradReranker | None = None) -> None:
    """Measure and print; ``reranker`` replaces the one that the options describe."""
    options = _parser().parse_args(argv)
    reranker = reranker or GradReranker(options.model, device=options.device)
    console = Console(width=options.width)
    settings = {"max_document_tokens": options.max_document_tokens, "select_sources": False}
    warnings.simplefilter("ignore")  # documents that are cut, on purpose
    for path in options.data:
        if options.what == "recall":
            console.print(recall_table(path, reranker, options.questions, settings))
        else:
            for target in options.targets:
                console.print(misinformation_table(path, reranker, options.questions, target, settings))


# -- recall ----------------------------------------------------------------------------------------------


def recall_table(path: Path, reranker: GradReranker, limit: int | None, settings: dict[str, Any]) -> Table:
    """Recall of the gold documents for every rule and number of sources."""
    found: dict[str, list[list[tuple[float, float]]]] = {}
    groups = []
    questions = [q for q in read_questions(path, limit) if q.gold and len(q.sources) > 1]
    for question in tqdm(questions, desc=path.stem, unit="question"):
        groups.append(question.group)
        for rule, kept in rules(question, reranker, settings).items():
            found.setdefault(rule, []).append(kept)
    table = Table(title=f"{path.name}, {len(questions)} questions: recall of gold documents [95% interval] (kept)")
    table.add_column("sources by")
    for k in LIMITS:
        table.add_column(f"at most {k}", justify="right")
    for rule, rows in found.items():
        cells = []
        for at in range(len(LIMITS)):
            estimate = bootstrap_mean([row[at][0] for row in rows], groups)
            kept = np.mean([row[at][1] for row in rows])
            cells.append(f"{estimate.mean:.3f} [{estimate.low:.2f}, {estimate.high:.2f}] ({kept:.1f})")
        table.add_row(rule, *cells)
    return table


def rules(question: Question, reranker: GradReranker, settings: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """For every rule and limit the recall of the gold documents and the number of sources kept."""
    sources = question.sources
    result = reranker.rerank(question.text, sources, **settings)
    found_by = [list(d.sources) for d in result]
    scores = [d.score for d in result]
    credit = contributions(found_by, scores)
    utility = {name: credit[name].utility for name in credit}
    positive = {name: credit[name].share for name in credit}
    best = {n: max(s for s, names in zip(scores, found_by, strict=True) if n in names) for n in credit}
    homes = {p.id: {o.source for o in d.provenance} for d in result for p in d.provenance}

    def at_limits(choose: Any) -> list[tuple[float, float]]:
        return [_outcome(question, homes, list(choose(k))) for k in LIMITS]

    rows = {}
    embedded = choose_sources(question.text, sources, reranker.encoder, source_lambda=0.0, max_sources=None)
    for weight in LAMBDAS:
        rows[f"f(A), lambda {weight:g}"] = at_limits(lambda k, at=weight: best_by_both(embedded, {}, at, k).names)
        if weight <= 0.1:
            rows[f"both, lambda {weight:g}"] = at_limits(
                lambda k, at=weight: best_by_both(embedded, utility, at, k).names
            )
    rows["gradient (utility)"] = at_limits(lambda k: best_by_utility(utility, k))
    rows["gradient, filled up to the limit"] = at_limits(lambda k: _largest(utility, k))
    rows["gradient, positive utility"] = at_limits(lambda k: _largest(positive, k))
    rows["gradient, best document"] = at_limits(lambda k: _largest(best, k))
    rows["random"] = [_random(question, homes, sorted(sources), k) for k in LIMITS]
    rows["keep all"] = at_limits(lambda k: sources)
    return rows


def _outcome(question: Question, homes: dict[str, set[str]], kept: Iterable[str]) -> tuple[float, float]:
    names = set(kept)
    hits = [bool(names & homes.get(name, set())) for name in question.gold]
    return float(np.mean(hits)), float(len(names))


def _random(question: Question, homes: dict[str, set[str]], names: list[str], k: int) -> tuple[float, float]:
    outcomes = [_outcome(question, homes, kept) for kept in itertools.combinations(names, min(k, len(names)))]
    return tuple(np.mean(outcomes, axis=0))


def _largest(values: dict[str, float], k: int) -> list[str]:
    return sorted(values, key=lambda name: (-values[name], name))[:k]


# -- misinformation --------------------------------------------------------------------------------------


def labelled(path: Path, limit: int | None) -> Iterator[tuple[Question, dict[str, str]]]:
    """Questions with the label of each document by its id."""
    labels = (
        {d["id"]: d.get("label", "") for d in row["documents"]} for _, _, row in json_lines(path)
    )  # the reader of questions knows no labels, so that no ranker sees them
    yield from zip(read_questions(path, limit), labels, strict=False)


def misinformation_table(
    path: Path, reranker: GradReranker, limit: int | None, target: str, settings: dict[str, Any]
) -> Table:
    """AUC between labels for utility and agreement, the mean over questions that have both labels."""
    measured: dict[tuple[str, tuple[str, str]], list[float]] = {}
    utilities: dict[str, list[float]] = {}
    rows = list(labelled(path, limit))
    for question, labels in tqdm(rows, desc=f"{path.stem}, target {target}", unit="question"):
        reference = question.answers[0] if target == "reference" else None
        found = reranker.explain_tokens(question.text, question.sources, target=target, reference=reference, **settings)
        values = {"utility": found.utilities.mean(0), "agreement": agreement(found.utilities)}
        own = [labels[str(d.id)] for d in found.documents]
        for label, utility in zip(own, values["utility"], strict=True):
            utilities.setdefault(label, []).append(float(utility))
        for (name, value), pair in itertools.product(values.items(), PAIRS):
            high, low = (value[[label == wanted for label in own]] for wanted in pair)
            if len(high) and len(low):
                measured.setdefault((name, pair), []).append(auc(high, low))
    table = Table(title=f"{path.name}, {len(rows)} questions, target {target}: AUC within questions [95% interval]")
    table.add_column("larger in ... than in ...")
    for name in ("utility", "agreement"):
        table.add_column(name, justify="right")
    table.add_column("questions", justify="right")
    for pair in PAIRS:
        if ("utility", pair) in measured:
            cells = [_interval(measured[name, pair]) for name in ("utility", "agreement")]
            table.add_row(" than in ".join(pair), *cells, str(len(measured["utility", pair])))
    for label, values_of in sorted(utilities.items()):
        negative = np.mean([value < 0 for value in values_of])
        note = f"mean {np.mean(values_of):+.4f}, {negative:.0%} negative"
        table.add_row(f"documents labelled {label}: {len(values_of)}", note, "", "")
    return table


def agreement(utilities: np.ndarray) -> np.ndarray:
    """For each of n documents the cosine of its column of [T, n] with the sum of the others; 0 without a direction."""
    others = utilities.sum(1, keepdims=True) - utilities
    lengths = np.linalg.norm(utilities, axis=0) * np.linalg.norm(others, axis=0)
    return np.divide((utilities * others).sum(0), lengths, out=np.zeros(utilities.shape[1]), where=lengths > 0)


def auc(high: np.ndarray, low: np.ndarray) -> float:
    """The share of pairs in which the first is larger; equal ones count half."""
    difference = np.subtract.outer(high, low)
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())


def _interval(values: Sequence[float]) -> str:
    estimate = bootstrap_mean(values)
    return f"{estimate.mean:.3f} [{estimate.low:.2f}, {estimate.high:.2f}]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["recall", "misinformation"])
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--questions", type=int, default=None, help="of each file; all when left out")
    parser.add_argument("--targets", nargs="+", default=["query"], choices=["query", "draft", "reference"])
    parser.add_argument("--max-document-tokens", type=int, default=256)
    parser.add_argument("--model", default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--width", type=int, default=120)
    return parser


if __name__ == "__main__":
    main()
