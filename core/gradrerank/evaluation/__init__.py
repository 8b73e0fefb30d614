"""Measure rankings on questions with gold evidence: measures, intervals, baselines and other methods.

    from gradrerank.evaluation import evaluate, parse, read_questions

    reranker = GradReranker()
    configurations = {spec: parse(spec, lambda: reranker) for spec in ("gates", "bm25", "gates+minilm")}
    report = evaluate(read_questions("questions.jsonl"), configurations, resume="lines.jsonl")

Needs the extra ``evaluation``: ``pip install 'gradrerank[evaluation]'``. Nothing of it is imported by
``import gradrerank``.
"""

from __future__ import annotations

from gradrerank.evaluation.answers import Answerer
from gradrerank.evaluation.baselines import baselines
from gradrerank.evaluation.beir import read_beir
from gradrerank.evaluation.configurations import Configuration, Ranked, baseline, combination, library, ranked
from gradrerank.evaluation.intervals import Estimate, bootstrap_difference, bootstrap_mean
from gradrerank.evaluation.ledger import Ledger
from gradrerank.evaluation.measures import agreement, answer_f1, exact_match, ranking_measures
from gradrerank.evaluation.native import native
from gradrerank.evaluation.questions import Question, Task, read_questions
from gradrerank.evaluation.report import Report, join_reports, save_reports
from gradrerank.evaluation.run import evaluate, rank_question
from gradrerank.evaluation.specs import known_names, parse, split_specs
from gradrerank.evaluation.wordings import WORDINGS

__all__ = [
    "WORDINGS",
    "Answerer",
    "Configuration",
    "Estimate",
    "Ledger",
    "Question",
    "Ranked",
    "Report",
    "Task",
    "agreement",
    "answer_f1",
    "baseline",
    "baselines",
    "bootstrap_difference",
    "bootstrap_mean",
    "combination",
    "evaluate",
    "exact_match",
    "join_reports",
    "known_names",
    "library",
    "native",
    "parse",
    "rank_question",
    "ranked",
    "ranking_measures",
    "read_beir",
    "read_questions",
    "save_reports",
    "split_specs",
]
