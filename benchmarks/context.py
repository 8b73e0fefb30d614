"""What a token budget buys: answers and gold documents kept, by how the documents are chosen.

    python benchmarks/context.py musique_train100.jsonl --questions 40
    python benchmarks/context.py 2wiki_train200.jsonl --no-answers --top-n 2 3 5

For each budget: F1 of the model's answer behind the kept documents, the share of questions whose gold
documents are all kept (all-gold), the share of gold documents kept (recall), and the tokens spent. Every
row sees the same candidates, and all but ``iterated`` the same scores; ``iterated`` looks for the best set of
as many documents as ``order`` keeps. ``shortest`` knows nothing but the length of a document. With
``compressed`` a gold document counts as kept whichever of its sentences are: there F1 tells what it is worth.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from gradrerank import GradReranker, IteratedGatesScorer, RerankResult, Scorer, Scores, ScoringJob
from gradrerank.context.choosers import as_chooser
from gradrerank.context.choosing import ChoiceJob, Chooser
from gradrerank.evaluation.answers import short_answer
from gradrerank.evaluation.intervals import bootstrap_mean
from gradrerank.evaluation.measures import answer_f1
from gradrerank.evaluation.questions import Question, read_questions
from gradrerank.scorers import as_scorer


@dataclass
class ScoredOnce:
    """A scorer that does not score the same question twice."""

    scorer: Scorer
    known: dict[str, Scores] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.scorer.name

    def score(self, job: ScoringJob) -> Scores:
        if job.query not in self.known:
            self.known = {job.query: self.scorer.score(job)}
        return self.known[job.query]


@dataclass
class ChosenOnce:
    """A chooser for which the utilities of tokens are computed once a question."""

    chooser: Chooser
    known: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.chooser.name

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        def utilities() -> Any:
            if job.query not in self.known:
                self.known = {job.query: job.token_utilities()}
            return self.known[job.query]

        return self.chooser.choose(replace(job, token_utilities=utilities))


class Shortest:
    """Takes the shortest documents first."""

    name = "shortest"

    def choose(self, job: ChoiceJob) -> Sequence[int]:
        return sorted(range(len(job)), key=lambda i: (len(job.texts[i]), i))


def rows() -> dict[str, dict[str, Any]]:
    """What is compared, as settings by name."""
    gates = ScoredOnce(as_scorer("gates"))
    return {
        "shortest": {"scorer": gates, "selection": Shortest()},
        "order": {"scorer": gates, "selection": "order"},
        "knapsack": {"scorer": gates, "selection": "knapsack"},
        "coverage": {"scorer": gates, "selection": ChosenOnce(as_chooser("coverage"))},
        "mmr": {"scorer": gates, "selection": "mmr"},
        "iterated": {"selection": "order"},
        "order, compressed": {"scorer": gates, "selection": "order", "compress": True},
    }


def kept(reranker: GradReranker, question: Question, limit: dict[str, int], settings: dict[str, Any]) -> RerankResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # documents cut at --max-document-tokens, on purpose
        return reranker.rerank(question.text, question.sources, token_counter=counter(reranker), **limit, **settings)


def counter(reranker: GradReranker) -> Any:
    """The tokens of a text, by the generator's own tokenizer."""
    return lambda text: len(reranker.generator.tokenizer.content([text])[0])


def measured(
    reranker: GradReranker, question: Question, result: RerankResult, known: dict[str, str] | None
) -> dict[str, float]:
    """Figures of one question; answers behind the same text are written once."""
    gold = {name for name in question.gold if name in {d.id for d in question.documents}}
    found = len(gold & {d.id for d in result}) / len(gold) if gold else 1.0
    figures = {"all-gold": float(found == 1.0), "recall": found, "tokens": float(result.context_tokens or 0)}
    if known is not None and question.answers:
        text = result.context()
        if text not in known:
            documents = reranker.generator.layout.documents([(d.title, d.excerpt) for d in result])
            known[text] = short_answer(reranker.generator, question.text, documents, 16)
        figures["F1"] = answer_f1(known[text], question.answers)
    return figures


def main() -> None:
    """Measure and print one table a limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--questions", type=int, default=40)
    parser.add_argument("--budgets", type=int, nargs="*", default=[256, 512, 1024])
    parser.add_argument("--top-n", type=int, nargs="*", default=[])
    parser.add_argument("--no-answers", action="store_true", help="write no answers, which takes most of the time")
    parser.add_argument("--max-document-tokens", type=int, default=256)
    parser.add_argument("--model", default=None)
    options = parser.parse_args()
    reranker = GradReranker(
        options.model, select_sources=False, max_document_tokens=options.max_document_tokens, show_progress=False
    )
    limits = [{"token_budget": b} for b in options.budgets] + [{"top_n": n} for n in options.top_n]
    questions = list(read_questions(options.data, options.questions))
    figures: dict[tuple[int, str], list[dict[str, float]]] = {}
    compared = rows()
    for question in tqdm(questions, unit="question"):
        answers: dict[str, str] | None = None if options.no_answers else {}
        for at, limit in enumerate(limits):
            fitting = 1
            for name, settings in compared.items():
                own = {"scorer": IteratedGatesScorer(k=fitting)} if name == "iterated" else {}
                result = kept(reranker, question, limit, {**settings, **own})
                fitting = max(len(result), 1) if name == "order" else fitting
                figures.setdefault((at, name), []).append(measured(reranker, question, result, answers))
    for at, limit in enumerate(limits):
        title = f"{options.data.name}, {len(questions)} questions, {next(iter(limit))} {next(iter(limit.values()))}"
        shown = {name: figures[at, name] for name in compared}
        Console(width=120).print(table(title, shown, [question.group for question in questions]))


def table(title: str, figures: dict[str, list[dict[str, float]]], groups: list[str]) -> Table:
    """One row for each way to choose; intervals over questions, and all-gold less that of ``order``."""
    shown = Table(title=title)
    names = list(next(iter(figures.values()))[0])
    for column in ("", *names, "all-gold - order"):
        shown.add_column(column, justify="left" if not column else "right")
    for name, found in figures.items():
        cells = []
        for column in names:
            values = [each[column] for each in found]
            if column == "tokens":
                cells.append(f"{np.mean(values):.0f}")
                continue
            mean = bootstrap_mean(values, groups)
            cells.append(f"{mean.mean:.3f} [{mean.low:.2f}, {mean.high:.2f}]")
        pairs = zip(found, figures["order"], strict=True)
        less = bootstrap_mean([own["all-gold"] - other["all-gold"] for own, other in pairs], groups)
        shown.add_row(name, *cells, f"{less.mean:+.3f} [{less.low:+.2f}, {less.high:+.2f}]")
    return shown


if __name__ == "__main__":
    main()
