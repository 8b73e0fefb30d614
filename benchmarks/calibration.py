"""Can calibrated probabilities be believed on questions that they were not fitted on?

    python benchmarks/calibration.py hotpotqa_train100.jsonl musique_train100.jsonl
    python benchmarks/calibration.py A.jsonl B.jsonl --plot reliability.png

Each file is split in two by groups of questions; a calibration is fitted on one half and tested on the
other, and the other way round. The last rows fit on all other files: what a calibration is worth on
questions of another kind. ECE is the expected calibration error over ten bins (0 is perfect), Brier the
mean squared error; "share of gold" gives every document the share of gold in the half that is fitted on,
which a useful calibration must beat.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from gradrerank import GradReranker, RerankResult, ScoreCalibration
from gradrerank.calibration import METHODS
from gradrerank.evaluation import Question, read_questions
from gradrerank.reliability import expected_calibration_error, reliability_curve

Scored = list[tuple[Question, RerankResult]]
Predicted = tuple[np.ndarray, np.ndarray]


def main(argv: Sequence[str] | None = None, reranker: GradReranker | None = None) -> None:
    """Measure and print; ``reranker`` replaces the one that the options describe."""
    options = _parser().parse_args(argv)
    reranker = reranker or GradReranker(options.model, device=options.device, scorer=options.scorer)
    warnings.simplefilter("ignore")  # documents that are cut, on purpose
    settings = {"max_document_tokens": options.max_document_tokens, "select_sources": False}
    files: dict[str, Scored] = {}
    for path in options.data:
        questions = [q for q in read_questions(path, options.questions) if q.gold]
        bar = tqdm(questions, desc=path.stem, unit="question")
        files[path.stem] = [(q, reranker.rerank(q.text, q.sources, **settings)) for q in bar]
    table = Table(title=f"Probabilities of documents that were not fitted on, scorer {options.scorer}")
    for name in ("questions", "fitted on", "method"):
        table.add_column(name)
    for name in ("ECE", "Brier", "documents"):
        table.add_column(name, justify="right")
    curves: dict[str, Predicted] = {}
    for name, scored in files.items():
        others = [pair for other, pairs in files.items() if other != name for pair in pairs]
        for method in ("share of gold", *METHODS):
            curves[f"{name}, {method}"] = held_out(scored, method)
            table.add_row(name, "the other half", method, *_errors(curves[f"{name}, {method}"]))
        for method in METHODS if others else ():
            table.add_row(name, "the other files", method, *_errors(predictions(others, scored, method)))
    Console(width=options.width).print(table)
    if options.plot:
        plot({name: pair for name, pair in curves.items() if "share of gold" not in name}, options.plot)


def held_out(scored: Scored, method: str) -> Predicted:
    """Probabilities and labels of all documents, each half by what was fitted on the other half."""
    groups = sorted({question.group for question, _ in scored})
    first = set(np.random.default_rng(0).permutation(groups)[: len(groups) // 2].tolist())
    halves = [[pair for pair in scored if (pair[0].group in first) is side] for side in (True, False)]
    parts = [predictions(halves[0], halves[1], method), predictions(halves[1], halves[0], method)]
    return np.concatenate([p for p, _ in parts]), np.concatenate([y for _, y in parts])


def predictions(fitted_on: Scored, tested_on: Scored, method: str) -> Predicted:
    """Probabilities and labels of the documents of ``tested_on``."""
    labels = [np.array([d.id in q.gold for d in result], dtype=float) for q, result in tested_on]
    if method == "share of gold":
        share = np.mean(np.concatenate([[d.id in q.gold for d in result] for q, result in fitted_on]))
        return np.full(sum(map(len, labels)), share), np.concatenate(labels)
    gold = [list(q.gold) for q, _ in fitted_on]
    curve = ScoreCalibration.fit([result for _, result in fitted_on], gold, method=method)
    found = [curve.probabilities([d.score for d in result]) for _, result in tested_on]
    return np.concatenate(found), np.concatenate(labels)


def plot(curves: dict[str, Predicted], path: Path) -> None:
    """Predicted against observed, a line for each calibration."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5.5), layout="constrained")
    ax = figure.add_subplot(xlabel="predicted probability", ylabel="share that is gold", xlim=(0, 1), ylim=(0, 1))
    ax.plot([0, 1], [0, 1], color="0.7", linestyle=":")
    for name, (probabilities, labels) in curves.items():
        bins = reliability_curve(probabilities, labels)
        ax.plot([b.predicted for b in bins], [b.observed for b in bins], marker="o", label=name)
    ax.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def _errors(predicted: Predicted) -> list[str]:
    probabilities, labels = predicted
    brier = np.mean((probabilities - labels) ** 2)
    return [f"{expected_calibration_error(probabilities, labels):.3f}", f"{brier:.3f}", str(len(labels))]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--questions", type=int, default=None, help="of each file; all when left out")
    parser.add_argument("--scorer", default="gates")
    parser.add_argument("--max-document-tokens", type=int, default=256)
    parser.add_argument("--model", default=None)
    parser.add_argument("--device", default=None)
    parser.add_argument("--plot", type=Path, default=None, help="a picture file of the reliability curves")
    parser.add_argument("--width", type=int, default=110)
    return parser


if __name__ == "__main__":
    main()
