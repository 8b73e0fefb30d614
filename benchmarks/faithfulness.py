"""How well each scorer agrees with exact leave-one-out on the same caches.

    python benchmarks/faithfulness.py hotpotqa_train100.jsonl --questions 20

Leave-one-out (scorer ``ablation``) is exact for *documents encoded on their own*, which is how this
package reads them. It is not leave-one-out on one ordinary concatenated prompt. Beside the rank
correlation stands the error, the sum of |estimate - truth| over a question's documents in units of the
sum of |truth|; the median over questions, since a question on which no document bears has hardly any truth.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr
from tqdm.auto import tqdm

from gradrerank import AblationScorer, GatesScorer, GradReranker, MixtureScorer, RemovalScorer, Scorer
from gradrerank.evaluation import Question, read_questions
from gradrerank.evaluation.intervals import bootstrap_mean
from gradrerank.scorers import as_scorer

SCORERS: dict[str, Scorer] = {
    "gates (z = 1)": GatesScorer(),
    "removal": RemovalScorer(),
    "removal (exact = 0)": RemovalScorer(exact=0),
    "removal (exact = 0, z = 1)": RemovalScorer(exact=0, z=1),
    "removal (exact = 0, z = 1, part = 0)": RemovalScorer(exact=0, part=0, z=1),
    "removal (exact = 0, z = 1, part = 1)": RemovalScorer(exact=0, part=1, z=1),
    "gates+likelihood": as_scorer("gates+likelihood"),
    "gates (z = 1/n)": GatesScorer(z="uniform"),
    "gates (path of 8 from 0 to 1)": GatesScorer(steps=8),
    "gates (layers from half the depth up)": GatesScorer(layers=range(15, 30)),
    "mixture": MixtureScorer(),
    "mixture (8 steps)": MixtureScorer(steps=8),
}


def utilities(reranker: GradReranker, question: Question, scorer: Scorer, target: str) -> dict[str | None, float]:
    """The utility of every document by its id."""
    reference = question.answers[0] if target == "reference" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # documents cut at --max-document-tokens, on purpose
        result = reranker.rerank(question.text, question.sources, scorer=scorer, target=target, reference=reference)
    return {d.id: d.score for d in result}


class Agreement(NamedTuple):
    """Agreement with leave-one-out on one question."""

    spearman: float
    error: float


def agreement(
    reranker: GradReranker, questions: list[Question], target: str, scorers: list[str]
) -> dict[str, list[Agreement]]:
    """Agreement with leave-one-out for each scorer, one a question."""
    found: dict[str, list[Agreement]] = {name: [] for name in scorers}
    for question in tqdm(questions, desc=f"target {target}", unit="question"):
        truth = utilities(reranker, question, AblationScorer(), target)
        for name in scorers:
            estimate = utilities(reranker, question, SCORERS[name], target)
            found[name].append(compare([estimate[i] for i in truth], list(truth.values())))
    return found


def compare(estimates: list[float], truths: list[float]) -> Agreement:
    """Rank correlation, and the error in units of the truth."""
    missed = sum(abs(a - b) for a, b in zip(estimates, truths, strict=True))
    return Agreement(float(spearmanr(estimates, truths).statistic), missed / sum(map(abs, truths)))


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--targets", nargs="+", default=["reference", "query"], choices=["reference", "query", "draft"])
    parser.add_argument("--scorers", nargs="+", default=list(SCORERS), choices=list(SCORERS), metavar="NAME")
    parser.add_argument("--max-document-tokens", type=int, default=120)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    questions = list(read_questions(options.data, options.questions))
    reranker = GradReranker(options.model, select_sources=False, max_document_tokens=options.max_document_tokens)
    what = f"{len(questions)} questions, {options.data.name}"
    table = Table(title=f"Spearman with leave-one-out on the same caches, and error; {what}")
    table.add_column("scorer")
    for target in options.targets:
        table.add_column(f"target {target}", justify="right")
        table.add_column("error", justify="right")
    columns = {target: agreement(reranker, questions, target, options.scorers) for target in options.targets}
    for name in options.scorers:
        cells = []
        for target in options.targets:
            found = bootstrap_mean([each.spearman for each in columns[target][name]])
            cells.append(f"{found.mean:.3f} [{found.low:.2f}, {found.high:.2f}]")
            cells.append(f"{median(each.error for each in columns[target][name]):.2f}")
        table.add_row(name, *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
