"""Does the sentence that is cited first for a given answer lie in a gold document?

    python benchmarks/citations.py hotpotqa_train100.jsonl --questions 50

The gold answer is the answer given. All methods choose among the same sentences. "gold" is the share of
questions whose first sentence lies in a gold document; "answer" is the share whose first sentence holds the
answer as text, of the questions where some sentence does.

* ``gates``: ``reranker.cite``, a forward and a backward row for the answer and one for the question; "answer
  alone" is without the latter (``question_weight=0``).
* ``leave-one-out``: each sentence in turn is closed off on the same caches, exactly; a forward row a sentence.
* ``embedding``: cosine of sentence (or title and sentence) and "question answer", all-MiniLM-L6-v2.
* ``random``: a sentence drawn at random, in expectation.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm

from gradrerank import GradReranker
from gradrerank.evaluation import Question, read_questions
from gradrerank.evaluation.intervals import bootstrap_mean
from gradrerank.lm.pieces import Pieces, split_into_pieces
from gradrerank.lm.prompt import DocumentTokens
from gradrerank.sources.embedding import Encoder, as_encoder

_ROWS = 16


@dataclass(frozen=True)
class Sentence:
    """A sentence of a candidate as the model reads it."""

    document: int
    text: str


def main(
    argv: Sequence[str] | None = None, reranker: GradReranker | None = None, encoder: Encoder | None = None
) -> None:
    """Measure and print; ``reranker`` and ``encoder`` replace those that the options describe."""
    options = _parser().parse_args(argv)
    reranker = reranker or GradReranker(options.model, max_document_tokens=options.max_document_tokens)
    encoder = encoder or as_encoder(None)
    gold: dict[str, list[float]] = defaultdict(list)
    holds: dict[str, list[float]] = defaultdict(list)
    seconds: dict[str, list[float]] = defaultdict(list)
    warnings.simplefilter("ignore")  # documents that are cut, on purpose
    for question in tqdm(list(read_questions(options.data, options.questions)), unit="question"):
        documents = _tokens(reranker, question, options.max_document_tokens)
        pieces = split_into_pieces(documents, "sentence", 1)
        sentences = _sentences(documents, pieces)
        is_gold = np.array([str(question.documents[s.document].id) in question.gold for s in sentences])
        has_answer = np.array([question.answers[0].lower() in s.text.lower() for s in sentences])
        reranker.index(question.documents)  # reading is the same for all, so it is not timed
        for name, method in _methods(reranker, encoder, question, documents, pieces, sentences).items():
            start = time.perf_counter()
            shares = method()
            seconds[name].append(time.perf_counter() - start)
            gold[name].append(float(shares @ is_gold))
            if has_answer.any():
                holds[name].append(float(shares @ has_answer))
    Console(width=100).print(_table(options, gold, holds, seconds))


def _methods(
    reranker: GradReranker,
    encoder: Encoder,
    question: Question,
    documents: Sequence[DocumentTokens],
    pieces: Pieces,
    sentences: Sequence[Sentence],
) -> dict[str, Callable[[], NDArray[np.float64]]]:
    """Each gives the weight of every sentence in the first citation."""
    asked = f"{question.text} {question.answers[0]}"
    titles = [question.documents[s.document].title or "" for s in sentences]
    return {
        "gates": lambda: _cited(reranker, question, sentences, 1.0),
        "gates, answer alone": lambda: _cited(reranker, question, sentences, 0.0),
        "leave-one-out": lambda: _first(_leave_one_out(reranker, question, documents, pieces)),
        "embedding": lambda: _first(_cosines(encoder, asked, [s.text for s in sentences])),
        "embedding with title": lambda: _first(
            _cosines(encoder, asked, [f"{t}: {s.text}" for t, s in zip(titles, sentences, strict=True)])
        ),
        "random": lambda: np.full(len(sentences), 1 / len(sentences)),
    }


def _tokens(reranker: GradReranker, question: Question, max_tokens: int) -> list[DocumentTokens]:
    return reranker.generator.layout.documents([(d.title, d.text) for d in question.documents], max_tokens=max_tokens)


def _sentences(documents: Sequence[DocumentTokens], pieces: Pieces) -> list[Sentence]:
    return [
        Sentence(i, document.text[slice(*pieces.characters[s])].strip())
        for i, (document, spans) in enumerate(zip(documents, pieces.document_spans, strict=True))
        for s in spans
    ]


def _cited(
    reranker: GradReranker, question: Question, sentences: Sequence[Sentence], weight: float
) -> NDArray[np.float64]:
    """All weight on the sentence that is cited first; no weight at all where none is."""
    cited = reranker.cite(
        question.text, question.documents, question.answers[0], per_sentence=False, question_weight=weight
    )
    found = np.zeros(len(sentences))
    if len(cited):
        ids = [str(d.id) for d in question.documents]
        places = [(ids[s.document], s.text) for s in sentences]
        found[places.index((str(cited[0].id), cited[0].text))] = 1.0
    return found


def _leave_one_out(
    reranker: GradReranker, question: Question, documents: Sequence[DocumentTokens], pieces: Pieces
) -> NDArray[np.float64]:
    """How much the loss of the answer rises without each sentence."""
    generator = reranker.generator
    memory = generator.remember(documents, pieces.token_spans)
    target = generator.layout.answer_continuation(question.text, question.answers[0])
    gates = torch.cat([torch.ones(1, memory.n_spans), 1 - torch.eye(memory.n_spans)])
    losses = torch.cat([generator.losses(memory, target, rows).mean(-1) for rows in gates.split(_ROWS)])
    return (losses[1:] - losses[0]).double().cpu().numpy()


def _cosines(encoder: Encoder, asked: str, texts: Sequence[str]) -> NDArray[np.float64]:
    vectors = encoder.encode([asked, *texts]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors[1:] @ vectors[0]


def _first(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.eye(len(values))[int(values.argmax())]


def _table(
    options: argparse.Namespace,
    gold: dict[str, list[float]],
    holds: dict[str, list[float]],
    seconds: dict[str, list[float]],
) -> Table:
    table = Table(title=f"The first citation, {len(gold['gates'])} questions of {options.data.name}")
    table.add_column("method")
    for name in ("gold [95%]", f"answer ({len(holds['gates'])})", "s, median"):
        table.add_column(name, justify="right")
    for name, values in gold.items():
        mean = bootstrap_mean(values)
        held = f"{np.mean(holds[name]):.2f}" if holds[name] else "-"
        table.add_row(
            name, f"{mean.mean:.2f} [{mean.low:.2f}, {mean.high:.2f}]", held, f"{np.median(seconds[name]):.2f}"
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--questions", type=int, default=50)
    parser.add_argument("--max-document-tokens", type=int, default=256)
    parser.add_argument("--model", default=None)
    return parser


if __name__ == "__main__":
    main()
