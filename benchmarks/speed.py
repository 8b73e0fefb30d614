"""Time and memory: one call cold and warm, 10 to 1,000 documents, many queries, a second process.

    python benchmarks/speed.py call                # 20 made-up documents of 90 tokens
    python benchmarks/speed.py call --documents 20 --tokens 150
    python benchmarks/speed.py call --data musique_train100.jsonl
    python benchmarks/speed.py rows                # a question's products with the weights
    python benchmarks/speed.py scale               # 10, 100 and 1,000 documents
    python benchmarks/speed.py batch               # 64 queries over 100 documents
    python benchmarks/speed.py start               # a second process to its first result
    python benchmarks/speed.py all --out speed.json

What is compared is measured in one process on the same documents, in turn, over several rounds after
one that does not count. Absolute seconds depend on the machine; the ratios are what to compare.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from gradrerank import GradReranker, SentenceEncoder
from gradrerank.evaluation import read_questions
from gradrerank.lm.few_rows import SlicedProduct
from gradrerank.lm.prompt import DocumentTokens
from gradrerank.scorers import DEFAULT_SCORER, SCORERS

WORDS = """
the ferry to the island leaves from the east pier every morning and the keeper of the lighthouse writes down
the weather while the tram carries visitors over the hill to the old harbour where boats are repaired
""".split()  # noqa: SIM905
QUERY = "When does the ferry to the island leave, and from which pier?"
OUT = Console(width=110)
RESULTS: list[dict[str, Any]] = []


def make_documents(reranker: GradReranker, n: int, tokens: int) -> list[str]:
    """Texts that differ, each of about ``tokens`` tokens with what the prompt adds."""
    texts = []
    for i in range(n):
        words = [f"Note {i}."] + [WORDS[(i * 7 + j * (i % 5 + 1)) % len(WORDS)] for j in range(2 * tokens)]
        document = reranker.generator.layout.documents([(None, " ".join(words))], max_tokens=tokens)[0]
        texts.append(document.text[: document.kept[1]])
    return texts


def rounds(works: dict[str, Callable[[], object]], n: int) -> dict[str, list[float]]:
    """Seconds of each piece of work, run in turn n times after a round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for i in range(n + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if i:
                times[name].append(time.perf_counter() - start)
    return times


def plain_forward(reranker: GradReranker, documents: list[DocumentTokens]) -> None:
    """One plain forward over the documents' tokens, as one text without padding or vocabulary projection."""
    ids = torch.tensor([[token for d in documents for token in d.ids]], device=reranker.generator.device)
    with torch.no_grad():
        reranker.generator.plain.base_model(ids, use_cache=False)


def naive_row(reranker: GradReranker, query: str, documents: list[DocumentTokens]) -> None:
    """One ordinary prompt with one document left out, read in full: a row of naive leave-one-out."""
    ids = reranker.generator.layout.ordinary_prompt(query, documents[1:], limit=10**6)
    with torch.no_grad():
        reranker.generator.plain(
            torch.tensor([ids], device=reranker.generator.device), use_cache=False, logits_to_keep=16
        )


def show(
    title: str, times: dict[str, list[float]], unit: str, tokens: dict[str, int] | None = None
) -> dict[str, float]:
    """Print median, 95th percentile, tokens, and the ratio to ``unit``; give the medians back."""
    median = {name: statistics.median(found) for name, found in times.items()}
    table = Table(title=title)
    for column in ("", "seconds", "95th percentile", f"x {unit}", "tokens"):
        table.add_column(column, justify="left" if not column else "right")
    for name, found in times.items():
        slow = sorted(found)[min(len(found) - 1, round(0.95 * (len(found) - 1)))]
        seen = str(tokens[name]) if tokens and name in tokens else ""
        table.add_row(name, f"{median[name]:.3f}", f"{slow:.3f}", f"{median[name] / median[unit]:.2f}", seen)
        RESULTS.append({"title": title, "name": name, "seconds": found, "tokens": (tokens or {}).get(name)})
    OUT.print(table)
    return median


def say(text: str) -> None:
    """Print a line and keep it."""
    OUT.print(text)
    RESULTS.append({"title": text})


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def call(options: argparse.Namespace, reranker: GradReranker) -> None:
    """One call on some documents, beside what else could be done with them."""
    query, texts = QUERY, make_documents(reranker, options.documents, options.tokens)
    if options.data:
        question = next(read_questions(options.data))
        query, texts = question.text, [d.text for found in question.sources.values() for d in found]
    documents = reranker.generator.layout.documents([(None, text) for text in texts])
    encoder, before, results = SentenceEncoder(cache_size=1), peak_mib(), {}

    def rank(name: str, scorer: str) -> None:
        if name.endswith("cold"):
            reranker.generator.store.clear()
        results[name] = reranker.rerank(query, {"notes": texts}, scorer=scorer)

    naive = f"naive leave-one-out ({len(texts) + 1} prompts, from the time of one)"
    forward, dense = "one plain forward over the documents", "MiniLM bi-encoder"
    works: dict[str, Callable[[], object]] = {
        "gates, cold": lambda: rank("gates, cold", "gates"),
        "gates, warm": lambda: rank("gates, warm", "gates"),
        forward: lambda: plain_forward(reranker, documents),
        dense: lambda: encoder.encode([*texts, query]),
        f"{DEFAULT_SCORER}, cold": lambda: rank(f"{DEFAULT_SCORER}, cold", DEFAULT_SCORER),
        f"{DEFAULT_SCORER}, warm": lambda: rank(f"{DEFAULT_SCORER}, warm", DEFAULT_SCORER),
    }
    times = rounds(works, options.rounds)
    others = [name for name in SCORERS if name not in ("gates", "similarity")]
    slower = {f"{name}, warm": lambda name=name: rank(f"{name}, warm", name) for name in others}
    times |= rounds({**slower, naive: lambda: naive_row(reranker, query, documents)}, 2)
    times[naive] = [(len(texts) + 1) * seconds for seconds in times[naive]]
    tokens = {name: sum(result.tokens.values()) for name, result in results.items()}
    tokens[forward] = sum(map(len, documents))
    size = f"{len(texts)} documents, {tokens[forward]} tokens"
    median = show(f"{size}, {options.dtype}, {torch.get_num_threads()} threads", times, "gates, cold", tokens)
    ratios = {
        "warm / MiniLM": median["gates, warm"] / median[dense],
        "cold / plain forward": median["gates, cold"] / median[forward],
        "naive / cold": median[naive] / median["gates, cold"],
        "naive / warm": median[naive] / median["gates, warm"],
    }
    say("gates: " + ", ".join(f"{name} {value:.2f}" for name, value in ratios.items()))
    for name in ("gates, cold", "gates, warm"):
        say(f"{name}, seconds by stage: " + ", ".join(f"{k} {v:.3f}" for k, v in results[name].timings.items()))
    held = reranker.generator.store.nbytes / 2**20
    say(f"document store {held:.0f} MiB; peak memory {peak_mib():.0f} MiB, before the first call {before:.0f} MiB")


def scale(options: argparse.Namespace, reranker: GradReranker) -> None:
    """10, 100 and 1,000 documents, cold and warm."""
    texts = make_documents(reranker, 1000, options.tokens)
    reranker.rerank(QUERY, {"notes": texts[:3]}, scorer="gates")
    times: dict[str, list[float]] = {}
    for n in (10, 100, 1000):
        reranker.generator.store.clear()
        for state in ("cold", "warm"):
            for _ in range(1 if state == "cold" else 3):
                start = time.perf_counter()
                reranker.rerank(QUERY, {"notes": texts[:n]}, scorer="gates")
                times.setdefault(f"{n} documents, {state}", []).append(time.perf_counter() - start)
        say(f"{n} documents: peak memory {peak_mib():.0f} MiB")
    median = show(f"{options.tokens} tokens a document, {options.dtype}", times, "100 documents, cold")
    for state in ("cold", "warm"):
        say(f"{state}: 1,000 / 100 = {median[f'1000 documents, {state}'] / median[f'100 documents, {state}']:.1f}")


def batch(options: argparse.Namespace, reranker: GradReranker) -> None:
    """64 queries over one pool of 100 documents: single warm calls and one batch."""
    texts = make_documents(reranker, 100, options.tokens)
    queries = [f"{QUERY[:-1]}, says note {i}?" for i in range(64)]
    reranker.rerank(QUERY, {"notes": texts}, scorer="gates")
    works: dict[str, Callable[[], object]] = {
        "64 single warm calls": lambda: [reranker.rerank(q, {"notes": texts}, scorer="gates") for q in queries],
        "one batch of 64": lambda: reranker.rerank_batch(queries, {"notes": texts}, scorer="gates"),
    }
    show("64 queries, 100 documents in the store", rounds(works, 1), "one batch of 64")


def rows(options: argparse.Namespace, reranker: GradReranker) -> None:
    """All products of a question's tokens with the weights, forward and backward: as one product and by slices."""
    layers = [layer for layer in reranker.generator.plain.modules() if type(layer) is torch.nn.Linear]
    times: dict[str, list[float]] = {}
    for n in (4, 17, 64):
        sizes = {size for layer in layers for size in layer.weight.shape}
        inputs = {size: torch.randn(n, size, requires_grad=True) for size in sizes}
        pulls = {size: torch.randn(n, size) for size in sizes}

        def multiply(product: Any, inputs: Any = inputs, pulls: Any = pulls) -> None:
            for layer in layers:
                x = inputs[layer.in_features]
                torch.autograd.grad(product(x, layer.weight), x, pulls[layer.out_features])

        works: dict[str, Callable[[], object]] = {
            f"{n} rows, one product": lambda many=multiply: many(torch.nn.functional.linear),
            f"{n} rows, slices": lambda many=multiply: many(SlicedProduct.apply),
        }
        times |= rounds(works, options.rounds)
    show(f"{len(layers)} weights, {torch.get_num_threads()} threads", times, "17 rows, one product")


def start(options: argparse.Namespace, reranker: GradReranker) -> None:
    """A second process, imports included, to its first result on 10 short documents."""
    del reranker
    code = (
        "from gradrerank import GradReranker; "
        "print(len(GradReranker().rerank('When?', [f'The ferry {i} leaves at {i}.' for i in range(10)])))"
    )

    def run() -> None:
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)

    show("10 short documents", rounds({"second process": run}, options.rounds), "second process")


def main() -> None:
    """Run one of the measurements, or all of them."""
    measurements = {f.__name__: f for f in (start, call, rows, batch, scale)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=[*measurements, "all"])
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=90)
    parser.add_argument("--data", type=Path, default=None, help="the documents of the first question of this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None, help="a JSON file of all that was measured")
    options = parser.parse_args()
    reranker = GradReranker(dtype=options.dtype, device=options.device, cache_bytes=8 << 30)
    for name in measurements if options.what == "all" else [options.what]:
        measurements[name](options, reranker)
    if options.out:
        options.out.write_text(json.dumps(RESULTS, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
