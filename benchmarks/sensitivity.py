r"""How far the figures hang on what was chosen: wording, gates, depth, sources, steps, model.

    python benchmarks/sensitivity.py A.jsonl B.jsonl C.jsonl:10 --second FOLDER/model.gguf --resume lines.jsonl \
        --out benchmarks/results/sensitivity.json --write docs/sensitivity.md
    python benchmarks/sensitivity.py --out benchmarks/results/sensitivity.json --write docs/sensitivity.md

Takes the first ``--questions`` of each file, or as many as its name says behind a colon, and the first
``--few`` of them where a table costs many passes. The second line measures nothing: it writes the tables
of the page anew from the figures that are there. With ``--resume`` a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from gradrerank import GradReranker, IteratedGatesScorer
from gradrerank.errors import TruncationWarning
from gradrerank.evaluation import (
    WORDINGS,
    Configuration,
    Estimate,
    Ledger,
    Question,
    Report,
    bootstrap_mean,
    evaluate,
    join_reports,
    library,
    parse,
    rank_question,
    ranking_measures,
    read_questions,
)
from gradrerank.evaluation.configurations import model_name
from gradrerank.evaluation.ledger import key_of
from gradrerank.evaluation.markdown import estimate, fill, markdown_table
from gradrerank.evaluation.probes import OwnPathScorer, error_in_spreads, hashed_words, input_embeddings
from gradrerank.sources.combination import choose_sources

SCORERS = ("default", "gates", "likelihood")
GATES = ("gates", "gates:z=0.5", "gates:z=0.3", "gates:steps=2", "gates:steps=4")
DEPTHS = (10, 5)
LAMBDAS = (0.0, 0.1, 0.3, 0.5, 1.0)
STEPS, SET_SIZE = (1, 2, 8), 3
BINS = (-1.0, -0.5, 0.0, 0.5, 1.0, 2.0)
CLEAR = 0.1  # a removal helps or hurts where it moves the loss by this share of the question's spread
TRUTH, NDCG = "leave-one-out", "nDCG@10"
Table = dict[str, list[Any]]


# -- a run -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """The questions of each file, the models by wording (or ``"second"``), and what is done already."""

    files: Mapping[str, Sequence[Question]]
    several: Sequence[tuple[str, Question]]  # with the names of their files, from several sources each
    make: Callable[[str], GradReranker]
    second: str | None
    few: int
    ledger: Ledger

    def of(self, spec: str, model: str = "default") -> Configuration:
        return parse(spec, lambda: self.make(model), encoder=self.make("default").encoder)

    @cached_property
    def reports(self) -> list[Report]:
        """All scorers and their settings, wordings and depths on all questions."""
        found = []
        for name, questions in self.files.items():
            specs = {spec: self.of(spec) for spec in (*SCORERS, *GATES[1:])} | {TRUTH: self.of("ablation")}
            truths = {spec: specs[spec] for spec in (*SCORERS, TRUTH)}
            if all(len(q.sources) == 1 for q in questions):
                longest = max(len(q.documents) for q in questions)
                read = {
                    m: f"default:retrieval=minilm,docs_per_source={m}" if m < longest else "default" for m in DEPTHS
                }
                specs |= {f"best {m}": self.of(spec) for m, spec in {**read, 0: "minilm"}.items()}
            specs |= {f"{s}, {w}": self.of(s, w) for w in list(WORDINGS)[1:] for s in SCORERS}
            found.append(evaluate(questions, specs, data=name, resume=self.ledger, truths=truths))
        return found

    @cached_property
    def models(self) -> dict[str, list[Report]]:
        """The first few questions of each file for each model."""
        return {
            model: [
                evaluate(
                    questions[: self.few],
                    {spec: self.of(spec, model) for spec in SCORERS},
                    data=name,
                    resume=self.ledger,
                    truths={TRUTH: self.of("ablation", model)},
                )
                for name, questions in self.files.items()
            ]
            for model in ("default", *(["second"] if self.second else []))
        }

    def once(self, function: Callable[..., dict[str, float]], *arguments: Any, key: Sequence[Any]) -> Mapping[str, Any]:
        """What a function gives, computed in one run and remembered for the next."""
        base = self.make("default")
        name = key_of("sensitivity", model_name(base), base.settings.max_document_tokens, *key)
        if self.ledger.get(name) is None:
            self.ledger.put(name, function(*arguments))
        return self.ledger.get(name) or {}


def mean(found: Sequence[float], groups: Sequence[Any] | None = None) -> Any:
    """Mean and interval as a cell of a table; an empty one where there is nothing."""
    return rounded(bootstrap_mean(found, groups)) if found else ""


def cell(report: Report, row: str, measure: str = NDCG) -> Any:
    """A measure of a row as a cell."""
    return rounded(report.estimate(row, measure)) if report.rows[row].values.get(measure) else ""


def change(report: Report, row: str, base: str) -> Any:
    """What a row has more in nDCG@10 than another as a cell; an empty one for that other itself."""
    return "" if row == base else {**rounded(report.difference(row, NDCG, base)), "sign": 1}


def rounded(found: Estimate) -> dict[str, float]:
    return {name: round(value, 4) for name, value in found.to_dict().items()}


def ranked(first: str, reports: Sequence[Report], further: Sequence[str], rows: Mapping[str, Sequence[Any]]) -> Table:
    """Rows, each the name of a row of the reports and its further cells, behind nDCG@10 in every file."""
    head = [first, *(f"{NDCG}, {report.data}" for report in reports), *further]
    shown = [[cells[0], *(cell(report, row) for report in reports), *cells[1:]] for row, cells in rows.items()]
    return {"head": head, "rows": shown}


# -- the tables ------------------------------------------------------------------------------------------


def wordings(run: Run) -> Table:
    rows, together = {}, join_reports(run.reports)
    for scorer in SCORERS:
        for wording in WORDINGS:
            row = scorer if wording == "default" else f"{scorer}, {wording}"
            rho = "" if row == scorer else cell(together, row, f"rho {scorer}")
            rows[row] = (f"`{scorer}`, {wording}", change(together, row, scorer), rho)
    return ranked("scorer, wording", run.reports, ("change, all files", "Spearman with the default wording"), rows)


def gates(run: Run) -> Table:
    together = join_reports(run.reports)
    rows = {row: (f"`{row}`", change(together, row, GATES[0]), cell(together, row, f"rho {TRUTH}")) for row in GATES}
    return ranked("gates", run.reports, ("change, all files", f"Spearman with {TRUTH}"), rows)


def depths(run: Run) -> Table:
    reports = [report for report in run.reports if "best 0" in report.rows]
    rows = {"default": ("all",)} | {f"best {m}": (str(m or "none: MiniLM alone"),) for m in (*DEPTHS, 0)}
    together = join_reports(reports)
    for row in rows:
        rows[row] += (change(together, row, "default"), cell(together, row, "R@5"))
    return ranked("documents read, best by MiniLM", reports, ("change, all files", "recall at 5, all files"), rows)


def sources(run: Run) -> Table:
    embedded = run.make("default")
    encoders = {"MiniLM": embedded.encoder, "hashed words": hashed_words}
    encoders["input embeddings"] = partial(input_embeddings, embedded.generator)
    columns = {"1": "recall, 1 source", "2": "2 sources", "free": "no limit", "kept": "sources kept, no limit"}
    rows = []
    for name, encoder in encoders.items():
        for weight in LAMBDAS:
            key = ("sources", name, weight)
            found = [run.once(recalls, q, encoder, weight, key=(*key, file, q.id)) for file, q in run.several]
            rows.append([name, f"{weight:g}", *(mean([each[column] for each in found]) for column in columns)])
    return {"head": ["encoder", "lambda", *columns.values()], "rows": rows}


def recalls(question: Question, encoder: Any, weight: float) -> dict[str, float]:
    """Share of the gold documents in the sources that f(A) keeps: one, two, as many as gain something."""
    homes, found = dict(zip(question.task().ids, question.names, strict=True)), {}
    for name, limit in (("1", 1), ("2", 2), ("free", None)):
        chosen = choose_sources(question.text, question.sources, encoder, source_lambda=weight, max_sources=limit)
        found[name] = float(np.mean([homes.get(gold) in chosen.names for gold in question.gold]))
    return found | {"kept": float(len(chosen.names))}


def iterations(run: Run) -> Table:
    columns = ("fall", "better", "passes", NDCG, f"R@{SET_SIZE}")
    asked, rows = [(name, q) for name, questions in run.files.items() for q in questions[: run.few]], []
    for steps in (0, *STEPS):
        found = [run.once(iterated, run, q, steps, key=("iterated", steps, name, q.id)) for name, q in asked]
        cells = [mean([each[column] for each in found if column in each]) for column in columns]
        rows.append([str(steps or "none: `gates`"), *cells])
    head = ["most steps", "fall of the loss, nats", "share of questions with a better set", "gradient passes"]
    return {"head": [*head, NDCG, f"recall at {SET_SIZE}"], "rows": rows}


def iterated(run: Run, question: Question, steps: int) -> dict[str, float]:
    """What iteration gains over the best documents by gates; no steps for these themselves."""
    scorer = IteratedGatesScorer(SET_SIZE, steps) if steps else "gates"
    result = run.make("default").rerank(question.text, question.sources, scorer=scorer)
    found = ranking_measures([str(d.id) for d in result], question.gold, SET_SIZE)
    if not steps:
        return {**found, "passes": 1.0}
    fall = result.details["start_loss"] - result.details["loss"]
    return {**found, "fall": fall, "better": float(fall > 1e-6), "passes": float(result.details["passes"])}


def models(run: Run) -> Table:
    rows = []
    for model, reports in run.models.items():
        name = "embedded" if model == "default" else run.second
        together = join_reports(reports)
        own = {s: (f"`{s}`, {name}", cell(together, s), cell(together, s, f"rho {TRUTH}")) for s in SCORERS}
        found = ranked("scorer, model", reports, ("all files", f"Spearman with {TRUTH}"), own)
        rows += found["rows"]
    return {"head": found["head"], "rows": rows}


def linearisation(run: Run) -> Table:
    """On the first file alone, since the path of each own gate takes a pass for every document and point."""
    (name, questions), *_ = run.files.items()
    asked = [q for q in questions if q.answers][: run.few]
    shown: dict[str, list[Any]] = {}
    for target in ("query", "reference"):
        own = partial(library, "own", run.make("default"), target=target)
        estimates = {"slope at z = 1 (`gates`)": run.of(f"gates:target={target}")}
        estimates["one slope a word, corrected, two left out (`removal`)"] = run.of(f"removal:target={target}")
        estimates |= {f"all gates, points: {n}": run.of(f"gates:steps={n},target={target}") for n in (2, 4, 8)}
        estimates |= {f"own gate, points: {n}": own(OwnPathScorer(n)) for n in (1, 2, 4)}
        truth = run.of(f"ablation:target={target}")
        report = evaluate(asked, estimates, data=name, resume=run.ledger, truths={TRUTH: truth})
        for row, estimated in estimates.items():
            pairs = [[rank_question(q, each, run.ledger).scores for each in (estimated, truth)] for q in asked]
            errors = [error for pair in pairs if (error := error_in_spreads(*pair)) is not None]
            shown.setdefault(row, [row]).extend([mean(errors), cell(report, row, f"rho {TRUTH}")])
    head = [f"{what}, target {target}" for target in ("query", "reference") for what in ("error", "Spearman")]
    return {"head": ["estimate", *head], "rows": list(shown.values())}


def meaning(run: Run) -> Table:
    """What documents of small and negative scores are, over all questions."""
    names = [f"below {BINS[0]:g}", *(f"{a:g} to {b:g}" for a, b in zip(BINS, BINS[1:], strict=False))]
    bins: dict[tuple[str, str], list[tuple[Any, float, float]]] = {}
    for (file, questions), spec in ((item, s) for item in run.files.items() for s in ("default", "gates")):
        for q in questions:
            scores, truth = (rank_question(q, run.of(each), run.ledger).scores for each in (spec, "ablation"))
            units = [float(np.std(list(each.values()))) or 1.0 for each in (scores, truth)]
            for name, score in scores.items():
                row = [*names, f"{BINS[-1]:g} and more"][int(np.searchsorted(BINS, score / units[0], side="right"))]
                bins.setdefault((spec, row), []).append(((file, q.id), float(name in q.gold), truth[name] / units[1]))
    rows = []
    for spec, row in ((s, n) for s in ("default", "gates") for n in [*names, f"{BINS[-1]:g} and more"]):
        groups, gold, effects = zip(*bins[spec, row], strict=True) if (spec, row) in bins else ((), (), ())
        shares = (gold, [float(e > CLEAR) for e in effects], [float(e < -CLEAR) for e in effects])
        rows.append([f"`{spec}`", row, str(len(gold)), *(mean(list(share), groups) for share in shares)])
    head = ["scorer", "score in spreads", "documents", "share of gold", "removal hurts", "removal helps"]
    return {"head": head, "rows": rows}


TABLES = (wordings, gates, depths, sources, iterations, models, linearisation, meaning)


# -- the command -----------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None, make: Callable[..., GradReranker] = GradReranker) -> None:
    """Measure and write; ``make`` takes the place of the class that makes rerankers."""
    options = _parser().parse_args(argv)
    warnings.simplefilter("ignore", TruncationWarning)  # documents are cut on purpose
    if options.data:
        run = _run(options, make)
        found = {"sample": _sample(run, options), "tables": {table.__name__: table(run) for table in TABLES}}
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(found, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.write:
        page = fill(options.write.read_text(encoding="utf-8"), blocks(json.loads(options.out.read_text("utf-8"))))
        options.write.write_text(page, encoding="utf-8")


def blocks(found: Mapping[str, Any]) -> dict[str, str]:
    """What stands on the page, by name of the place: the sample and every table."""
    tables = {
        name: markdown_table(table["head"], [[_cell(cell) for cell in row] for row in table["rows"]])
        for name, table in found["tables"].items()
    }
    return {"sample": found["sample"], **tables}


def _cell(cell: Any) -> str:
    return cell if isinstance(cell, str) else estimate(cell, sign="sign" in cell)


def _run(options: argparse.Namespace, make: Callable[..., GradReranker]) -> Run:
    files, several = {}, []
    for name in options.data:
        path, _, count = name.rpartition(":") if re.search(r":\d+$", name) else (name, "", options.questions)
        read = list(read_questions(path, max(int(count), options.source_questions)))
        files[Path(path).stem] = read[: int(count)]
        several += [(Path(path).stem, q) for q in read[: options.source_questions] if len(q.sources) > 1 and q.gold]
    settings = {"select_sources": False, "max_document_tokens": options.max_document_tokens}
    settings |= {"cache_folder": options.cache_folder, "cache_bytes": 2**28}

    @cache
    def made(name: str) -> GradReranker:
        if name == "second":
            return make(options.second, **settings)
        return make(options.model, **settings, **WORDINGS[name])

    second = Path(options.second).stem if options.second else None
    return Run(files, several, made, second, options.few, Ledger(options.resume))


def _sample(run: Run, options: argparse.Namespace) -> str:
    counts = ", ".join(f"{name} ({len(questions)})" for name, questions in run.files.items())
    return (
        f"The first questions of {counts}; for iteration and the second model the first {run.few} of each, for the "
        f"linearisation the first {run.few} of {next(iter(run.files))}, for the choice of sources {len(run.several)} "
        f"questions with several sources. Documents are cut at {options.max_document_tokens} tokens."
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("data", nargs="*", help="JSON Lines files, each with its number of questions behind a colon where it has one")
    add("--questions", type=int, default=25, help="questions of each other file")
    add("--few", type=int, default=8, help="questions of each file where a table costs many passes")
    add("--source-questions", type=int, default=40, help="questions of a file for the choice of sources")
    add("--max-document-tokens", type=int, default=128)
    add("--model", default=None, help="name or folder; the embedded one when left out")
    add("--second", default=None, help="a model of another family: name, folder or GGUF file")
    add("--resume", type=Path, default=None, help="file that remembers what is done")
    add("--cache-folder", type=Path, default=None, help="document caches on disk, so that none is read twice")
    add("--out", type=Path, required=True, help="JSON file with the figures")
    add("--write", type=Path, default=None, help="page whose tables are written")
    return parser


if __name__ == "__main__":
    main()
