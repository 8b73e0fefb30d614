"""Time and memory: one call cold and warm, many documents, many queries, a second process.

    python benchmarks/speed.py call                # 20 made-up documents of 90 tokens
    python benchmarks/speed.py call --documents 20 --tokens 150
    python benchmarks/speed.py call --data ../shared/data/musique_train100.jsonl
    python benchmarks/speed.py scale               # 100 and 1,000 documents
    python benchmarks/speed.py batch               # 64 queries over 100 documents
    python benchmarks/speed.py start               # a second process to its first result

What is compared is measured in one process on the same documents, in turn, the median of several
rounds. Absolute seconds depend on the machine; the ratios are what to compare.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from gradrerank import GradReranker, SentenceEncoder
from gradrerank.evaluation import read_questions
from gradrerank.lm.prompt import DocumentTokens

WORDS = """
the ferry to the island leaves from the east pier every morning and the keeper of the lighthouse writes down
the weather while the tram carries visitors over the hill to the old harbour where boats are repaired
""".split()  # noqa: SIM905
QUERY = "When does the ferry to the island leave, and from which pier?"
OUT = Console(width=110)


def make_documents(reranker: GradReranker, n: int, tokens: int) -> list[str]:
    """Texts that differ, each of about ``tokens`` tokens with what the prompt adds."""
    texts = []
    for i in range(n):
        words = [f"Note {i}."] + [WORDS[(i * 7 + j * (i % 5 + 1)) % len(WORDS)] for j in range(2 * tokens)]
        document = reranker.generator.layout.documents([(None, " ".join(words))], max_tokens=tokens)[0]
        texts.append(document.text[: document.kept[1]])
    return texts


def rounds(works: dict[str, Callable[[], object]], n: int) -> dict[str, float]:
    """Median seconds of each piece of work, run in turn n times after a round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for i in range(n + 1):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in times.items()}


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


def show(title: str, seconds: dict[str, float], unit: str) -> None:
    """Print seconds, and how many times those of ``unit`` they are."""
    table = Table(title=title)
    for column in ("", "seconds", f"x {unit}"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in seconds.items():
        table.add_row(name, f"{value:.3f}", f"{value / seconds[unit]:.2f}")
    OUT.print(table)


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
    encoder, before = SentenceEncoder(cache_size=1), peak_mib()

    def cold() -> None:
        reranker.generator.store.clear()
        reranker.rerank(query, {"notes": texts})

    def warm(scorer: str = "gates") -> None:
        reranker.rerank(query, {"notes": texts}, scorer=scorer)

    seconds = rounds(
        {
            "gates, cold": cold,
            "gates, warm": warm,
            "one plain forward over the documents": lambda: plain_forward(reranker, documents),
            "MiniLM bi-encoder": lambda: encoder.encode([*texts, query]),
            "mixture": lambda: warm("mixture"),
        },
        options.rounds,
    )
    rows = rounds({"row": lambda: naive_row(reranker, query, documents), "ablation": lambda: warm("ablation")}, 2)
    seconds["ablation, warm"] = rows["ablation"]
    seconds[f"naive leave-one-out ({len(texts) + 1} prompts, from the time of one)"] = (len(texts) + 1) * rows["row"]
    size = f"{len(texts)} documents, {sum(map(len, documents))} tokens"
    show(f"{size}, {options.dtype}, {torch.get_num_threads()} threads", seconds, "gates, cold")
    ratios = {
        "warm / MiniLM": seconds["gates, warm"] / seconds["MiniLM bi-encoder"],
        "cold / plain forward": seconds["gates, cold"] / seconds["one plain forward over the documents"],
        "naive / cold": (len(texts) + 1) * rows["row"] / seconds["gates, cold"],
        "naive / warm": (len(texts) + 1) * rows["row"] / seconds["gates, warm"],
    }
    OUT.print(", ".join(f"{name} {value:.2f}" for name, value in ratios.items()))
    held = reranker.generator.store.nbytes / 2**20
    OUT.print(
        f"document store {held:.0f} MiB; peak memory {peak_mib():.0f} MiB, before the first call {before:.0f} MiB"
    )


def scale(options: argparse.Namespace, reranker: GradReranker) -> None:
    """100 and 1,000 documents, cold and warm."""
    texts = make_documents(reranker, 1000, options.tokens)
    seconds = {}
    for n in (100, 1000):
        reranker.generator.store.clear()
        for state in ("cold", "warm"):
            start = time.perf_counter()
            reranker.rerank(QUERY, {"notes": texts[:n]})
            seconds[f"{n} documents, {state}"] = time.perf_counter() - start
    show(f"{options.tokens} tokens a document, {options.dtype}", seconds, "100 documents, cold")
    for state in ("cold", "warm"):
        OUT.print(
            f"{state}: 1,000 / 100 = {seconds[f'1000 documents, {state}'] / seconds[f'100 documents, {state}']:.1f}"
        )
    OUT.print(f"peak memory {peak_mib():.0f} MiB")


def batch(options: argparse.Namespace, reranker: GradReranker) -> None:
    """64 queries over one pool of 100 documents: single warm calls and one batch."""
    texts = make_documents(reranker, 100, options.tokens)
    queries = [f"{QUERY[:-1]}, says note {i}?" for i in range(64)]
    reranker.rerank(QUERY, {"notes": texts})
    works: dict[str, Callable[[], object]] = {
        "64 single warm calls": lambda: [reranker.rerank(query, {"notes": texts}) for query in queries],
        "one batch of 64": lambda: reranker.rerank_batch(queries, {"notes": texts}),
    }
    show("64 queries, 100 documents in the store", rounds(works, 1), "one batch of 64")


def start(options: argparse.Namespace, reranker: GradReranker) -> None:
    """A second process, imports included, to its first result on 10 short documents."""
    del reranker
    code = (
        "from gradrerank import GradReranker; "
        "print(len(GradReranker().rerank('When?', [f'The ferry {i} leaves at {i}.' for i in range(10)])))"
    )
    works = {"second process to its first result": lambda: subprocess.run([sys.executable, "-c", code], check=True)}
    show("10 short documents", rounds(works, options.rounds), "second process to its first result")


def main() -> None:
    """Run one of the measurements."""
    measurements = {f.__name__: f for f in (call, scale, batch, start)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=list(measurements))
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=90)
    parser.add_argument("--data", type=Path, default=None, help="the documents of the first question of this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default=None)
    options = parser.parse_args()
    capacity = 8 << 30 if options.what == "scale" else None
    reranker = GradReranker(dtype=options.dtype, device=options.device, cache_bytes=capacity)
    measurements[options.what](options, reranker)


if __name__ == "__main__":
    main()
