"""Choice of sources by utility and calibrated bounds through the postprocessor."""

from __future__ import annotations

from llama_index.core.schema import NodeWithScore, TextNode
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker, ScoreCalibration
from gradrerank.scorers import DEFAULT_SCORER
from llamaindex_gradrerank import GradRerankPostprocessor


def found() -> list[NodeWithScore]:
    names = ["wiki", "wiki", "web", "web", "web"]
    hidden = ["retrieval_source"]
    return [
        NodeWithScore(
            node=TextNode(text=text, metadata={"retrieval_source": name}, excluded_embed_metadata_keys=hidden)
        )
        for text, name in zip(DOCUMENTS, names, strict=True)
    ]


def by_source() -> dict[str, list[str]]:
    return {"wiki": DOCUMENTS[:2], "web": DOCUMENTS[2:]}


def test_sources_are_chosen_by_utility_as_in_the_core() -> None:
    reranker = GradReranker(tiny())
    postprocessor = GradRerankPostprocessor(reranker=reranker, source_choice="gradient", max_sources=1)
    expected = reranker.rerank(QUERY, by_source(), source_choice="gradient", max_sources=1)
    kept = postprocessor.postprocess_nodes(found(), query_str=QUERY)
    assert [n.node.get_content() for n in kept] == [d.text for d in expected]
    assert len(expected) < len(DOCUMENTS)


def test_a_calibration_survives_serialization_and_bounds_by_probability() -> None:
    reranker = GradReranker(tiny())
    every = reranker.rerank(QUERY, by_source(), select_sources=False)
    middle = (every[1].score + every[2].score) / 2
    curve = ScoreCalibration(
        method="isotonic", scorer=DEFAULT_SCORER, target="query", knots=((middle - 1e-4, 0.1), (middle + 1e-4, 0.9))
    )
    fields = {"reranker": reranker, "min_score": 0.5, "select_sources": False}
    postprocessor = GradRerankPostprocessor(calibration=curve, **fields)
    dumped = postprocessor.model_dump()["calibration"]
    for each in (postprocessor, GradRerankPostprocessor(calibration=dumped, **fields)):
        kept = each.postprocess_nodes(found(), query_str=QUERY)
        assert [n.node.get_content() for n in kept] == [d.text for d in every[:2]]
        assert [n.gradrerank["stages"]["probability"] for n in kept] == [0.9, 0.9]
    assert "knots" not in repr(postprocessor)
