"""One run: every configuration on every question, resumable, to a report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gradrerank.context.ordering import arrange
from gradrerank.errors import InvalidArgumentError
from gradrerank.evaluation.answers import Answerer
from gradrerank.evaluation.configurations import Configuration, Ranked, as_configuration, checked
from gradrerank.evaluation.ledger import Ledger, key_of
from gradrerank.evaluation.measures import agreement, ranking_measures
from gradrerank.evaluation.questions import Question, Task
from gradrerank.evaluation.report import Report, Row
from gradrerank.validation import check_choice, check_count, check_optional_count

if TYPE_CHECKING:
    from gradrerank.reranker import GradReranker

# Rows of a report that are no rankings: what the generator answers with a fixed set of documents.
FIXED: dict[str, Callable[[Question], list[str]]] = {
    "all documents": lambda question: list(question.task().ids),
    "gold documents": lambda question: [name for name in question.task().ids if name in question.gold],
    "no documents": lambda question: [],
}


def evaluate(
    questions: Iterable[Question],
    configurations: Mapping[str, Configuration | Callable[[Task], Ranked]],
    *,
    data: str = "questions",
    reranker: GradReranker | None = None,
    resume: str | os.PathLike[str] | Ledger | None = None,
    k: int = 5,
    answers: int | None = None,
    answer_tokens: int = 16,
    answer_order: str = "score",
    truths: Mapping[str, Configuration] | None = None,
    drops: Sequence[int] = (),
    progress: bool | None = None,
) -> Report:
    """Rank the documents of every question by every configuration and measure it.

    The configurations of one question run one after another, so that they share what the model has read.
    What is done is written to ``resume`` line by line; the next run with that file goes on from there, and
    computes anew what another configuration, question or model would change.

    Args:
        questions: The questions.
        configurations: Configurations by name; the first one is what the others are compared with. Of a plain
            function nothing is known, so it is called in every run.
        data: Name of the questions, for the report.
        reranker: Gives the generator for answers and drops; not needed without them.
        resume: The file, or a ledger that is open already; None remembers nothing.
        k: Depth of recall and all-gold.
        answers: Number of best documents that the generator answers from, with rows for all, the gold and
            no documents; None asks for no answers.
        answer_tokens: Most tokens of an answer.
        answer_order: How the best documents stand in the prompt: ``"score"`` (best first), ``"ascending"`` (best
            last) or ``"edges"``.
        truths: By name rankings that the others are compared with by Spearman correlation, such as
            leave-one-out; each gives a measure ``"rho NAME"``.
        drops: Depths at which to measure how far the log-probability of the answer falls without the best
            documents.
        progress: Whether to show a progress bar on stderr; None shows one on a terminal.

    Returns:
        The report.

    Raises:
        InvalidArgumentError: When there is no configuration, or answers are asked for without a reranker.
        ScoringError: When a configuration returns something that is no ranking of the documents.
    """
    found = {name: as_configuration(name, given) for name, given in configurations.items()}
    if not found:
        raise InvalidArgumentError("configurations must name at least one, got none")
    clash = set(found) & set(FIXED)
    if clash:
        raise InvalidArgumentError(f"configurations must not be called {min(clash)!r}, which is a row of its own")
    if reranker is None and (answers is not None or drops):
        raise InvalidArgumentError("answers and drops need reranker=..., whose generator is asked")
    ledger = resume if isinstance(resume, Ledger) else Ledger(resume)
    answerer = None if reranker is None else Answerer(reranker, ledger, check_count("answer_tokens", answer_tokens))
    k, answers = check_count("k", k), check_optional_count("answers", answers)
    check_choice("answer_order", answer_order, ("score", "ascending", "edges"))
    bar = _bar(questions, data, progress)
    runner = _Runner(ledger, k, answerer, answers, answer_order, truths or {}, tuple(drops), bar.set_postfix_str)
    rows = {name: Row() for name in [*found, *(FIXED if answers is not None else ())]}
    groups: dict[str, str] = {}
    for question in bar:
        if question.id in groups:
            raise InvalidArgumentError(f"questions: the id {question.id!r} occurs twice")
        groups[question.id] = question.group or question.id
        for name, measures in runner.measure(question, found):
            rows[name].add(question.id, measures)
    return Report(data, rows, groups, {name: c.identity for name, c in found.items()})


@dataclass(frozen=True, slots=True)
class _Runner:
    """What is measured on one question."""

    ledger: Ledger
    k: int
    answerer: Answerer | None
    answers: int | None
    answer_order: str
    truths: Mapping[str, Configuration]
    drops: tuple[int, ...]
    tell: Callable[[str], object]

    def measure(
        self, question: Question, configurations: Mapping[str, Configuration]
    ) -> list[tuple[str, dict[str, float]]]:
        """The measures of every row of the report."""
        truths = {name: rank_question(question, truth, self.ledger).scores for name, truth in self.truths.items()}
        found = []
        for name, configuration in configurations.items():
            self.tell(name)
            ranking = rank_question(question, configuration, self.ledger)
            measures = ranking_measures(ranking.order, question.gold, self.k)
            for truth, scores in truths.items():
                for rho in agreement(ranking.scores, scores).values():
                    measures[f"rho {truth}"] = rho
            measures |= self._asked(question, ranking.order)
            measures["tokens"] = float(sum(n for stage, n in ranking.tokens.items() if stage != "documents"))
            measures |= {"seconds": ranking.seconds, "reading": ranking.reading}
            found.append((name, measures))
        if self.answerer is not None and self.answers is not None:
            for name, chosen in FIXED.items():
                self.tell(name)
                # Without gold evidence there are no gold documents to answer from.
                known = bool(question.gold) or name != "gold documents"
                found.append((name, self.answerer.quality(question, chosen(question)) if known else {}))
        return found

    def _asked(self, question: Question, order: Sequence[str]) -> dict[str, float]:
        """What asking the generator adds."""
        measures: dict[str, float] = {}
        if self.answerer is not None and self.answers is not None:
            places = arrange(range(min(self.answers, len(order))), self.answer_order, ())
            measures |= self.answerer.quality(question, [order[place] for place in places])
        if self.answerer is not None and self.drops:
            measures |= self.answerer.drops(question, order, self.drops)
        return measures


def rank_question(question: Question, configuration: Configuration, ledger: Ledger) -> Ranked:
    """The ranking of one question, from the ledger where it is known, else made and remembered there.

    Args:
        question: The question.
        configuration: How to rank.
        ledger: Where rankings are remembered.

    Raises:
        ScoringError: When the configuration returns something that is no ranking of the documents.
    """
    task = question.task(with_reference=configuration.with_reference)
    if configuration.join is not None and not configuration.whole(task):
        return configuration.join(task, [rank_question(question, part, ledger) for part in configuration.parts])
    key = None
    if configuration.identity is not None:
        key = key_of("ranking", configuration.identity, *_seen(task))
        known = ledger.get(key)
        if known is not None:
            return Ranked(known["scores"], known["tokens"], known["seconds"], known["reading"])
    try:
        found = checked(configuration.rank(task), task, configuration.name)
    except Exception as error:
        error.add_note(f"while configuration {configuration.name!r} ranked question {question.id!r}")
        raise
    if key is not None:
        line = {"kind": "ranking", "configuration": configuration.name, "question": question.id, **found.to_dict()}
        ledger.put(key, line)
    return found


def _seen(task: Task) -> list[Any]:
    """Everything that a configuration sees of a question."""
    documents = [[d.id, d.title, d.text, name] for d, name in zip(task.documents, task.names, strict=True)]
    return [task.query, task.reference, documents]


def _bar(questions: Iterable[Question], data: str, progress: bool | None) -> Any:
    """The questions with a progress bar, which names the configuration that is at work."""
    from tqdm.auto import tqdm

    return tqdm(questions, desc=data, unit="question", disable=None if progress is None else not progress)
