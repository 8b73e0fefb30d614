"""What the encoder says beside the default scorer: when, how much, and of which documents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, EncodedScorer, GradReranker, LinkedScorer
from gradrerank.errors import InvalidArgumentError, ScoringError
from gradrerank.lm.generator import Generator
from gradrerank.scorers import GatesScorer, Scores, ScoringJob, as_scorer
from gradrerank.scorers.encoded import spread_like


def letters(texts: Sequence[str]) -> list[list[float]]:
    """Vectors that know nothing but how often letters occur."""
    return [[text.lower().count(letter) + 0.1 for letter in "aeiou"] for text in texts]


SOURCES = {"a": DOCUMENTS[:2], "b": DOCUMENTS[2:]}


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters, max_sources=2)


def cosines(query: str, texts: Sequence[str]) -> np.ndarray:
    rows = np.array(letters([query, *texts]))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows[1:] @ rows[0]


@pytest.mark.parametrize("weight", [0.0, 0.5, 1.0])
def test_it_has_a_say_where_it_chose_among_sources(reranker: GradReranker, weight: float) -> None:
    alone = {d.text: d for d in reranker.rerank(QUERY, SOURCES, fusion="off")}
    told = reranker.rerank(QUERY, SOURCES, fusion_weight=weight)
    found = cosines(QUERY, list(alone))
    spread = np.std([d.score for d in alone.values()])
    expected = dict(zip(alone, weight * 0.75 * spread * (found - found.mean()) / found.std(), strict=True))
    assert {d.text: d.scores["encoder"] for d in told} == pytest.approx(expected, abs=1e-5)
    assert {d.text: d.score for d in told} == pytest.approx(
        {text: alone[text].score + expected[text] for text in alone}, abs=1e-5
    )


def test_it_has_no_say_elsewhere(reranker: GradReranker) -> None:
    for other in (
        reranker.rerank(QUERY, DOCUMENTS),
        reranker.rerank(QUERY, SOURCES, select_sources=False),
        reranker.rerank(QUERY, SOURCES, source_choice="gradient"),
        reranker.rerank(QUERY, SOURCES, fusion="rrf"),
        reranker.rerank(QUERY, SOURCES, scorer="gates"),
        reranker.rerank(QUERY, SOURCES, scorer="gates+links"),
    ):
        assert all("encoder" not in d.scores for d in other)


def test_what_it_says_is_passed_on_with_links(reranker: GradReranker) -> None:
    film = Document("A film of 1981 by Ada Moss.", title="The Wave")
    director = Document("Born in Leeds.", title="Ada Moss")
    query = "Where was the director of The Wave born?"
    found = {d.title: d for d in reranker.rerank(query, {"a": [film], "b": [director, Document(DOCUMENTS[0])]})}
    before = {title: d.score - d.scores["links"] for title, d in found.items()}
    assert found["Ada Moss"].scores["links"] == pytest.approx(0.75 * max(before["The Wave"], 0), abs=1e-6)
    for document in found.values():
        parts = document.scores["gates+likelihood+links"] - document.scores["links"] - document.scores["encoder"]
        assert np.isfinite(parts)


@pytest.mark.parametrize("use", [{"weights": {"a": 1, "b": 0, "c": 1}}, {"docs_per_source": 1}])
def test_a_document_that_was_embedded_as_another_occurrence_of_it(reranker: GradReranker, use: dict) -> None:
    first = ["", "", "the tram "] if "docs_per_source" in use else ["kettle", "the tram "]
    sources = {"a": first, "b": ["x", "the tram"] if "docs_per_source" in use else ["the tram"], "c": ["hill"]}
    found = reranker.rerank("tram?", sources, **use)
    assert all(np.isfinite(d.scores["encoder"]) for d in found)
    assert "the tram" in [d.text.strip() for d in found]


def test_dropped_sources_take_their_links_with_them(reranker: GradReranker) -> None:
    sources = {
        "a": [Document("nothing", title="Quiet Hill"), Document("By Ada Moss.", title="The Wave")],
        "b": [Document("Born in Leeds.", title="Ada Moss"), Document("See The Wave and Quiet Hill.", title="Tides")],
    }
    for choice in ("both", "gradient"):
        found = reranker.rerank("Who?", sources, source_choice=choice, max_sources=1)
        assert len(found) == 2
        for pair in found.details["links"]:
            assert set(pair) <= {0, 1}


def test_a_block_that_the_encoder_likes_pays() -> None:
    class Told:
        name = "gates+likelihood"

        def score(self, job: ScoringJob) -> Scores:
            return Scores([{"d0": 1.0, "d1": -1.0, "d2": 0.9, "d3": 5.0, "d4": 0.0}[d.text] for d in job.documents])

    def likes(texts: Sequence[str]) -> list[list[float]]:
        return [[1.0, 0.0] if text in ("q", "d2") else [0.2, 1.0] for text in texts]

    reranker = GradReranker(tiny(), encoder=likes)
    sources = {"a": ["d0", "d2", "d4"], "b": ["d1", "d3"]}
    scorer = LinkedScorer(EncodedScorer(Told()))
    found = reranker.rerank("q", sources, scorer=scorer, max_candidates=3, top_n=1)
    assert [d.text for d in found] == ["d3"]


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=8), st.floats(0, 3), st.data())
@settings(max_examples=80, deadline=None)
def test_its_part_has_the_spread_asked_for(values: list[float], weight: float, data: st.DataObject) -> None:
    others = data.draw(st.lists(st.floats(-9, 9), min_size=len(values), max_size=len(values)))
    added = np.array(spread_like(values, others, weight))
    assert added.mean() == pytest.approx(0, abs=1e-6)
    if added.any():
        assert added.std() == pytest.approx(weight * np.std(others), rel=1e-6, abs=1e-9)
        order = np.argsort(values, kind="stable")
        assert all(np.diff(added[order]) >= -1e-9)
    if np.ptp(values) == 0:
        assert not added.any()


def test_scores_for_too_few_jobs_are_laid_at_the_scorers_door(reranker: GradReranker) -> None:
    class Short:
        name = "short"

        def score(self, job: ScoringJob) -> Scores:
            return Scores([0.0] * len(job.documents))

        def score_batch(self, jobs: Sequence[ScoringJob]) -> list[Scores]:
            return [self.score(jobs[0])] * (len(jobs) - 1)

    for scorer in (Short(), EncodedScorer(Short()), LinkedScorer(Short())):
        with pytest.raises(ScoringError, match="'short' must return one Scores for each of 2 jobs, got 1"):
            reranker.rerank_batch([QUERY, "Who?"], DOCUMENTS, scorer=scorer)


def test_links_are_added_once() -> None:
    with pytest.raises(InvalidArgumentError, match="scorer must be one without links"):
        LinkedScorer(as_scorer("gates+links"))
    assert as_scorer("gates+likelihood").name == EncodedScorer(as_scorer("gates+likelihood")).name
    assert EncodedScorer(GatesScorer()).score(_job()).utilities == GatesScorer().score(_job()).utilities


def _job() -> ScoringJob:
    generator = Generator(*tiny("llama"))
    documents = generator.layout.documents([(None, text) for text in DOCUMENTS])
    return ScoringJob(QUERY, documents, generator.layout.query_continuation(QUERY), generator)
