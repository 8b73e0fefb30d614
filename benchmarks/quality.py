r"""Ranking quality: any configurations on any files of questions, to tables and a JSON file.

    python benchmarks/quality.py hotpotqa_train100.jsonl --configurations gates,bm25,minilm,rrf,random
    python benchmarks/quality.py A.jsonl B.jsonl --configurations gates,gates:z=0.3,likelihood,gates+likelihood \
        --questions 50 --max-document-tokens 256 --resume lines.jsonl --out results.json
    python benchmarks/quality.py A.jsonl --configurations gates,native-icr --answers --leave-one-out --target reference
    python benchmarks/quality.py FOLDER --run run.trec --configurations gates,as-given     # BEIR-style folder

The first configuration is the one that the others are compared with. How to write one: see
``gradrerank/evaluation/specs.py``; a list of names: ``--list``. With ``--resume`` a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import copy
import functools
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console

from gradrerank import GradReranker, PromptTexts, SentenceEncoder
from gradrerank.evaluation import (
    WORDINGS,
    Question,
    Report,
    evaluate,
    known_names,
    parse,
    read_beir,
    read_questions,
    save_reports,
    split_specs,
)


def main(argv: Sequence[str] | None = None, reranker: GradReranker | None = None) -> None:
    """Measure and print; ``reranker`` replaces the one that the options describe."""
    options = _parser().parse_args(argv)
    # A file has no width of its own.
    console = Console(width=options.width or (None if sys.stdout.isatty() else 180))
    if options.list or not options.data:
        console.print("Configurations: " + ", ".join(known_names()))
        return
    start = time.perf_counter()
    made = functools.cache(lambda: _reranker(options, reranker))
    reader = functools.cache(lambda: _reader(options) if options.reader else made())
    encoder = reranker.encoder if reranker else SentenceEncoder(device=options.device or "cpu")
    reports = []
    for path in options.data:
        report = evaluate(
            _questions(path, options),
            {
                spec: parse(spec, made, encoder=encoder, seed=options.seed)
                for spec in split_specs(options.configurations)
            },
            data=path.stem,
            reranker=reader() if options.answers or options.drops else None,
            resume=options.resume,
            k=options.k,
            answers=options.answers,
            answer_tokens=options.answer_tokens,
            answer_order=options.answer_order,
            truths=_truths(made) if options.leave_one_out else None,
            drops=options.drops,
            progress=options.progress,
        )
        reports.append(report)
        _print(console, report, options.seed)
        if options.out:
            save_reports(reports, options.out, settings=_shown(options), seed=options.seed)
    console.print(f"{time.perf_counter() - start:.0f} s" + (f"; written to {options.out}" if options.out else ""))


def _questions(path: Path, options: argparse.Namespace) -> Iterable[Question]:
    """Every stride-th question of a file, or of a BEIR-style folder."""
    if path.is_dir():
        if options.run is None:
            raise SystemExit(f"{path} is a folder, so --run must name a run file with the candidates")
        qrels = options.qrels or path / "qrels" / "test.tsv"
        found = read_beir(path / "queries.jsonl", path / "corpus.jsonl", qrels, options.run, depth=options.depth)
    else:
        found = read_questions(path)
    return list(islice(found, options.skip, None if options.questions is None else options.skip + options.questions))


def _print(console: Console, report: Report, seed: int) -> None:
    """As many tables as the width asks for."""
    longest = max(map(len, report.rows))
    at_a_time = max(1, (console.width - min(longest, 40) - 4) // 26)
    for start in range(0, len(report.measures), at_a_time):
        console.print(report.table(report.measures[start : start + at_a_time], seed=seed))


def _truths(made: Callable[[], GradReranker]) -> dict[str, Any]:
    """Leave-one-out on the documents' caches, and on one ordinary prompt."""
    return {"loo caches": parse("ablation", made), "loo prompt": parse("native-leave-one-out", made)}


def _reranker(options: argparse.Namespace, base: GradReranker | None) -> GradReranker:
    settings = {name: getattr(options, name) for name in ("target", "select_sources", "max_document_tokens")}
    if base is not None:
        twin = copy.copy(base)
        twin.settings = base.settings.override(**settings)
        return twin
    place = {name: getattr(options, name) for name in ("cache_folder", "device", "dtype")}
    return GradReranker(options.model, **settings, **place, **_prompt(options.prompt))


def _reader(options: argparse.Namespace) -> GradReranker:
    """The model that answers, where it is another one than the one that ranks."""
    return GradReranker(options.reader, device=options.device, dtype=options.reader_dtype)


def _prompt(text: str) -> dict[str, Any]:
    if text in WORDINGS:
        return dict(WORDINGS[text])
    given = json.loads(Path(text).read_text(encoding="utf-8") if not text.lstrip().startswith("{") else text)
    unknown = set(given) - {field.name for field in fields(PromptTexts)}
    if unknown:
        raise SystemExit(f"--prompt: PromptTexts has no field {min(unknown)!r}")
    return {"prompt": PromptTexts(**given)}


def _shown(options: argparse.Namespace) -> dict[str, Any]:
    plain = {name: value for name, value in vars(options).items() if name not in ("list", "out", "width", "progress")}
    return {name: str(value) if isinstance(value, Path) else value for name, value in plain.items()} | {
        "data": [path.name for path in options.data]
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("data", type=Path, nargs="*", help="JSON Lines files, or BEIR-style folders")
    add("--list", action="store_true", help="list the names of configurations")
    add("--configurations", default="default,gates,likelihood,random,longest,shortest,bm25,minilm,rrf")
    add("--questions", type=int, default=None, help="questions of each file; all when left out")
    add("--skip", type=int, default=0, help="questions that are passed over first")
    add("--run", type=Path, default=None, help="TREC run with the candidates of a folder")
    add("--qrels", type=Path, default=None, help="FOLDER/qrels/test.tsv when left out")
    add("--depth", type=int, default=100, help="candidates of a run")
    add("--out", type=Path, default=None, help="JSON file with everything")
    add("--resume", type=Path, default=None, help="file that remembers what is done")
    add("--cache-folder", type=Path, default=None, help="document caches of other processes")
    add("--answer-order", default="score", choices=["score", "ascending", "edges"], help="how they stand in the prompt")
    add("--answers", type=int, nargs="?", const=5, default=None, help="answer from so many documents (5)")
    add("--answer-tokens", type=int, default=16)
    add("--leave-one-out", action="store_true", help="agreement with leave-one-out, on caches and on the prompt")
    add("--drops", type=int, nargs="*", default=[], help="depths of the fall of the answer's log-probability")
    add("-k", type=int, default=5, help="depth of recall and all-gold")
    add("--target", default="query", choices=["query", "draft", "reference"])
    add(
        "--select-sources",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="choose among sources in other configurations than default, which always does as out of the box",
    )
    add("--max-document-tokens", type=int, default=None)
    add("--prompt", default="default", help=f"{', '.join(WORDINGS)}, or PromptTexts as JSON or a JSON file")
    add("--model", default=None, help="name or folder; the embedded one when left out")
    add("--reader", default=None, help="another model that answers from the best documents: name, folder or GGUF file")
    add("--reader-dtype", default=None)
    add("--device", default=None)
    add("--dtype", default=None)
    add("--seed", type=int, default=0)
    add("--width", type=int, default=None, help="columns of the table")
    add("--progress", action=argparse.BooleanOptionalAction, default=None)
    return parser


if __name__ == "__main__":
    main()
