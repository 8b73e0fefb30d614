"""What helps inside a document: the same scores, offsets in the caller's text, clear words where there is nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GatesScorer, GradReranker
from gradrerank.documents import RerankResult
from gradrerank.errors import InvalidArgumentError, ScoringError
from gradrerank.lm.pieces import sentence_ranges

SOURCES = {"wiki": DOCUMENTS[:3], "web": [Document(text, id=f"w{i}") for i, text in enumerate(DOCUMENTS[2:])]}


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny("llama"), select_sources=False)


@pytest.mark.parametrize(
    "options", [{}, {"z": 0.3}, {"z": "uniform"}, {"steps": 4}, {"layers": [1, 2]}, {"heads": [(0, 1)]}]
)
def test_gates_of_sentences_change_no_score(reranker: GradReranker, options: dict[str, Any]) -> None:
    whole = reranker.rerank(QUERY, SOURCES, scorer=GatesScorer(pieces="document", **options))
    parts = reranker.rerank(QUERY, SOURCES, scorer=GatesScorer(**options))
    assert [d.text for d in parts] == [d.text for d in whole]
    assert [d.score for d in parts] == pytest.approx([d.score for d in whole], rel=1e-4, abs=1e-6)
    assert all(not d.spans for d in whole) and all(d.spans for d in parts)


def test_sentences_of_a_document_add_up_to_its_score(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, SOURCES, scorer="gates")
    explanation = result.explain()
    for document in result:
        own = [s.utility for s in explanation if s.rank == document.rank]
        assert sum(own) == pytest.approx(document.score, rel=1e-4, abs=1e-6)
    (tram,) = (d for d in result if d.text == DOCUMENTS[2])
    assert [s.text for s in result.explain("document") if s.rank == tram.rank] == [
        "The tram runs every hour over the green hill.",
        "Nobody knows why it does.",
    ]


def test_order_and_filters(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, SOURCES)
    explanation = result.explain()
    assert [s.utility for s in explanation] == sorted((s.utility for s in explanation), reverse=True)
    assert all(s.utility > 0 for s in explanation.helping) and all(s.utility < 0 for s in explanation.hurting)
    assert len(explanation.helping) + len(explanation.hurting) == len(explanation) == 6
    assert explanation[0] == explanation.sentences[0] and explanation[:2] == explanation.sentences[:2]
    read = result.explain("document")
    assert [(s.rank, s.start) for s in read] == sorted((s.rank, s.start) for s in read)
    assert sorted(read, key=lambda s: -s.utility) == list(explanation)
    with pytest.raises(InvalidArgumentError, match="order must be one of 'utility', 'document'"):
        result.explain("rank")  # type: ignore[arg-type]


def test_a_sentence_says_where_it_is_from(reranker: GradReranker) -> None:
    result = reranker.rerank(QUERY, SOURCES)
    (known,) = (s for s in result.explain() if s.text == "The red house is old.")
    assert (known.id, known.sources, known.start, known.end) == ("w1", ("web",), 0, 21)
    (both,) = (s for s in result.explain() if s.text == "Nobody knows why it does.")
    assert set(both.sources) == {"wiki", "web"}


@pytest.mark.parametrize(
    "text",
    [
        "\n  One! \u201cTwo.\u201d\n\nThree…  Four e\u0301 cafe\u0301. \ufb01ve.  ",
        "a👩\u200d👩\u200d👧b 司马。שלום. ก็ is here! e\u0301 \u212b.",
        "x",
    ],
)
def test_C21_offsets_are_of_the_callers_own_text(reranker: GradReranker, text: str) -> None:
    (document,) = reranker.rerank(QUERY, [text])
    explanation = reranker.rerank(QUERY, [text]).explain("document")
    assert document.text == text
    for s in explanation:
        assert text[s.start : s.end] == s.text == s.text.strip() != ""
    covered = "".join(s.text for s in explanation)
    assert "".join(covered.split()) == "".join(text.split())


def test_any_segmentation_of_the_caller_is_explained(reranker: GradReranker) -> None:
    def words(text: str) -> list[tuple[int, int]]:
        cuts = [0, *(i + 1 for i, c in enumerate(text) if c == " "), len(text)]
        return list(zip(cuts, cuts[1:], strict=False))

    result = reranker.rerank(QUERY, ["The red house is old."], scorer=GatesScorer(pieces=words))
    assert [s.text for s in result.explain("document")] == ["The", "red", "house", "is", "old."]


@pytest.mark.parametrize("scorer", ["mixture", "ablation", GatesScorer(pieces="document")])
def test_scorers_of_whole_documents_say_that_there_is_nothing_to_explain(reranker: GradReranker, scorer: Any) -> None:
    result = reranker.rerank(QUERY, SOURCES, scorer=scorer)
    with pytest.raises(ScoringError, match=f"nothing to explain: scorer '{result.scorer}' scored whole documents"):
        result.explain()


def test_C01_nothing_ranked_is_explained_by_nothing(reranker: GradReranker) -> None:
    assert len(reranker.rerank(QUERY, {}).explain()) == 0
    assert "0 sentences" in repr(RerankResult("q", (), ()).explain())


def test_plain_forms(reranker: GradReranker) -> None:
    explanation = reranker.rerank(QUERY, SOURCES).explain()
    plain = json.loads(json.dumps(explanation.to_dict()))
    assert plain["sentences"][0]["text"] == explanation[0].text and plain["target"] == "query"
    table = pytest.importorskip("pandas") and explanation.to_pandas()
    assert list(table["utility"]) == [s.utility for s in explanation] and len(table.columns) == 8


def test_repr_is_bounded_and_harmless(reranker: GradReranker) -> None:
    text = " ".join(f"Sentence \x1b[31m{i} is here." for i in range(12))
    lines = repr(reranker.rerank(QUERY, [text]).explain()).splitlines()
    assert len(lines) == 12 and lines[-1] == "  ... and 2 more" and "12 sentences" in lines[0]
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. J. K. Smith left the U.S. Army in 1990. It was cold.", 2),
        ("Dr. Who met St. John et al. there. E.g. this.", 2),
        ("Vitamin C.\nIt helps.", 2),
        ("最初。次。終わり", 3),
        ("\n\nOne.\n \n", 1),
        ("यह एक है। यह दो है।", 2),
    ],
)
def test_where_sentences_end(text: str, expected: int) -> None:
    assert len(sentence_ranges(text)) == expected


@given(st.text(alphabet="aB.! \n\t。e\u0301👩", max_size=40))
def test_C21_sentences_partition_every_text_and_none_is_blank(text: str) -> None:
    ranges = sentence_ranges(text)
    assert "".join(text[a:b] for a, b in ranges) == text
    assert not text.strip() or all(text[a:b].strip() for a, b in ranges)
