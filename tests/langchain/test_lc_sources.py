"""Choice of sources by utility and calibrated bounds through the compressor."""

from __future__ import annotations

from langchain_core.documents import Document
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker, ScoreCalibration
from gradrerank.scorers import DEFAULT_SCORER
from langchain_gradrerank import GradRerankCompressor


def found() -> list[Document]:
    names = ["wiki", "wiki", "web", "web", "web"]
    return [Document(text, metadata={"retrieval_source": name}) for text, name in zip(DOCUMENTS, names, strict=True)]


def by_source() -> dict[str, list[str]]:
    return {"wiki": DOCUMENTS[:2], "web": DOCUMENTS[2:]}


def test_sources_are_chosen_by_utility_as_in_the_core() -> None:
    reranker = GradReranker(tiny())
    compressor = GradRerankCompressor(reranker=reranker, source_choice="gradient", max_sources=1, source_agreement=True)
    expected = reranker.rerank(QUERY, by_source(), source_choice="gradient", max_sources=1)
    assert [d.page_content for d in compressor.compress_documents(found(), QUERY)] == [d.text for d in expected]
    assert len(expected) < len(DOCUMENTS)


def test_a_calibration_survives_a_dump_and_bounds_by_probability() -> None:
    reranker = GradReranker(tiny())
    every = reranker.rerank(QUERY, by_source(), select_sources=False)
    middle = (every[1].score + every[2].score) / 2
    curve = ScoreCalibration(
        method="isotonic", scorer=DEFAULT_SCORER, target="query", knots=((middle - 1e-4, 0.1), (middle + 1e-4, 0.9))
    )
    compressor = GradRerankCompressor(reranker=reranker, calibration=curve, min_score=0.5, select_sources=False)
    again = GradRerankCompressor(
        reranker=reranker, calibration=compressor.model_dump()["calibration"], min_score=0.5, select_sources=False
    )
    for each in (compressor, again):
        kept = each.compress_documents(found(), QUERY)
        assert [d.page_content for d in kept] == [d.text for d in every[:2]]
        assert [d.metadata["gradrerank"]["stages"]["probability"] for d in kept] == [0.9, 0.9]
    assert "knots" not in repr(compressor)
