"""Links: which titles stand in which texts, and what is passed on along them."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GradReranker, LinkedScorer
from gradrerank.errors import InvalidArgumentError, ScoringError, TruncationWarning
from gradrerank.lm.generator import Generator
from gradrerank.scorers import GatesScorer, Scores, ScoringJob, as_scorer
from gradrerank.scorers.linked import passed_on
from gradrerank.scorers.mentions import mentions

FILM = Document("A film of 1981 by Ada Moss about a flood.", title="The Wave (1981 film)")
DIRECTOR = Document("She was born in Leeds in a house by the canal.", title="Ada Moss")
OTHER = Document("He was born in York.", title="Ada Mossman")
PAGES = [FILM, DIRECTOR, OTHER]


def named_by(text: str, *titles: str | None) -> list[int]:
    """Which of some titles a text names."""
    return [index - 1 for index in mentions([None, *titles], [text, *[""] * len(titles)])[0]]


@pytest.mark.parametrize(
    ("text", "title", "named"),
    [
        ("a film by Ada Moss.", "Ada Moss", True),
        ("a film by ADA\nMOSS", "Ada Moss", True),
        ("a film by Ada Mossman", "Ada Moss", False),
        ("Ada's Moss", "Ada Moss", False),
        ("Ada Moss's film", "Ada Moss", True),
        ("it rains", "It", False),
        ("he read Wave twice", "Wave", True),
        ("a wave of heat", "Wave", False),
        ("in 1984 it rained", "1984", False),
        ("the US of old", "US", False),
        ("seen in The Wave", "The Wave (1981 film)", True),
        ("seen in the wave", "The Wave (1981 film)", True),
        ("(album) of the year", "(album)", True),
        ("see C++ there", "++", False),
        ("a b " * 40, "a b " * 16, True),
        ("a b " * 40, "a b " * 17, False),
        ("anything", "", False),
        ("anything", " \n", False),
        ("anything", None, False),
        ("Ada Mo\u00adss, Leeds", "Ada\u200b Moss", True),
        ("我看红房子", "红房子（电影）", True),
        ("Jean-Luc Godard, Paris", "Jean Luc Godard", True),
        ("Łódź Fabryczna station", "łódź fabryczna", True),
        ("Cafe\u0301 Central opened", "Caf\u00e9 Central", True),
        ("東京都は日本の首都である。", "東京都", True),
        ("東京は日本の首都である。", "東京都", False),
        ("서울은 한국의 수도이다", "서울특별시", False),
        ("대한민국의 수도", "대한민국", True),
        ("राम का घर", "राम", True),
        ("रमा का घर", "राम", False),
        ("เมืองหลวงของประเทศไทยคือกรุงเทพ", "ประเทศไทย", True),
        ("الكتاب في مدينة بغداد القديمة", "مدينة بغداد", True),
    ],
)
def test_whether_a_text_names_a_title(text: str, title: str | None, named: bool) -> None:
    assert named_by(text, title) == ([0] if named else [])


def test_of_two_titles_at_one_place_the_longer_is_meant() -> None:
    assert named_by("born in New York City", "New York", "New York City", "York") == [1, 2]
    assert named_by("born in New York", "New York", "New York City") == [0]


def test_all_parts_of_a_page_are_named_and_do_not_name_each_other() -> None:
    titles = ["Ada Moss", "Ada Moss", "The Wave"]
    assert mentions(titles, ["Ada Moss was born.", "Ada Moss died.", "By Ada Moss."]) == [[], [], [0, 1]]


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=40)), max_size=8))
@settings(max_examples=200, deadline=None)
def test_no_text_breaks_it_and_nothing_names_itself(pages: list[tuple[str, str]]) -> None:
    titles, texts = [title for title, _ in pages], [text for _, text in pages]
    found = mentions(titles, texts)
    assert len(found) == len(pages)
    for index, others in enumerate(found):
        assert index not in others
        assert others == sorted(set(others))
    # Every name that a search for whole words of ASCII would find is found, or a longer one at its place.
    for i, text in enumerate(texts):
        for j, title in enumerate(titles):
            if title.isascii() and title.isalpha() and len(title) >= 3 and titles[i] != title and title in text.split():
                assert j in found[i] or any(len(titles[k].split()) > 1 for k in found[i])


NAMED = st.lists(st.lists(st.integers(0, 5), unique=True, max_size=4), min_size=6, max_size=6)
UTILITIES = st.lists(st.floats(-5, 5), min_size=6, max_size=6)


@given(UTILITIES, NAMED, st.floats(0, 2))
@settings(max_examples=100, deadline=None)
def test_it_is_the_largest_part_that_is_passed_on(
    utilities: list[float], named: list[list[int]], weight: float
) -> None:
    parts = np.zeros((6, 6))
    for i, others in enumerate(named):
        parts[i, others] = weight * max(utilities[i], 0) / max(len(others), 1)
    added = passed_on(utilities, named, weight)
    assert added == pytest.approx(list(parts.max(0)), abs=1e-9)
    assert max(added) <= weight * max(0, *utilities) + 1e-9
    assert passed_on([3 * u for u in utilities], named, weight) == pytest.approx([3 * a for a in added], abs=1e-9)


class Fixed:
    """Utilities that were told beforehand, by the title of the document."""

    name = "fixed"

    def __init__(self, **utilities: float) -> None:
        self.utilities = utilities

    def score(self, job: ScoringJob) -> Scores:
        return Scores([self.utilities[(d.title or "").split()[-1].strip(")")] for d in job.documents])


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny("llama"))


def test_what_a_good_document_names_rises_and_says_why(reranker: GradReranker) -> None:
    scorer = LinkedScorer(Fixed(film=0.4, Moss=-0.1, Mossman=0.1), weight=0.5)
    result = reranker.rerank("Where was the director of The Wave born?", PAGES, scorer=scorer)
    assert [d.title for d in result] == [FILM.title, "Ada Moss", "Ada Mossman"]  # equal ones in retrieval order
    scores = {d.title: d for d in result}
    assert scores["Ada Moss"].score == pytest.approx(0.1)
    assert dict(scores["Ada Moss"].scores) == pytest.approx({"fixed": -0.1, "links": 0.2, "fixed+links": 0.1})
    assert scores[FILM.title].score == pytest.approx(0.4)
    assert scores["Ada Mossman"].scores["links"] == 0
    assert result.details["links"] == [[0, 1]]
    assert result.scorer == "fixed+links"


def test_a_document_that_hurts_passes_nothing_on(reranker: GradReranker) -> None:
    scorer = LinkedScorer(Fixed(film=-0.4, Moss=0.1, Mossman=0.2))
    result = reranker.rerank("Who?", PAGES, scorer=scorer)
    assert [d.score for d in result] == pytest.approx([0.2, 0.1, -0.4])


def test_what_is_not_read_names_nothing(reranker: GradReranker) -> None:
    pages = [Document("Annabelle goes by Ada Moss", title="x"), Document("a", title="Anna"), DIRECTOR]
    rows = {n: reranker.generator.layout.documents([("x", pages[0].text)], max_tokens=n)[0] for n in range(8, 40)}
    cut = {n: row.text[: row.kept[1]] for n, row in rows.items()}
    inside = next(n for n, text in cut.items() if text.endswith("Anna"))
    before = next(n for n, text in cut.items() if text.endswith("by Ada"))
    for limit, links in ((inside, []), (before, []), (None, [[0, 2]])):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TruncationWarning)
            found = reranker.rerank("Who?", pages, scorer="gates+links", max_document_tokens=limit)
        assert found.details["links"] == links


def test_without_titles_nothing_changes(reranker: GradReranker) -> None:
    plain = reranker.rerank(QUERY, DOCUMENTS, scorer="gates+likelihood")
    linked = reranker.rerank(QUERY, DOCUMENTS)
    assert linked.scorer == "gates+likelihood+links"
    assert [(d.text, d.score, d.spans) for d in linked] == [(d.text, d.score, d.spans) for d in plain]
    assert all(d.scores["links"] == 0 for d in linked)


def test_the_default_passes_on_what_it_found(reranker: GradReranker) -> None:
    query = "Where was the director of The Wave born?"
    plain = {d.title: d.score for d in reranker.rerank(query, PAGES, scorer="gates+likelihood")}
    linked = {d.title: d.score for d in reranker.rerank(query, PAGES)}
    more = 0.75 * max(plain[FILM.title], 0)
    assert linked == pytest.approx({**plain, "Ada Moss": plain["Ada Moss"] + more}, abs=1e-6)


def test_a_batch_equals_single_calls(reranker: GradReranker) -> None:
    queries = ["Where was the director of The Wave born?", "Who made The Wave?"]
    for query, result in zip(queries, reranker.rerank_batch(queries, PAGES, scorer="gates+links"), strict=True):
        single = reranker.rerank(query, PAGES, scorer="gates+links")
        assert [d.title for d in result] == [d.title for d in single]
        assert [d.score for d in result] == pytest.approx([d.score for d in single], abs=1e-5)


def test_names_of_scorers() -> None:
    assert as_scorer("gates+likelihood+links").name == "gates+likelihood+links"
    assert as_scorer("links + gates").name == "gates+links"
    assert as_scorer("gates+links") == LinkedScorer(GatesScorer())
    with pytest.raises(InvalidArgumentError, match="'links' passes on what another one finds"):
        as_scorer("links")
    with pytest.raises(InvalidArgumentError, match="joins a scorer with itself"):
        as_scorer("gates+links+links")
    with pytest.raises(InvalidArgumentError, match="did you mean 'links'"):
        as_scorer("gates+link")


@pytest.mark.parametrize(("scorer", "weight"), [(GatesScorer, 0.5), ("gates", 0.5), (GatesScorer(), -1)])
def test_wrong_arguments_are_named(scorer: object, weight: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"scorer|weight"):
        LinkedScorer(scorer, weight)  # type: ignore[arg-type]


def test_a_wrong_scorer_inside_is_named(reranker: GradReranker) -> None:
    class Short:
        name = "short"

        def score(self, job: ScoringJob) -> Scores:
            return Scores([0.0])

    with pytest.raises(ScoringError, match="'short'"):
        reranker.rerank("Who?", PAGES, scorer=LinkedScorer(Short()))


def test_the_generator_reads_no_token_more() -> None:
    tokens = []
    for name in ("gates", "gates+links"):
        generator = Generator(*tiny("llama"))
        job = ScoringJob(
            QUERY,
            generator.layout.documents([(d.title, d.text) for d in PAGES]),
            generator.layout.query_continuation(QUERY),
            generator,
        )
        as_scorer(name).score(job)
        tokens.append(dict(job.tokens))
    assert tokens[0] == tokens[1]
