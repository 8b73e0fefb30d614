r"""The results tables of README.md and benchmarks/RESULTS.md, from the JSON files in benchmarks/results.

    python benchmarks/quality.py A.jsonl --configurations default,gates,minilm --out run.json
    python benchmarks/tables.py add run.json     # keeps means and intervals in results/quality-A.json, then as below
    python benchmarks/tables.py                  # writes both tables anew

``add`` joins configurations and measures with those that are there already, newer ones in their place; a
difference from something that was measured anew is dropped where it was not. It refuses figures of another number
of questions or other settings than the rest of the file; ``--replace`` starts the file anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradrerank.evaluation.markdown import estimate, fill, markdown_table, number

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
NDCG = "nDCG@10"
# Columns by name of the file of questions.
SETS = {"hotpotqa_train100": "HotpotQA", "2wiki_train200": "2Wiki", "musique_train100": "MuSiQue"}
FEDERATED = {"federated_5src": "federated"}
README_ROWS = {
    "default": "`gates+likelihood+links` (default)",
    "gates+likelihood": "`gates+likelihood`",
    "gates": "`gates`",
    "likelihood": "`likelihood` (UPR)",
    "minilm": "MiniLM bi-encoder",
    "rrf": "BM25 and MiniLM by reciprocal rank fusion",
    "bm25": "BM25",
    "attention:readers=prompt": "attention (ICR)",
    "mixture": "`mixture` (soft token)",
    "random": "random order",
}
RESULTS_ROWS = ("default", "gates+likelihood", "gates", "likelihood", "minilm", "rrf", "bm25", "default+0.25*minilm")
RESULTS_ROWS += ("gates+links", "likelihood+links", "minilm+links", "rrf+links", "bm25+links")
RESULTS_ROWS += ("attention:readers=prompt", "mixture", "longest", "shortest", "random")
# Settings of a run that its figures depend on.
SETTINGS = ("target", "select_sources", "max_document_tokens", "prompt", "model", "dtype", "skip", "seed")


def main(argv: Sequence[str] | None = None) -> None:
    """Add figures where there are some, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["add"], help="add the figures of some files first")
    parser.add_argument("files", type=Path, nargs="*", help="what benchmarks/quality.py --out wrote")
    parser.add_argument("--replace", action="store_true", help="forget what is there of the same questions")
    options = parser.parse_args(argv)
    for file in options.files:
        add(json.loads(file.read_text(encoding="utf-8")), RESULTS, replace=options.replace)
    for path, text in written(RESULTS).items():
        path.write_text(text, encoding="utf-8")


def add(run: Mapping[str, Any], folder: Path, *, replace: bool = False) -> list[Path]:
    """Keep the means and intervals of a run, one file for each file of questions."""
    written = []
    for report in run["reports"]:
        new = {
            "data": report["data"],
            "questions": report["questions"],
            "settings": {name: run["settings"].get(name) for name in SETTINGS},
            "configurations": {
                name: {measure: _short(found, report["first"]) for measure, found in row["measures"].items()}
                for name, row in report["configurations"].items()
            },
        }
        path = folder / f"quality-{report['data']}.json"
        if path.exists() and not replace:
            new = _joined(json.loads(path.read_text(encoding="utf-8")), new, path.name)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(_lines(new), encoding="utf-8")
        written.append(path)
    return written


def _lines(figures: Mapping[str, Any]) -> str:
    """JSON with a line for each configuration, so that a change of one is a change of one line."""
    rows = [f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in figures["configurations"].items()]
    head = json.dumps({name: value for name, value in figures.items() if name != "configurations"}, indent=1)
    return head.removesuffix("\n}") + ',\n "configurations": {\n' + ",\n".join(rows) + "\n }\n}\n"


def _short(found: Mapping[str, Any], first: str) -> dict[str, Any]:
    """Numbers of six digits, and what the difference is from."""
    short = {name: round(value, 6) for name, value in found.items() if name != "difference"}
    if "difference" in found:
        short["difference"] = {"from": first, **_short(found["difference"], first)}
    return short


def _joined(old: Mapping[str, Any], new: Mapping[str, Any], name: str) -> dict[str, Any]:
    for key in ("questions", "settings"):
        if old[key] != new[key]:
            raise SystemExit(f"{name} holds figures of {key} {old[key]}, not {new[key]}; --replace forgets them")
    rows = {row: _without_differences(m, new["configurations"]) for row, m in old["configurations"].items()}
    for row, measures in new["configurations"].items():
        rows[row] = {**rows.get(row, {}), **measures}
    return {**new, "configurations": rows}


def _without_differences(measures: Mapping[str, Any], anew: Mapping[str, Any]) -> dict[str, Any]:
    """Figures less their differences from configurations that were measured anew, which hold no longer."""
    return {
        measure: {
            name: value
            for name, value in found.items()
            if name != "difference" or measure not in anew.get(value["from"], {})
        }
        for measure, found in measures.items()
    }


def written(folder: Path) -> dict[Path, str]:
    """README.md and RESULTS.md with the tables that the files in the folder give."""
    found = {
        path.stem.removeprefix("quality-"): json.loads(path.read_text("utf-8"))
        for path in folder.glob("quality-*.json")
    }
    tables = {ROOT / "README.md": _readme_table(found), ROOT / "benchmarks" / "RESULTS.md": _results_table(found)}
    return {path: fill(path.read_text(encoding="utf-8"), {"ranking": text}) for path, text in tables.items()}


def _readme_table(found: Mapping[str, Any]) -> str:
    """The default with its interval, the others by their means; three sets."""
    counts = [f"{name} ({found[data]['questions']})" for data, name in SETS.items()]
    counts[0] = counts[0].replace(")", " questions)")
    rows = []
    for row, label in README_ROWS.items():
        cells = [found[data]["configurations"][row][NDCG] for data in SETS]
        shown = [number(cell["mean"]) for cell in cells]
        if row == "default":
            shown = [f"**{mean}**{estimate(cell).removeprefix(mean)}" for mean, cell in zip(shown, cells, strict=True)]
        rows.append([label, *shown])
    return markdown_table(["", *counts], rows)


def _results_table(found: Mapping[str, Any]) -> str:
    """Every configuration with its interval, on all sets where it was measured."""
    sets = SETS | FEDERATED
    head = ["configuration", *(f"{name} ({found[data]['questions']})" for data, name in sets.items())]
    rows = []
    for row in RESULTS_ROWS:
        label = "**`default`** (`gates+likelihood+links`)" if row == "default" else f"`{row}`"
        cells = [found[data]["configurations"].get(row, {}).get(NDCG) for data in sets]
        rows.append([label, *(estimate(cell) if cell else "–" for cell in cells)])
    return markdown_table(head, rows)


if __name__ == "__main__":
    main()
