"""Budgets, limits by source, order and compression in LangChain, under the names of the core."""

from __future__ import annotations

import copy
import json

from langchain_core.documents import Document
from lc_helpers import docs
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker
from gradrerank.context.choosing import ChoiceJob
from langchain_gradrerank import GradRerankCompressor


def words(text: str) -> int:
    return len(text.split())


def test_the_budget_is_that_of_the_joined_page_contents(reranker: GradReranker) -> None:
    for budget in range(1, 60, 7):
        compressor = GradRerankCompressor(reranker=reranker, token_budget=budget, token_counter=words)
        kept = compressor.compress_documents(docs(*DOCUMENTS), QUERY)
        assert words("\n\n".join(d.page_content for d in kept)) <= budget


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
