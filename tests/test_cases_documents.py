"""Cases C01 to C12 through the core and both framework packages: what documents, queries and metadata may be."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import datetime
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from through import WAYS, letters, rank
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker, Scores, ScoringJob
from gradrerank.documents import RerankResult
from gradrerank.scorers import SCORERS

every_way = pytest.mark.parametrize("way", WAYS)


class ByText:
    """A scorer that is a function of the text alone, and counts its calls."""

    name = "by text"

    def __init__(self, score: Callable[[str], Any] = len) -> None:
        self.calls, self.texts = 0, list[str]()
        self._score = score

    def score(self, job: ScoringJob) -> Scores:
        self.calls += 1
        self.texts += [d.text for d in job.documents]
        return Scores([self._score(d.text) for d in job.documents])


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters)


def docs(*texts: str) -> list[Document]:
    return [Document(text, id=f"d{i}") for i, text in enumerate(texts)]


EMPTY: list[Any] = [{"a": []}, {"a": [], "b": []}, {"a": [], "b": [], "c": []}]


@every_way
@pytest.mark.parametrize("sources", EMPTY)
@pytest.mark.parametrize("use", [{}, {"top_n": 3}, {"token_budget": 5}, {"weights": {"a": 1}}, {"compress": True}])
def test_C01_nothing_to_rank(reranker: GradReranker, way: str, sources: Any, use: dict[str, Any]) -> None:
    scorer = ByText()
    assert rank(way, reranker, QUERY, sources, scorer=scorer, **use) == []
    assert scorer.calls == 0


@every_way
def test_C01_an_empty_source_beside_a_full_one(reranker: GradReranker, way: str) -> None:
    alone = rank(way, reranker, QUERY, {"a": docs(*DOCUMENTS)})
    assert rank(way, reranker, QUERY, {"a": docs(*DOCUMENTS), "b": [], "0": []}) == alone


BLANK = [
    "",
    " ",
    "\u200b",
    "\n\t",
    "\x00",
    "\ufeff",
    "\u2028",
    "\u00ad",
    "\U000e0041\U000e007f",
    "\u3164",
    "\u2800",
    "\ufe0f",
]


@every_way
@pytest.mark.parametrize("blank", BLANK)
def test_C02_a_blank_document_changes_nothing(reranker: GradReranker, way: str, blank: str) -> None:
    alone = rank(way, reranker, "boiling point", {"a": docs("Kettles boil at 100 C.")})
    with_blank = rank(way, reranker, "boiling point", {"a": docs("Kettles boil at 100 C.", blank, blank + blank)})
    assert with_blank == alone
    scorer = ByText()
    assert rank(way, reranker, "boiling point", {"a": docs(blank, blank)}, scorer=scorer) == []
    assert scorer.calls == 0


@every_way
@pytest.mark.parametrize("order", list(permutations(range(5)))[::7])
@pytest.mark.parametrize("scorer", ["by text", "gates"])
def test_C03_a_document_keeps_what_is_its_own(
    reranker: GradReranker, way: str, order: tuple[int, ...], scorer: str
) -> None:
    given = [
        Document("", id="blank", metadata={"n": 0}),
        Document("alpha is long enough. Is it?", id="a", metadata={"n": 1}),
        Document(" alpha is long enough. Is it?", id="a2", metadata={"n": 2}),
        Document("   ", id="blank2", metadata={"n": 3}),
        Document("beta.", id="b", metadata={"n": 4}),
    ]
    own = {d.text.strip(): [d.id, d.metadata["n"]] for d in reversed(given)}
    sources = {"s": [given[i] for i in order]}
    found = rank(way, reranker, QUERY, sources, scorer=ByText() if scorer == "by text" else scorer)
    assert len(found) == 2
    by_id = {d.id: d for d in given}
    for seen in found:
        document = by_id[seen.id or ""]
        assert seen.text == document.text and seen.metadata["n"] == document.metadata["n"]
        assert sources["s"][seen.ranks["s"] - 1].id == seen.id
        assert all(0 <= start < end <= len(seen.text) for start, end in seen.spans)
        if scorer == "by text":
            assert seen.score == len(seen.text)
    assert own  # every text had an owner


@every_way
@pytest.mark.parametrize(
    "top_n", [0, -1, True, False, 2.0, "2", float("nan"), np.float64(2), [2], np.array([2, 3]), -(10**30)]
)
def test_C04_a_top_n_that_cannot_be_used(reranker: GradReranker, way: str, top_n: Any) -> None:
    with pytest.raises(ValueError, match="top_n"):
        rank(way, reranker, QUERY, {"a": docs("x", "y")}, top_n=top_n)


@every_way
@pytest.mark.parametrize("name", ["docs_per_source", "max_sources", "max_candidates", "token_budget"])
@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2"])
def test_C04_every_other_count_is_checked_alike(reranker: GradReranker, way: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        rank(way, reranker, QUERY, {"a": docs("x", "y")}, **{name: value})


@every_way
@pytest.mark.parametrize("top_n", [50, None, 2, np.int64(7), 10**30])
def test_C04_a_top_n_that_keeps_all(reranker: GradReranker, way: str, top_n: Any) -> None:
    assert len(rank(way, reranker, QUERY, {"a": docs("x y", "y z")}, top_n=top_n)) == 2
    assert len(rank(way, reranker, QUERY, {"a": docs("x y", "y z")}, top_n=1)) == 1


@every_way
@pytest.mark.parametrize("give", [tuple, iter, lambda found: (d for d in found), lambda found: dict.fromkeys(found)])
def test_C05_any_iterable_is_read_once(reranker: GradReranker, way: str, give: Any) -> None:
    if way != "core":
        pytest.importorskip("langchain_core" if way == "langchain" else "llama_index.core")
        _check_framework_iterables(way, reranker, give)
        return
    given = docs(*DOCUMENTS)
    if isinstance(give(["a"]), dict):
        with pytest.raises(TypeError, match=r"sources\['a'\] is dict"):
            reranker.rerank(QUERY, {"a": give(DOCUMENTS)})
        return
    assert len(reranker.rerank(QUERY, {"a": give(given)})) == len(given)


def _check_framework_iterables(way: str, reranker: GradReranker, give: Any) -> None:
    from through import langchain_documents, llamaindex_nodes

    if way == "langchain":
        from langchain_gradrerank import GradRerankCompressor

        compressor = GradRerankCompressor(reranker=reranker)
        given: Any = langchain_documents(docs(*DOCUMENTS))

        def call(found: Any) -> Any:
            return compressor.compress_documents(found, QUERY)

    else:
        from llamaindex_gradrerank import GradRerankPostprocessor

        postprocessor = GradRerankPostprocessor(reranker=reranker)
        given = llamaindex_nodes(docs(*DOCUMENTS))

        def call(found: Any) -> Any:
            return postprocessor.postprocess_nodes(found, query_str=QUERY)

    if isinstance(give(["a"]), dict):
        with pytest.raises(TypeError, match="dict"):
            call(dict.fromkeys(range(3)))
        return
    assert len(call(give(given))) == len(given)


@every_way
@pytest.mark.parametrize("query", ["", "  ", "\u200b", "\n", "\x00", None, 5, b"q", ["q"]])
def test_C06_a_query_without_text(reranker: GradReranker, way: str, query: Any) -> None:
    scorer = ByText()
    with pytest.raises((ValueError, TypeError, AttributeError) if way == "llamaindex" else (ValueError, TypeError)):
        rank(way, reranker, query, {"a": docs("x")}, scorer=scorer)
    assert scorer.calls == 0


def test_C07_no_excluded_key_reaches_the_scorer_in_any_mode(reranker: GradReranker) -> None:
    schema = pytest.importorskip("llama_index.core.schema")
    from llamaindex_gradrerank import GradRerankPostprocessor

    node = schema.TextNode(text="body", metadata={"k": "v", "secret": "hidden"}, excluded_llm_metadata_keys=["secret"])
    image = schema.ImageNode(image_url="http://127.0.0.1/a.png")
    index = schema.IndexNode(text="i", index_id="z")
    for mode in schema.MetadataMode:
        scorer = ByText()
        ranked = GradRerankPostprocessor(reranker=reranker, metadata_mode=mode, scorer=scorer).postprocess_nodes(
            [schema.NodeWithScore(node=each) for each in (node, image, index)], query_str=QUERY
        )
        assert not any("hidden" in text for text in scorer.texts) and len(scorer.texts) == 2
        assert [n.score for n in ranked][-1] is None and isinstance(ranked[-1].node, schema.ImageNode)


@every_way
def test_C08_what_is_the_same_document(reranker: GradReranker, way: str) -> None:
    sources = {
        "wiki": [Document("Trams run hourly.", id="w1", metadata={"file": "a"}), Document("Other.", id="x")],
        "notes": [Document("Trams run hourly.\n", id="n9", metadata={"file": "b"}), Document("Another.", id="x")],
        "web": [Document("Trams run hourly!", id="w1"), Document("Trams run hourly.", id="w7")],
    }
    found = {seen.text.strip(): seen for seen in rank(way, reranker, QUERY, sources, select_sources=False)}
    assert set(found) == {"Trams run hourly.", "Other.", "Another.", "Trams run hourly!"}
    twice = found["Trams run hourly."]
    assert dict(twice.ranks) == {"wiki": 1, "notes": 1, "web": 2}
    assert found["Other."].id == found["Another."].id == "x"


ODD: dict[Any, Any] = {
    "tags": ["x"],
    "box": {"p": {1, 2}},
    "arr": np.arange(3),
    "when": datetime(2026, 1, 1),
    "tensor": torch.arange(3),
    "nan": float("nan"),
    "self": len,
    "bytes": b"\xff",
}


@every_way
def test_C09_odd_metadata_is_no_key_to_anything(reranker: GradReranker, way: str) -> None:
    odd = dict(ODD) if way == "llamaindex" else {**ODD, 5: "int key", None: 1, ("a", 1): 2}
    sources = {"a": [Document("same", metadata=odd), Document("more")], "b": [Document("same", metadata=dict(odd))]}
    found = rank(way, reranker, QUERY, sources)
    assert len(found) == 2
    same = next(seen for seen in found if seen.text == "same")
    assert set(same.metadata) >= set(odd) and (same.metadata["arr"] == np.arange(3)).all()


@every_way
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("use", [{}, {"compress": True}, {"order": "edges"}, {"token_budget": 80}, {"fusion": "score"}])
def test_C10_nothing_that_was_passed_changes(
    reranker: GradReranker, way: str, fails: bool, use: dict[str, Any]
) -> None:
    shared = {"deep": {"er": [1]}}
    sources = {"a": [Document(text, id=str(i), metadata=shared, score=0.5) for i, text in enumerate(DOCUMENTS)]}
    before = copy.deepcopy(sources)
    if fails:
        with pytest.raises(ZeroDivisionError):
            rank(way, reranker, QUERY, sources, scorer=ByText(lambda text: 1 / 0), **use)
    else:
        first = rank(way, reranker, QUERY, sources, **use)
        kept = [(seen.text, seen.score, copy.deepcopy(seen.metadata)) for seen in first]
        first[0].metadata["deep"]["er"].append("changed")  # type: ignore[index]
        rank(way, reranker, "Another question?", sources, **use)
        assert [(s.text, s.score) for s in first] == [(text, score) for text, score, _ in kept]
        assert [s.metadata for s in first[1:]] == [m for _, _, m in kept[1:]]
    assert sources == before and shared == {"deep": {"er": [1]}}


@every_way
@pytest.mark.parametrize("fusion", ["off", "rrf", "score"])
def test_C11_no_retrieval_score_is_not_zero(reranker: GradReranker, way: str, fusion: str) -> None:
    given = [Document(t, id=t[:5], score=s) for t, s in zip(DOCUMENTS, [None, 0.1, -0.3, 0.0, None], strict=True)]
    other = [Document(DOCUMENTS[0], id="other", score=14.2)]
    one = rank(way, reranker, QUERY, {"a": given, "b": other}, fusion=fusion, select_sources=False)
    two = rank(way, reranker, QUERY, {"b": other, "a": given}, fusion=fusion, select_sources=False)
    assert [(s.text, s.score) for s in one] == [(s.text, s.score) for s in two]
    if way == "core":
        scores = {p.source: p.score for p in next(s for s in one if s.text == DOCUMENTS[0]).raw.provenance}
        assert scores == {"a": None, "b": 14.2}


@every_way
@pytest.mark.parametrize("scorer", [*SCORERS, "gates+likelihood+links"])
def test_C12_only_plain_numbers_come_out(reranker: GradReranker, way: str, scorer: str) -> None:
    given = [Document(text, score=np.float32(0.5)) for text in DOCUMENTS]  # type: ignore[arg-type]
    for seen in rank(way, reranker, QUERY, {"a": given}, scorer=scorer):
        assert type(seen.score) is float and all(type(edge) is int for span in seen.spans for edge in span)
        if way == "core":
            json.dumps(RerankResult("q", (seen.raw,), ()).to_dict())
        elif way == "langchain":
            json.dumps(seen.raw.metadata)
        else:
            seen.raw.model_dump_json()
