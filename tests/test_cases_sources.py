"""Cases C13 to C16 through the core and both framework packages: sources, their weights and scores, bounds."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from through import WAYS, langchain_documents, letters, llamaindex_nodes, rank
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker
from gradrerank.errors import AllSourcesFailedError, SourceWarning

every_way = pytest.mark.parametrize("way", WAYS)
both_frameworks = pytest.mark.parametrize("way", [way for way in WAYS if way != "core"])


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters)


def docs(*texts: str, scores: Any = None) -> list[Document]:
    return [Document(text, id=f"d{i}", score=None if scores is None else scores[i]) for i, text in enumerate(texts)]


def retrieve(way: str, reranker: GradReranker, answers: dict[str, Any], **options: Any) -> list[str]:
    """Texts that a retriever over sources finds; an answer is a list of documents or a function that gives one."""

    def found(name: str) -> Any:
        answer = answers[name]
        given = answer() if callable(answer) else answer
        if not (isinstance(given, list) and all(isinstance(d, Document) for d in given)):
            return given
        return langchain_documents(given) if way == "langchain" else llamaindex_nodes(given)

    if way == "langchain":
        from langchain_gradrerank import GradRerankCompressor
        from langchain_gradrerank import MultiSourceRetriever as FromLangChain

        sources = {name: lambda query, name=name: found(name) for name in answers}
        ranker = GradRerankCompressor(reranker=reranker)
        return [d.page_content for d in FromLangChain(sources=sources, compressor=ranker, **options).invoke(QUERY)]
    from llama_index.core.retrievers import BaseRetriever

    from llamaindex_gradrerank import GradRerankPostprocessor
    from llamaindex_gradrerank import MultiSourceRetriever as FromLlamaIndex

    class Source(BaseRetriever):
        def __init__(self, name: str) -> None:
            self.name = name
            super().__init__()

        def _retrieve(self, query_bundle: Any) -> Any:
            return found(self.name)

    processor = GradRerankPostprocessor(reranker=reranker)
    retriever = FromLlamaIndex({name: Source(name) for name in answers}, postprocessor=processor, **options)
    return [n.node.get_content() for n in retriever.retrieve(QUERY)]


def raises(error: BaseException) -> Any:
    def call() -> Any:
        raise error

    return call


RUBBISH: list[Any] = [None, 5, "a text", [None], ["a text"], [b"bytes"], {"a": 1}, [[]], object(), [{"text": "x"}]]


@both_frameworks
@pytest.mark.parametrize("rubbish", RUBBISH, ids=repr)
def test_C13_a_source_that_gives_rubbish_is_left_out_with_a_warning(
    reranker: GradReranker, way: str, rubbish: Any
) -> None:
    with pytest.warns(SourceWarning, match="'crm' failed and was left out"):
        found = retrieve(way, reranker, {"wiki": docs(*DOCUMENTS), "crm": lambda: rubbish})
    assert sorted(found) == sorted(DOCUMENTS)


@both_frameworks
@pytest.mark.parametrize(
    "error",
    [ConnectionError("down"), ValueError("bad"), StopIteration("odd"), RecursionError("deep"), MemoryError("no")],
)
def test_C13_a_source_that_raises(reranker: GradReranker, way: str, error: Exception) -> None:
    with pytest.warns(SourceWarning, match="'crm'"):
        found = retrieve(way, reranker, {"wiki": docs(*DOCUMENTS), "crm": raises(error)})
    assert sorted(found) == sorted(DOCUMENTS)
    with pytest.raises(AllSourcesFailedError, match="'crm'.*'web'"):
        retrieve(way, reranker, {"crm": raises(error), "web": raises(ConnectionError("gone"))})


@both_frameworks
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3)])
def test_C13_what_ends_the_program_is_no_error_of_a_source(
    reranker: GradReranker, way: str, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        retrieve(way, reranker, {"wiki": docs(*DOCUMENTS), "crm": raises(error)})


@both_frameworks
def test_C13_a_source_that_hangs_is_left_behind(reranker: GradReranker, way: str) -> None:
    hang = threading.Event()
    start = time.monotonic()
    with pytest.warns(SourceWarning, match=r"'slow'.*TimeoutError"):
        found = retrieve(way, reranker, {"wiki": docs("One.", "Two."), "slow": hang.wait}, timeout=0.3)
    hang.set()
    assert sorted(found) == ["One.", "Two."] and time.monotonic() - start < 30


_EXIT = """
import sys, threading, warnings
sys.path.insert(0, {tests!r})
from through import letters
from tiny import tiny
from gradrerank import Document, GradReranker
import test_cases_sources as cases
warnings.simplefilter("ignore")
reranker = GradReranker(tiny(), encoder=letters)
hang = threading.Event()
print(cases.retrieve({way!r}, reranker, {{"wiki": [Document("One.")], "slow": hang.wait}}, timeout=0.2))
"""


@both_frameworks
def test_C13_an_interpreter_ends_while_a_source_hangs(way: str) -> None:
    code = _EXIT.format(tests=os.path.dirname(__file__), way=way)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and done.stdout.strip() == "['One.']", done.stderr
    assert "Traceback" not in done.stderr


SCALES = [1e-6, 100.0, 1e9]


@every_way
@pytest.mark.parametrize("fusion", ["off", "rrf", "score"])
@pytest.mark.parametrize("scale", SCALES)
def test_C14_the_scale_of_a_source_changes_nothing(reranker: GradReranker, way: str, fusion: str, scale: float) -> None:
    def sources(factor: float) -> dict[str, list[Document]]:
        return {
            "bm25": docs(*DOCUMENTS[:3], scores=[31.0 * factor, 12.0 * factor, 12.0 * factor]),
            "dense": docs(*DOCUMENTS[2:4], scores=[0.82, 0.79]),
            "one": docs(DOCUMENTS[4], scores=[-3.0]),
            "equal": docs(*DOCUMENTS[:2], scores=[0.0, 0.0]),
        }

    use = {"fusion": fusion, "select_sources": False}
    one, other = rank(way, reranker, QUERY, sources(1.0), **use), rank(way, reranker, QUERY, sources(scale), **use)
    assert [s.text for s in one] == [s.text for s in other] and len(one) == 5
    assert [s.score for s in other] == pytest.approx([s.score for s in one], abs=1e-6)
    assert all(math.isfinite(s.score) for s in one)


@every_way
@pytest.mark.parametrize("scores", [[1e308, -1e308], [5e-324, 0.0], [-1e308, -1e308], [3.0, 3.0]])
def test_C14_extreme_and_equal_scores_give_numbers(reranker: GradReranker, way: str, scores: list[float]) -> None:
    sources = {"a": docs(*DOCUMENTS[:2], scores=scores), "b": docs(DOCUMENTS[2], scores=[1.0])}
    for seen in rank(way, reranker, QUERY, sources, fusion="score", select_sources=False):
        assert math.isfinite(seen.score)


@every_way
@pytest.mark.parametrize(
    "weights",
    [
        {"wikii": 1},
        {"a": 0, "b": 0},
        {"a": -1},
        {"a": math.nan},
        {"a": math.inf},
        {"a": "1"},
        {"a": None},
        {"a": True},
        {1: 1.0},
    ],
)
def test_C15_weights_that_cannot_be_meant(reranker: GradReranker, way: str, weights: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="(?i)weight"):
        rank(way, reranker, QUERY, {"a": docs("x y"), "b": docs("y z")}, weights=weights)


@every_way
@pytest.mark.parametrize("use", [{}, {"fusion": "rrf"}, {"select_sources": False}, {"source_choice": "gradient"}])
def test_C15_weights_count_and_their_scale_does_not(reranker: GradReranker, way: str, use: dict[str, Any]) -> None:
    sources = {"a": docs(*DOCUMENTS[:2]), "b": docs(*DOCUMENTS[2:4])}

    def scores(a: float, b: float) -> list[tuple[str, float]]:
        return [(s.text, s.score) for s in rank(way, reranker, QUERY, sources, weights={"a": a, "b": b}, **use)]

    assert scores(0.9, 0.1) != scores(0.1, 0.9)
    one, other = scores(0.9, 0.1), scores(90.0, 10.0)
    assert [t for t, _ in one] == [t for t, _ in other]
    assert [s for _, s in one] == pytest.approx([s for _, s in other])
    left_out = scores(1.0, 0.0)
    assert {text for text, _ in left_out} <= set(DOCUMENTS[:2])


@every_way
@pytest.mark.parametrize("bound", [math.nan, math.inf, "0.5", True, [0.5], np.array([0.1, 0.2])])
def test_C16_a_bound_that_cannot_be_used(reranker: GradReranker, way: str, bound: Any) -> None:
    with pytest.raises(ValueError, match="min_score"):
        rank(way, reranker, QUERY, {"a": docs("x")}, min_score=bound)


@every_way
@pytest.mark.parametrize("scorer", ["gates", "likelihood", "gates+likelihood"])
def test_C16_the_bound_is_inclusive_on_the_score_that_is_shown(reranker: GradReranker, way: str, scorer: str) -> None:
    sources = {"a": docs(*DOCUMENTS)}
    every = rank(way, reranker, QUERY, sources, scorer=scorer)
    for seen in every:
        kept = rank(way, reranker, QUERY, sources, scorer=scorer, min_score=seen.score)
        assert [k.text for k in kept] == [s.text for s in every if s.score >= seen.score]
    assert rank(way, reranker, QUERY, sources, scorer=scorer, min_score=1e9) == []
    assert len(rank(way, reranker, QUERY, sources, scorer=scorer, min_score=-1e9)) == len(every)
