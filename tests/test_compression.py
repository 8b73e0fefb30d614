"""Only the sentences that help, and the caller's text never lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GatesScorer, GradReranker, SpanUtility
from gradrerank.context.compression import helpful_ranges
from gradrerank.documents import RenderedDocument, cut_out
from gradrerank.errors import InvalidTypeError
from gradrerank.settings import Settings

ODD = "a👩‍👩‍👧b 司马. שלום e\u0301! ก็ is here.\n\nThe ferry leaves at nine… Trams run hourly."


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny())


@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([-1.0, 0.0, 0.5, 2.0])), min_size=1, max_size=8))
def test_ranges_are_the_helpful_sentences_or_the_best_one(pieces: list[tuple[int, float]]) -> None:
    text, spans = "", []
    for length, score in pieces:
        spans.append(SpanUtility(len(text), len(text) + length + 2, score))
        text += "x" * length + ". "
    ranges = helpful_ranges(Document(text), spans)
    kept = {i for i, s in enumerate(spans) if any(a <= s.start < b for a, b in ranges or [(0, len(text))])}
    helpful = {i for i, s in enumerate(spans) if s.score > 0}
    if helpful:
        assert kept == helpful
    else:
        assert len(kept) == 1 and spans[kept.pop()].score == max(s.score for s in spans)
    assert all(text[a:b] == text[a:b].strip() for a, b in ranges)
    assert all(b < c for (_, b), (c, _) in zip(ranges, ranges[1:], strict=False))


def test_nothing_to_go_by_keeps_the_whole_text() -> None:
    assert helpful_ranges(Document("One. Two."), []) == ()
    assert helpful_ranges(Document("One. Two."), [SpanUtility(0, 5, 1.0), SpanUtility(5, 9, 1.0)]) == ()


def test_what_a_framework_wrote_around_a_text_is_not_cut() -> None:
    text = "file: a.txt\n\nOne. Two!"
    document = RenderedDocument(text, own=(13, 22), render=str)
    spans = [SpanUtility(0, 13, 9.0), SpanUtility(13, 18, -1.0), SpanUtility(18, 22, -2.0)]
    assert [text[a:b] for a, b in helpful_ranges(document, spans)] == ["One."]


@pytest.mark.parametrize("scorer", ["gates", "ablation", GatesScorer(pieces="document"), GatesScorer(steps=2)])
def test_C21_excerpts_are_cut_from_the_callers_own_text(reranker: GradReranker, scorer: Any) -> None:
    documents = [Document(ODD, id="odd"), *DOCUMENTS]
    plain = reranker.rerank(QUERY, documents, scorer=scorer)
    result = reranker.rerank(QUERY, documents, scorer=scorer, compress=True)
    assert [(d.id, d.text, d.score) for d in result] == [(d.id, d.text, d.score) for d in plain]
    assert any(d.excerpts for d in result)
    for d in result:
        assert d.excerpt == (" ".join(d.text[a:b] for a, b in d.excerpts) if d.excerpts else d.text)
        assert d.excerpt and len(d.excerpt) <= len(d.text)
    assert result.context() == "\n\n".join(d.excerpt for d in result)
    assert all(d.excerpts == () and d.excerpt == d.text for d in plain)


def test_kept_sentences_are_those_with_positive_utility(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, DOCUMENTS, compress=True)
    for d in result:
        helpful = [d.text[s.start : s.end].strip() for s in d.spans if s.score > 0]
        best = max(d.spans, key=lambda s: s.score)
        assert d.excerpt == (" ".join(helpful) or d.text[best.start : best.end].strip())


def test_the_budget_counts_what_is_left(reranker: GradReranker) -> None:
    whole = reranker.rerank(QUERY, DOCUMENTS, token_counter=len)
    cut = reranker.rerank(QUERY, DOCUMENTS, token_counter=len, compress=True)
    assert cut.context_tokens == len(cut.context()) < len(whole.context()) == whole.context_tokens
    budget = cut.context_tokens
    assert len(reranker.rerank(QUERY, DOCUMENTS, token_counter=len, compress=True, token_budget=budget)) == len(cut)


def test_C26_what_was_not_read_is_not_in_the_excerpt(reranker: GradReranker) -> None:
    long = "The ferry leaves at nine. " * 12
    with pytest.warns(UserWarning, match="only in part"):
        (document,) = reranker.rerank(QUERY, [long], max_document_tokens=24, compress=True)
    assert document.text == long and document.excerpts[-1][1] <= document.kept[1] < len(long)


def test_C08_a_text_of_two_sources_is_still_one_document(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, {"a": DOCUMENTS, "b": DOCUMENTS}, compress=True, select_sources=False)
    assert len(result) == len(DOCUMENTS) and all(len(d.sources) == 2 for d in result)


def test_ranges_apart_are_joined_by_a_space() -> None:
    assert cut_out("One. Two! Six!", [(0, 4), (10, 14)]) == "One. Six!"
    with pytest.raises(InvalidTypeError, match="compress must be a bool"):
        Settings(compress="yes")  # type: ignore[arg-type]
