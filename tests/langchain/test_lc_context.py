"""Budgets, limits by source, order and compression in LangChain, under the names of the core."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from langchain_core.documents import Document
from lc_helpers import TextScorer, docs
from pydantic import ValidationError
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker
from gradrerank.context.choosing import ChoiceJob
from gradrerank.errors import InvalidArgumentError
from langchain_gradrerank import GradRerankCompressor, MultiSourceRetriever


def words(text: str) -> int:
    return len(text.split())


def test_the_budget_is_that_of_the_joined_page_contents(reranker: GradReranker) -> None:
    for budget in range(1, 60, 7):
        compressor = GradRerankCompressor(reranker=reranker, token_budget=budget, token_counter=words)
        kept = compressor.compress_documents(docs(*DOCUMENTS), QUERY)
        assert words("\n\n".join(d.page_content for d in kept)) <= budget


async def test_the_choice_and_the_order_are_those_of_the_core(reranker: GradReranker) -> None:
    options: dict[str, Any] = {"selection": "coverage", "order": "edges", "top_n": 3, "token_budget": 200}
    expected = [d.text for d in reranker.rerank(QUERY, DOCUMENTS, **options)]
    compressor = GradRerankCompressor(reranker=reranker, **options)
    assert [d.page_content for d in compressor.compress_documents(docs(*DOCUMENTS), QUERY)] == expected
    assert [d.page_content for d in await compressor.acompress_documents(docs(*DOCUMENTS), QUERY)] == expected


def test_limits_by_source_and_a_source_that_finds_nothing(reranker: GradReranker) -> None:
    sources: dict[str, Any] = {"a": lambda q: docs("aaaa", "aaa", "aa"), "b": lambda q: docs("b"), "c": lambda q: []}
    compressor = GradRerankCompressor(
        reranker=reranker, scorer=TextScorer(), per_source={"a": 1, "c": (1, None)}, select_sources=False
    )
    found = MultiSourceRetriever(sources=sources, compressor=compressor).invoke(QUERY)
    assert [d.page_content for d in found] == ["aaaa", "b"]
    with pytest.raises(ValidationError, match="per_source names 'a', which is no source"):
        MultiSourceRetriever(sources={"b": sources["b"]}, compressor=compressor)
    # A compressor on its own does not know the sources, so one that is named may have found nothing.
    assert len(compressor.compress_documents([Document("x")], QUERY)) == 1
    inherited = GradRerankCompressor(reranker=GradReranker(reranker.generator, per_source={"a": 1}))
    assert len(inherited.compress_documents([Document("x"), Document("y")], QUERY)) == 2


@pytest.mark.parametrize("field", ["per_source", "weights"])
def test_C15_a_retriever_refuses_a_name_that_is_none_of_its_sources(reranker: GradReranker, field: str) -> None:
    """Also where the setting is that of a ready reranker, or was made after the retriever."""
    sources: dict[str, Any] = {"wiki": lambda q: docs("a"), "web": lambda q: docs("b")}
    slip: dict[str, Any] = {field: {"wikki": 1}}
    inherited = GradRerankCompressor(reranker=GradReranker(reranker.generator, **slip))
    with pytest.raises(ValidationError, match=f"{field} names 'wikki', which is no source; sources are wiki, web"):
        MultiSourceRetriever(sources=sources, compressor=inherited)
    retriever = MultiSourceRetriever(sources=sources, compressor=GradRerankCompressor(reranker=reranker))
    setattr(retriever.compressor, field, slip[field])
    with pytest.raises(InvalidArgumentError, match=f"{field} names 'wikki'"):
        retriever.invoke(QUERY)


def test_C10_C21_compression_keeps_the_callers_text_and_offsets_into_it(reranker: GradReranker) -> None:
    given = docs(*DOCUMENTS, tag="t")
    before = copy.deepcopy(given)
    compressor = GradRerankCompressor(reranker=reranker, compress=True)
    kept = compressor.compress_documents(given, QUERY)
    assert given == before
    assert sorted(d.id for d in kept) == sorted(d.id for d in given)
    cut = [d for d in kept if "original" in d.metadata["gradrerank"]]
    assert cut
    for document in kept:
        record, whole = document.metadata["gradrerank"], next(d for d in given if d.id == document.id)
        if document in cut:
            assert record["original"] == whole.page_content != document.page_content
            pieces = [whole.page_content[a:b] for a, b in record["excerpts"]]
            assert document.page_content == " ".join(pieces)
        else:
            assert document.page_content == whole.page_content
        assert json.dumps(document.metadata)


def test_a_second_step_does_not_lose_the_original(reranker: GradReranker) -> None:
    once = GradRerankCompressor(reranker=reranker, compress=True).compress_documents(docs(*DOCUMENTS), QUERY)
    for compress in (False, True):
        twice = GradRerankCompressor(reranker=reranker, compress=compress).compress_documents(once, QUERY)
        originals = {d.id: d.metadata["gradrerank"].get("original", d.page_content) for d in twice}
        assert originals == {f"d{i}": text for i, text in enumerate(DOCUMENTS)}


def test_titles_are_not_lost_or_placed_twice(reranker: GradReranker) -> None:
    given = [Document(DOCUMENTS[2], metadata={"title": "Trams"})]
    (kept,) = GradRerankCompressor(reranker=reranker, compress=True).compress_documents(given, QUERY)
    assert kept.metadata["title"] == "Trams" and "Title" not in kept.page_content


def test_C20_objects_are_shared_by_copies_and_named_in_dumps(reranker: GradReranker) -> None:
    class Mine:
        name = "mine"

        def choose(self, job: ChoiceJob) -> list[int]:
            return [0]

    compressor = GradRerankCompressor(reranker=reranker, selection=Mine(), token_counter=words, per_source={"a": 2})
    twin = copy.deepcopy(compressor)
    assert twin.selection is compressor.selection and twin.token_counter is words
    assert twin.per_source is not compressor.per_source
    dumped = json.loads(compressor.model_dump_json())
    assert (dumped["selection"], dumped["token_counter"]) == ("<Mine>", "<function>")
    assert len(repr(compressor)) < 300
    assert len(twin.compress_documents(docs(*DOCUMENTS), QUERY)) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_budget": 0}, "token_budget must be a whole number >= 1"),
        ({"token_counter": 3}, "token_counter must be callable"),
        ({"selection": "best"}, "selection must be one of"),
        ({"selection": 3}, "selection must be one of"),
        ({"mmr_lambda": 2}, "mmr_lambda must be"),
        ({"per_source": {"a": -1}}, "per_source"),
        ({"order": "best"}, "order must be one of"),
        ({"compress": "yes"}, "compress must be a bool"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GradRerankCompressor(**fields)
