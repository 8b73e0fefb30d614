"""Writes CASES.md, the list of cases from the field with the tests that cover each: ``python tests/cases_table.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent

# What fails in the field, and what else of its kind is tried.
CASES = {
    "C01": ("nothing to rank", "empty sources beside full ones, under budgets, weights and compression"),
    "C02": ("blank documents", "zero-width, NUL, BOM, tag characters, fillers, variation selectors"),
    "C03": ("positions shift after filtering", "permutations with blank and doubled documents; scores by text"),
    "C04": ("counts that cannot be meant", "zero, negative, bool, float, NaN, text, arrays, huge; every count"),
    "C05": ("wrong kinds of item", "generators, dicts, sets, bytes; rubbish from sources and scorers"),
    "C06": ("a query without text", "blank, invisible, None, numbers, bytes, lists, a bundle with an embedding only"),
    "C07": ("content of LlamaIndex nodes", "every metadata mode, image and index nodes, drafts"),
    "C08": ("what is the same document", "equal texts under other ids, other texts under one id, white space around"),
    "C09": ("odd metadata", "sets, arrays, tensors, functions, NaN, keys of mixed types"),
    "C10": ("the caller's objects changed", "shared metadata, every setting that writes, a call that fails half-way"),
    "C11": ("no retrieval score is not zero", "None beside negative scores, two scores of one document, every fusion"),
    "C12": ("numbers that are not plain", "every scorer; scores, spans, records as JSON"),
    "C13": ("sources that fail", "raise, hang, give rubbish, end the program, are cancelled; the interpreter ends"),
    "C14": ("scales of scores", "times 1e-6 to 1e9, denormal and largest floats, constant lists, single hits"),
    "C15": ("weights", "unknown, zero, negative, NaN, text, by position; their scale; every choice"),
    "C16": ("bounds", "inclusive on the score that is shown, NaN, infinite, none passes, all pass"),
    "C17": ("event loops", "ticking, twenty calls, two loops, cancel, wait_for, timeout, sync inside a loop"),
    "C18": ("threads and processes", "16 threads, two rerankers on one model, fork, spawn, a tokenizer in use"),
    "C19": ("gradient mode of threads", "no_grad, inference mode, switched off, autocast; every scorer; after errors"),
    "C20": ("copies and dumps", "copy, deepcopy, pickle, dumps, repr; a ready model is refused"),
    "C21": ("offsets", "emoji sequences, flags, NFC and NFD, ligatures, bidi, Thai, Hangul, surrogates"),
    "C22": ("edges inside a token", "words, line ends, emoji, combining marks and markers cut over two documents"),
    "C23": ("control tokens in content", "special and added, nested, cut, in titles, queries and answers"),
    "C24": ("chat templates", "none, without system, with BOS, thinking, dropping the system text, failing"),
    "C25": ("tokenizers", "no padding, padding = end, left padding, slow, more ids than rows"),
    "C26": ("documents that are cut", "one warning, ranges that were read, whole text back"),
    "C27": ("lengths", "documents, queries and templates over the limit, limits met exactly, many small documents"),
    "C28": ("inference mode", "calls, construction, what was cached inside; as for C19"),
    "C29": ("marks on the user's model", "training mode, dropout, hooks, RNG, config; a scorer that raises late"),
    "C30": ("padding and positions", "six families, both sides, queries and documents of all lengths in one batch"),
    "C31": ("silent zeros", "no path to the loss, exact zeros, tiny and huge scores, half precision"),
    "C32": ("not repeatable", "batch sizes, order, seeds, hash seeds, repeats; every scorer"),
}  # fmt: skip

FRAMEWORKS = ("core", "LangChain", "LlamaIndex")
# What a case has no meaning for.
ELSEWHERE = {
    ("C07", "core"): "no nodes",
    ("C07", "LangChain"): "no nodes",
}


def covering(case: str) -> dict[str, list[str]]:
    """Tests that carry a case in their name, as ``file::name``, by what they go through."""
    found: dict[str, list[str]] = {framework: [] for framework in FRAMEWORKS}
    for path, name, through in _tests():
        if case in name:
            for framework in through:
                found[framework].append(f"{path}::{name}")
    return found


def _tests() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    for path in sorted(TESTS.rglob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^((?:@.*\n(?:[ )\]].*\n)*)*)(?:async )?def (test_\w+)", text, re.MULTILINE):
            marks, name = match.group(1) or "", match.group(2)
            folder = path.parent.name
            through: tuple[str, ...] = ("LlamaIndex",) if "C07" in name else ("core",)
            if folder in ("langchain", "llamaindex"):
                through = ({"langchain": "LangChain", "llamaindex": "LlamaIndex"}[folder],)
            elif "every_way" in marks:
                through = FRAMEWORKS
            elif "frameworks" in marks:
                through = FRAMEWORKS[1:]
            yield str(path.relative_to(TESTS)), name, through


def table() -> str:
    """The whole page."""
    lines = [
        "# Cases from the field, and the tests that cover them",
        "",
        "`pytest -k C18` runs the tests of case C18. The number of tests counts functions, each of which runs for many",
        "inputs. Those in `test_cases_*.py` go through the core and both framework packages with the same inputs.",
        "Written by `python tests/cases_table.py`; `test_cases_table.py` holds it to what is there.",
        "",
        "| case | what fails | what else of its kind is tried | core | LangChain | LlamaIndex | one of them |",
        "|---|---|---|---|---|---|---|",
    ]
    for case, (what, kind) in CASES.items():
        found = covering(case)
        counts = [str(len(found[f])) if found[f] else ELSEWHERE.get((case, f), "0") for f in FRAMEWORKS]
        every = [name for names in found.values() for name in names]
        first = next((name for name in every if "test_cases_" in name), every[0] if every else "")
        lines.append(f"| {case} | {what} | {kind} | {' | '.join(counts)} | `{first}` |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (TESTS / "CASES.md").write_text(table(), encoding="utf-8")
