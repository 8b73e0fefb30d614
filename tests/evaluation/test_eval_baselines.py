"""Baselines: orders by hand, and bm25s against its formula."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from eval_helpers import letters

from gradrerank.documents import Document
from gradrerank.evaluation import Question, Task, baselines
from gradrerank.evaluation.baselines import order_of
from gradrerank.sources.embedding import FunctionEncoder

ENCODER = FunctionEncoder(letters)


def task_of(*texts: str, query: str = "ferry harbour") -> Task:
    return Task(query, tuple(Document(t, id=f"d{i}") for i, t in enumerate(texts)), ("docs",) * len(texts))


def order(name: str, task: Task, seed: int = 0) -> list[int]:
    return order_of(baselines(ENCODER, seed=seed)[name](task))


def test_length_alone() -> None:
    task = task_of("bb", "dddd", "a", "cc")
    assert order("longest", task) == [1, 0, 3, 2]
    assert order("shortest", task) == [2, 0, 3, 1]
    assert order("as-given", task) == [0, 1, 2, 3]


def test_random_depends_on_seed_and_question_alone() -> None:
    task = task_of(*"abcdefghij")
    again = task_of(*"klmnopqrst")
    assert order("random", task) == order("random", again)
    assert order("random", task) != order("random", task, seed=1)
    assert order("random", task) != order("random", dataclasses.replace(task, query="another"))
    assert sorted(order("random", task)) == list(range(10))


def test_random_is_uniform() -> None:
    tasks = [task_of(*"abcd", query=f"query {i}") for i in range(2000)]
    firsts = np.bincount([order("random", task)[0] for task in tasks], minlength=4)
    assert abs(firsts - 500).max() < 80


def test_bm25_is_its_formula() -> None:
    task = task_of("ferry harbour ferry", "harbour town hill", "kettle boils water hill", query="ferry harbour")
    lengths, k1, b = [3, 3, 4], 1.5, 0.75
    mean = sum(lengths) / 3
    counts = {"ferry": [2, 0, 0], "harbour": [1, 1, 0]}
    expected = [0.0, 0.0, 0.0]
    for found in counts.values():
        df = sum(1 for c in found if c)
        idf = math.log(1 + (3 - df + 0.5) / (df + 0.5))
        for i, c in enumerate(found):
            expected[i] += idf * c / (c + k1 * (1 - b + b * lengths[i] / mean))
    assert baselines(ENCODER)["bm25"](task) == pytest.approx(expected, abs=1e-5)


def test_bm25_reads_titles_and_knows_queries_without_any_known_word() -> None:
    titled = Task("harbour", (Document("nothing", id="a"), Document("nothing", id="b", title="Harbour")), ("d", "d"))
    assert order("bm25", titled) == [1, 0]
    assert baselines(ENCODER)["bm25"](task_of("ferry", "hill", query="zebra")) == [0.0, 0.0]
    assert baselines(ENCODER)["bm25"](task_of("ferry", "", query="the of and")) == [0.0, 0.0]
    assert baselines(ENCODER)["bm25"](task_of()) == []


def test_the_encoder_ranks_by_cosine() -> None:
    task = task_of("aaaa", "bbbb", "abab", query="aaaa")
    vectors = letters(["aaaa", "bbbb", "abab"])
    expected = vectors @ vectors[0] / np.linalg.norm(vectors, axis=1) / np.linalg.norm(vectors[0])
    assert baselines(ENCODER)["minilm"](task) == pytest.approx(expected.tolist())


def test_rrf_sums_reciprocal_ranks(questions: list[Question]) -> None:
    task, found = questions[0].task(), baselines(ENCODER)
    ranks = [{i: r for r, i in enumerate(order_of(found[name](task)), start=1)} for name in ("bm25", "minilm")]
    assert found["rrf"](task) == pytest.approx([sum(1 / (60 + rank[i]) for rank in ranks) for i in range(5)])
