"""Time and memory of one call: cold, warm, and beside the ways that need a pass for each document.

    python benchmarks/speed.py --documents 20 --tokens 150

Everything is measured in one process on the same documents, the median of several runs. Absolute
seconds depend on the machine; the ratios are what to compare.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from gradrerank import GradReranker, SentenceEncoder
from gradrerank.lm.prompt import DocumentTokens

WORDS = """
the ferry to the island leaves from the east pier every morning and the keeper of the lighthouse writes down
the weather while the tram carries visitors over the hill to the old harbour where boats are repaired
""".split()  # noqa: SIM905
QUERY = "When does the ferry to the island leave, and from which pier?"


def make_documents(reranker: GradReranker, n: int, tokens: int) -> list[str]:
    """Texts that differ, each of exactly ``tokens`` tokens with what the prompt adds."""
    texts = []
    for i in range(n):
        words = [f"Note {i}."] + [WORDS[(i * 7 + j * (i % 5 + 1)) % len(WORDS)] for j in range(2 * tokens)]
        document = reranker.generator.layout.documents([(None, " ".join(words))], max_tokens=tokens)[0]
        texts.append(document.text[: document.kept[1]])
    return texts


def seconds(work: Callable[[], object], runs: int, before: Callable[[], object] = lambda: None) -> float:
    """Median wall time after one run that does not count."""
    times = []
    for run in range(runs + 1):
        before()
        start = time.perf_counter()
        work()
        if run:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def plain_forward(reranker: GradReranker, documents: list[DocumentTokens]) -> None:
    """One plain forward over the documents' tokens as one batch, without the vocabulary projection."""
    longest = max(map(len, documents))
    ids = torch.tensor([list(d.ids) + [0] * (longest - len(d)) for d in documents])
    with torch.no_grad():
        reranker.generator.plain.base_model(ids, use_cache=False)


def naive_leave_one_out(reranker: GradReranker, documents: list[DocumentTokens], rows: int) -> None:
    """``rows`` ordinary prompts with one document left out each, read in full."""
    layout = reranker.generator.layout
    with torch.no_grad():
        for i in range(rows):
            ids = layout.ordinary_prompt(QUERY, documents[:i] + documents[i + 1 :], limit=10**6)
            reranker.generator.plain(torch.tensor([ids]), use_cache=False, logits_to_keep=16)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default=None)
    options = parser.parse_args()
    reranker = GradReranker(dtype=options.dtype, device=options.device)
    texts = make_documents(reranker, options.documents, options.tokens)
    documents = reranker.generator.layout.documents([(None, text) for text in texts])
    before = peak_mib()
    encoder = SentenceEncoder(cache_size=1)
    clear = reranker.generator.store.clear

    def rank(scorer: str = "gates") -> object:
        return reranker.rerank(QUERY, {"notes": texts}, scorer=scorer)

    cold = seconds(rank, options.runs, before=clear)
    measured = {
        "gates, cold": cold,
        "gates, warm (documents in the store)": seconds(rank, options.runs),
        "ablation, warm": seconds(lambda: rank("ablation"), 1),
        "mixture": seconds(lambda: rank("mixture"), options.runs),
        "one plain forward over the documents": seconds(lambda: plain_forward(reranker, documents), options.runs),
        "MiniLM bi-encoder on the documents": seconds(lambda: encoder.encode([*texts, QUERY]), options.runs),
        "naive leave-one-out (from 3 of its prompts)": options.documents
        / 3
        * seconds(lambda: naive_leave_one_out(reranker, documents, 3), 1),
    }
    n_tokens = sum(map(len, documents))
    table = Table(
        title=f"{len(texts)} documents, {n_tokens} tokens, {options.dtype}, {torch.get_num_threads()} threads"
    )
    for column in ("", "seconds", "x gates, cold"):
        table.add_column(column, justify="left" if not column else "right")
    for name, value in measured.items():
        table.add_row(name, f"{value:.3f}", f"{value / cold:.2f}")
    Console(width=100).print(table)
    held = reranker.generator.store.nbytes / 2**20
    Console(width=100).print(
        f"document store {held:.0f} MiB; peak memory {peak_mib():.0f} MiB, of which {before:.0f} before the first call"
    )


def peak_mib() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
