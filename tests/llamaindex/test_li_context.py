"""Budgets, limits by source, order and compression in LlamaIndex, under the names of the core."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from li_helpers import FixedRetriever, LengthScorer, as_nodes
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from pydantic import ValidationError
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker
from gradrerank.errors import InvalidArgumentError
from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever


def words(text: str) -> int:
    return len(text.split())


def prompt(nodes: list[NodeWithScore]) -> str:
    """What the response synthesizers of the framework put into the prompt."""
    return "\n\n".join(n.node.get_content(metadata_mode=MetadataMode.LLM) for n in nodes)


@pytest.mark.parametrize("mode", ["none", "embed", "llm"])
@pytest.mark.parametrize("compress", [False, True])
def test_the_budget_counts_what_the_llm_will_read(reranker: GradReranker, mode: str, compress: bool) -> None:
    """Metadata that only the LLM reads count too, and compression leaves them where they are."""
    fields = {"metadata": {"file": "timetable of the ferry.txt", "day": "Sunday"}}
    for budget in range(1, 90, 11):
        nodes = as_nodes(*DOCUMENTS, excluded_embed_metadata_keys=["file"], **copy.deepcopy(fields))
        postprocessor = GradRerankPostprocessor(
            reranker=reranker, token_budget=budget, token_counter=words, metadata_mode=mode, compress=compress
        )
        kept = postprocessor.postprocess_nodes(nodes, query_str=QUERY)
        assert words(prompt(kept)) <= budget
        assert all("file: timetable" in n.node.get_content(metadata_mode=MetadataMode.LLM) for n in kept)


async def test_the_choice_and_the_order_are_those_of_the_core(reranker: GradReranker) -> None:
    options: dict[str, Any] = {"selection": "coverage", "order": "edges", "top_n": 3, "token_budget": 200}
    expected = [d.text for d in reranker.rerank(QUERY, DOCUMENTS, **options)]
    postprocessor = GradRerankPostprocessor(reranker=reranker, **options)
    assert [n.text for n in postprocessor.postprocess_nodes(as_nodes(*DOCUMENTS), query_str=QUERY)] == expected
    assert [n.text for n in await postprocessor.apostprocess_nodes(as_nodes(*DOCUMENTS), query_str=QUERY)] == expected


def test_limits_by_source_and_a_source_that_finds_nothing(reranker: GradReranker) -> None:
    postprocessor = GradRerankPostprocessor(
        reranker=reranker, scorer=LengthScorer(), per_source={"a": 1, "c": (1, None)}, select_sources=False
    )
    sources = {"a": FixedRetriever("aaaa", "aaa"), "b": FixedRetriever("b"), "c": FixedRetriever()}
    retriever = MultiSourceRetriever(sources, postprocessor=postprocessor)
    assert [n.text for n in retriever.retrieve(QUERY)] == ["aaaa", "b"]
    assert len(postprocessor.postprocess_nodes(as_nodes("x", "y"), query_str=QUERY)) == 2
    with pytest.raises(InvalidArgumentError, match="per_source names 'a', which is no source"):
        MultiSourceRetriever({"b": FixedRetriever("b")}, postprocessor=postprocessor)


@pytest.mark.parametrize("field", ["per_source", "weights"])
def test_C15_a_retriever_refuses_a_name_that_is_none_of_its_sources(reranker: GradReranker, field: str) -> None:
    """Also where the setting is that of a ready reranker, or was made after the retriever."""
    sources = {"wiki": FixedRetriever("a"), "web": FixedRetriever("b")}
    slip: dict[str, Any] = {field: {"wikki": 1}}
    inherited = GradRerankPostprocessor(reranker=GradReranker(reranker.generator, **slip))
    with pytest.raises(InvalidArgumentError, match=f"{field} names 'wikki', which is no source; sources are wiki, web"):
        MultiSourceRetriever(sources, postprocessor=inherited)
    retriever = MultiSourceRetriever(sources, postprocessor=GradRerankPostprocessor(reranker=reranker))
    assert retriever.postprocessor is not None
    setattr(retriever.postprocessor, field, slip[field])
    with pytest.raises(InvalidArgumentError, match=f"{field} names 'wikki'"):
        retriever.retrieve(QUERY)
    alone = GradRerankPostprocessor(reranker=reranker, **slip)
    assert len(alone.postprocess_nodes(as_nodes("x", "y"), query_str=QUERY)) == 2


@pytest.mark.parametrize("mode", ["none", "embed"])
def test_C10_C21_compression_keeps_the_callers_text_and_offsets_into_it(reranker: GradReranker, mode: str) -> None:
    nodes = as_nodes(*DOCUMENTS, metadata={"file": "a.txt"})
    before = [n.to_dict() for n in nodes]
    kept = GradRerankPostprocessor(reranker=reranker, compress=True, metadata_mode=mode).postprocess_nodes(
        nodes, query_str=QUERY
    )
    assert [n.to_dict() for n in nodes] == before
    assert sorted(n.node.node_id for n in kept) == sorted(n.node.node_id for n in nodes)
    cut = [n for n in kept if "original" in n.gradrerank]
    assert cut
    for node in kept:
        whole = next(n.text for n in nodes if n.node.node_id == node.node.node_id)
        if node in cut:
            assert node.gradrerank["original"] == whole != node.text
            assert node.text == " ".join(whole[a:b] for a, b in node.gradrerank["excerpts"])
        else:
            assert node.text == whole
        assert node.metadata == {"file": "a.txt"}


def test_a_second_step_does_not_lose_the_original(reranker: GradReranker) -> None:
    once = GradRerankPostprocessor(reranker=reranker, compress=True).postprocess_nodes(
        as_nodes(*DOCUMENTS), query_str=QUERY
    )
    for compress in (False, True):
        twice = GradRerankPostprocessor(reranker=reranker, compress=compress).postprocess_nodes(once, query_str=QUERY)
        originals = {n.node.node_id: n.gradrerank.get("original", n.text) for n in twice}
        assert originals == {f"n{i}": text for i, text in enumerate(DOCUMENTS)}


def test_a_template_that_hides_the_text_is_not_cut(reranker: GradReranker) -> None:
    node = TextNode(text=DOCUMENTS[2], text_template="{metadata_str}", metadata={"topic": "trams on the hill"})
    (kept,) = GradRerankPostprocessor(reranker=reranker, compress=True).postprocess_nodes(
        [NodeWithScore(node=node)], query_str=QUERY
    )
    assert kept.text == DOCUMENTS[2]


def test_C20_settings_survive_copies_pickles_and_dumps() -> None:
    options: dict[str, Any] = {"token_budget": 90, "selection": "mmr", "mmr_lambda": 0.4, "order": "source"}
    postprocessor = GradRerankPostprocessor(per_source={"a": 2, "b": (1, None)}, compress=True, **options)
    restored = GradRerankPostprocessor.from_dict(postprocessor.to_dict())
    for twin in (restored, copy.deepcopy(postprocessor), pickle.loads(pickle.dumps(postprocessor))):
        assert twin.per_source == {"a": (0, 2), "b": (1, None)} and twin.compress is True
        assert {name: getattr(twin, name) for name in options} == options
    assert copy.deepcopy(postprocessor).per_source is not postprocessor.per_source
    assert GradRerankPostprocessor(token_counter=words).to_dict()["token_counter"] == {"object": "function"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_budget": 0}, "token_budget must be a whole number >= 1"),
        ({"token_counter": 3}, "token_counter must be callable"),
        ({"selection": "best"}, "selection must be one of"),
        ({"mmr_lambda": 2}, "mmr_lambda must be"),
        ({"per_source": {"a": -1}}, "per_source"),
        ({"order": "best"}, "order must be one of"),
        ({"compress": "yes"}, "compress must be a bool"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GradRerankPostprocessor(**fields)
