"""Many reranks with changing documents: does anything grow, and is anything left behind?

    python benchmarks/soak.py --reranks 2000            a tiny random model, a minute or a few
    python benchmarks/soak.py --reranks 200 --real      the embedded model

Prints the resident memory at equal distances with the number of threads, open files, hooks on the model and live
tensors, and how far memory moved after the warm-up. Exits with 1 when memory rose by more than 5% or anything
else grew.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from gradrerank import Document, GradReranker
from gradrerank.scorers import SCORERS

WORDS = ["ferry", "tram", "harbour", "hill", "house", "book", "water", "kettle", "hour", "nine", "runs", "leaves"]
WARM_UP = 0.2  # of all reranks
ALLOWED = 0.05  # of the memory after the warm-up


@dataclass(frozen=True)
class Sample:
    """What a process holds after some reranks.

    Args:
        done: Reranks so far.
        memory: Resident bytes.
        threads: Threads of Python.
        files: Open files and sockets.
        hooks: Hooks on all modules of the model.
        tensors: Tensors that are alive.
    """

    done: int
    memory: int
    threads: int
    files: int
    hooks: int
    tensors: int


def soak(
    reranker: GradReranker, model: Any, reranks: int, samples: int = 20, scorers: Sequence[Any] = ()
) -> list[Sample]:
    """Rerank again and again, every call with documents that no call had before.

    Args:
        reranker: The reranker; its store should be small, or its filling up is what is seen.
        model: The model whose hooks are counted.
        reranks: Number of calls.
        samples: Number of samples.
        scorers: Scorers that take turns; none for the reranker's own.

    Returns:
        The samples, at equal distances.
    """
    rng, found = random.Random(0), []
    marks = {round((i + 1) * reranks / samples) for i in range(samples)}
    for done, (query, sources) in enumerate(_questions(rng, reranks), start=1):
        use = {"scorer": scorers[done % len(scorers)]} if scorers else {}
        result = reranker.rerank(query, sources, top_n=3, **use)
        assert len(result) + len(result.dropped) > 0
        if done in marks:
            del result
            found.append(_sample(done, model))
    return found


def growth(samples: Sequence[Sample]) -> float:
    """How much memory rose after the warm-up, as a share: the mean of its last fifth over that of its first."""
    steady = [s.memory for s in samples if s.done > WARM_UP * samples[-1].done]
    part = max(1, len(steady) // 5)
    return sum(steady[-part:]) / sum(steady[:part]) - 1


def left_behind(samples: Sequence[Sample]) -> list[str]:
    """What there is more of at the end than after the warm-up, apart from memory."""
    steady = [s for s in samples if s.done > WARM_UP * samples[-1].done]
    names = ("threads", "files", "hooks", "tensors")
    return [
        name for name in names if getattr(steady[-1], name) > max(getattr(s, name) for s in steady[:2]) + _SLACK[name]
    ]


# Tensors: a store at its capacity holds more small documents at one time than at another.
_SLACK = {"threads": 0, "files": 0, "hooks": 0, "tensors": 40}


def _questions(rng: random.Random, n: int) -> Iterator[tuple[str, dict[str, list[Document]]]]:
    for call in range(n):
        names = [f"source{i}" for i in range(rng.randint(1, 4))]
        sources = {
            name: [Document(_text(rng, call), id=f"{call}-{name}-{i}") for i in range(rng.randint(1, 6))]
            for name in names
        }
        yield f"{_text(rng, call, 4)}?", sources


def _text(rng: random.Random, call: int, most: int = 30) -> str:
    return f"{call} " + " ".join(rng.choices(WORDS, k=rng.randint(2, most))) + "."


def _sample(done: int, model: Any) -> Sample:
    gc.collect()
    process = psutil.Process()
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
    tensors = sum(1 for thing in gc.get_objects() if type(thing) is torch.Tensor)
    files = process.num_fds() if hasattr(process, "num_fds") else process.num_handles()
    return Sample(done, process.memory_info().rss, threading.active_count(), files, hooks, tensors)


def _letters(texts: Any) -> Any:
    return np.array([[1.0 + text.lower().count(chr(97 + i)) for i in range(26)] for text in texts])


def _tiny() -> tuple[GradReranker, Any]:
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from tiny import tiny

    pair = tiny()
    return GradReranker(pair, encoder=_letters, cache_bytes=4 << 20), pair[0]


def _real() -> tuple[GradReranker, Any]:
    reranker = GradReranker(cache_bytes=64 << 20)
    return reranker, reranker.generator.plain


def main() -> int:
    """Soak, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reranks", type=int, default=2000)
    parser.add_argument("--real", action="store_true", help="the embedded model instead of a tiny random one")
    parser.add_argument("--every-scorer", action="store_true", help="let all scorers take turns")
    given = parser.parse_args()
    reranker, model = _real() if given.real else _tiny()
    samples = soak(reranker, model, given.reranks, scorers=[*SCORERS] if given.every_scorer else ())
    print(f"{reranker!r}, {given.reranks} reranks, process {os.getpid()}")
    print(f"{'reranks':>8} {'MiB':>8} {'threads':>8} {'files':>6} {'hooks':>6} {'tensors':>8}")
    for s in samples:
        print(f"{s.done:8} {s.memory / 2**20:8.1f} {s.threads:8} {s.files:6} {s.hooks:6} {s.tensors:8}")
    rose, more = growth(samples), left_behind(samples)
    print(f"memory after the warm-up: {rose:+.2%}; left behind: {', '.join(more) or 'nothing'}")
    return int(rose > ALLOWED or bool(more))


if __name__ == "__main__":
    sys.exit(main())
