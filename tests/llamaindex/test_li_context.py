"""Budgets, limits by source, order and compression in LlamaIndex, under the names of the core."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from li_helpers import as_nodes
from llama_index.core.schema import MetadataMode, NodeWithScore, TextNode
from tiny import DOCUMENTS, QUERY

from gradrerank import GradReranker
from llamaindex_gradrerank import GradRerankPostprocessor


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
