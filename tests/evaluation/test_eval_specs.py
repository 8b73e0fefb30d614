"""Configurations written as text, and what they turn into."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eval_helpers import letters
from tiny import tiny

from gradrerank import GatesScorer, GradReranker
from gradrerank.documents import Document
from gradrerank.errors import InvalidArgumentError, ScoringError, TruncationWarning
from gradrerank.evaluation import (
    Configuration,
    Ledger,
    Question,
    Ranked,
    Task,
    known_names,
    library,
    parse,
    split_specs,
)
from gradrerank.evaluation.configurations import add_up, as_configuration, checked, linked
from gradrerank.evaluation.run import rank_question
from gradrerank.sources.embedding import FunctionEncoder

ENCODER = FunctionEncoder(letters)


def made(spec: str, reranker: GradReranker, **options: Any) -> Configuration:
    return parse(spec, lambda: reranker, encoder=ENCODER, **options)


def test_options_follow_their_configuration() -> None:
    assert split_specs("gates:z=0.3,steps=2, bm25,gates+0.5*minilm,gates:layers=1..2") == [
        "gates:z=0.3,steps=2",
        "bm25",
        "gates+0.5*minilm",
        "gates:layers=1..2",
    ]
    with pytest.raises(InvalidArgumentError, match="'best=2' belongs to no configuration"):
        split_specs("gates,best=2")
    with pytest.raises(InvalidArgumentError, match="empty part"):
        split_specs("gates,,bm25")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("gate", "did you mean 'gates'"),
        ("gates:zz=1", "option of 'gates:zz=1' must be one of"),
        ("gates:z", "options must be name=value"),
        ("gates:z=1,z=2", "each once"),
        ("gates:retrieval=bm52", "retrieval of .* did you mean 'bm25'"),
        ("bm25:k1=2", "the baseline 'bm25' has no options"),
        ("native-upr:samples=3", "option of 'native-upr:samples=3'"),
        ("gates+", "configuration must be one of"),
        ("gates:target=answer", "target must be one of"),
        ("gates:z=-1", "z must be"),
    ],
)
def test_what_cannot_be_meant_is_named(reranker: GradReranker, spec: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        made(spec, reranker)


def test_a_baseline_loads_no_model() -> None:
    def refuse() -> GradReranker:
        raise AssertionError("the model was asked for")

    assert parse("bm25", refuse, encoder=ENCODER).name == "bm25"
    assert {"gates", "likelihood", "mixture", "ablation", "bm25", "rrf", "native-icr"} <= set(known_names())


def test_a_spec_is_the_scorer_with_these_settings(reranker: GradReranker, questions: list[Question]) -> None:
    task = questions[0].task()
    found = made("gates:z=0.5,layers=1..2,max_document_tokens=12,select_sources=false", reranker).rank(task)
    scorer = GatesScorer(z=0.5, layers=(1, 2))
    with pytest.warns(UserWarning, match="read only in part"):
        expected = reranker.rerank(
            task.query, task.sources, scorer=scorer, max_document_tokens=12, select_sources=False
        )
    assert found.scores == pytest.approx({d.id: d.score for d in expected})
    assert found.order == [d.id for d in expected]
    assert found.tokens["question"] > 0


def test_documents_that_are_the_same_are_found_under_every_id(reranker: GradReranker) -> None:
    texts = ["the tram", "the ferry", "the tram"]
    task = Task("tram?", tuple(Document(t, id=f"d{i}") for i, t in enumerate(texts)), ("a", "a", "b"))
    found = library("gates", reranker, GatesScorer(), select_sources=False).rank(task)
    assert set(found.scores) == {"d0", "d1", "d2"} and found.scores["d0"] == found.scores["d2"]


def test_retrieval_orders_the_documents_of_each_source(reranker: GradReranker, questions: list[Question]) -> None:
    seen: list[Any] = []

    class Spy:
        name = "spy"

        def score(self, job: Any) -> Any:
            seen.append([d.text for d in job.documents])
            return GatesScorer().score(job)

    task = questions[0].task()
    function = ("longest", lambda task: [float(len(d.text)) for d in task.documents])
    library("spy", reranker, Spy(), retrieval=function, select_sources=False).rank(task)
    ranked_lists = {
        name: sorted((d.text for d in found), key=len, reverse=True) for name, found in task.sources.items()
    }
    # The pool interleaves the sources by rank.
    assert seen[0][:2] == [ranked_lists["web"][0], ranked_lists["wiki"][0]]
    assert all(d.score is None for d in task.documents)


def test_identity_names_everything_that_changes_a_ranking(reranker: GradReranker) -> None:
    base = made("gates", reranker).identity
    assert made("gates:z=1.0", reranker).identity == base
    for other in ("gates:z=0.5", "gates:target=draft", "gates:retrieval=bm25", "gates:max_document_tokens=50"):
        assert made(other, reranker).identity != base, other
    assert made("random", reranker).identity != made("random", reranker, seed=1).identity
    twin = GradReranker(tiny(), encoder=reranker.encoder)
    assert made("gates", twin).identity == base
    assert made("gates", GradReranker(tiny(seed=1), encoder=reranker.encoder)).identity != base


def test_identity_follows_the_settings_and_the_weights(reranker: GradReranker) -> None:
    other = copy.copy(reranker)
    other.settings = reranker.settings.override(draft_tokens=3)
    assert made("gates", other).identity != made("gates", reranker).identity
    model, tokenizer = tiny()
    changing = GradReranker((model, tokenizer), encoder=reranker.encoder)
    before = made("gates", changing).identity
    with torch.no_grad():
        model.get_input_embeddings().weight[5] += 1
    assert made("gates", changing).identity != before


def test_a_sum_adds_z_scores() -> None:
    task = Task("q", tuple(Document("x", id=i) for i in "abc"), ("s",) * 3)
    one, two = Ranked({"a": 3.0, "b": 2.0, "c": 1.0}, {"question": 5}, 1.0), Ranked({"c": 7.0, "a": 1.0}, seconds=2.0)
    z1 = (np.array([3, 2, 1.0]) - 2) / np.std([3, 2, 1])
    z2 = (np.array([1, 1, 7.0]) - 3) / np.std([1, 1, 7])  # what was not kept gets the lowest score
    total = dict(zip("abc", (z1 + 0.5 * z2).tolist(), strict=True))
    found = add_up(task, [1.0, 0.5], [one, two])
    assert found.scores == pytest.approx(total) and found.order == sorted(total, key=lambda i: -total[i])
    assert found.tokens == {"question": 5} and found.seconds == 3.0
    constant = Ranked({"a": 0.1, "b": 0.1, "c": 0.1})
    assert add_up(task, [1.0, 1.0], [constant, one]).order == ["a", "b", "c"]


def test_a_sum_is_written_with_plus(reranker: GradReranker, questions: list[Question]) -> None:
    task = questions[0].task()
    parts = [made(spec, reranker) for spec in ("gates", "bm25")]
    expected = add_up(task, [1.0, 0.5], [part.rank(task) for part in parts])
    found = made("gates+0.5*bm25", reranker).rank(task)
    assert found.scores == pytest.approx(expected.scores)
    assert found.order == expected.order


LINKED = (
    Document("A film of 1981 by Ada Moss.", id="a", title="The Wave"),
    Document("Nothing of the kind.", id="b", title="Tides"),
    Document("She was born in Leeds.", id="c", title="Ada Moss"),
)


def test_links_are_what_the_product_adds(reranker: GradReranker) -> None:
    task = Task("Where was the director of The Wave born?", LINKED, ("s",) * 3)
    found = made("default", reranker)
    assert [part.name for part in found.parts] == ["default"] and not found.parts[0].parts
    assert not found.whole(task)
    ranked = found.rank(task)
    product = reranker.rerank(task.query, {"s": LINKED}, top_n=None, min_score=None)
    assert product.details["links"] == [[0, 2]]
    assert ranked.scores == pytest.approx({d.id: d.score for d in product}, abs=1e-6)
    assert ranked.order == [d.id for d in product]


def test_with_several_sources_the_default_is_ranked_as_a_whole(reranker: GradReranker, tmp_path: Path) -> None:
    question = Question("q", "Where was the director of The Wave born?", (), LINKED, ("s", "t", "s"))
    product = reranker.rerank(
        question.text, question.sources, top_n=None, min_score=None, select_sources=True, fusion="auto"
    )
    assert all("encoder" in d.scores for d in product)
    ledger = Ledger(tmp_path / "lines.jsonl")
    for spec, same in (("default", True), ("default:select_sources=false", False), ("gates", False)):
        found = rank_question(question, made(spec, reranker), ledger)
        assert (found.scores == pytest.approx({d.id: d.score for d in product}, abs=1e-6)) == same
    lines = len((tmp_path / "lines.jsonl").read_text().splitlines())
    rank_question(question, made("default", reranker), ledger)
    assert len((tmp_path / "lines.jsonl").read_text().splitlines()) == lines == 3


def test_nothing_is_taken_apart_that_comes_before_links(reranker: GradReranker) -> None:
    found = made("default:fusion=rrf", reranker)
    assert not found.parts
    task = Task("Where was the director of The Wave born?", LINKED, ("s",) * 3)
    product = reranker.rerank(task.query, {"s": LINKED}, top_n=None, min_score=None, fusion="rrf")
    assert found.rank(task).scores == pytest.approx({d.id: d.score for d in product}, abs=1e-6)


def test_names_beyond_what_is_read_of_a_document_count_for_nothing(reranker: GradReranker) -> None:
    cut = (replace(LINKED[0], text="It is long. " * 9 + LINKED[0].text), *LINKED[1:])
    task = Task("Where was the director of The Wave born?", cut, ("s",) * 3)
    found = made("default:max_document_tokens=20", reranker)
    with pytest.warns(TruncationWarning):
        product = reranker.rerank(task.query, {"s": cut}, top_n=None, min_score=None, max_document_tokens=20)
    assert product.details["links"] == []
    assert found.rank(task).scores == pytest.approx({d.id: d.score for d in product}, abs=1e-6)


def test_a_baseline_passes_on_what_is_above_its_mean(reranker: GradReranker) -> None:
    task = Task("q", LINKED, ("s",) * 3)
    one = Configuration("one", lambda task: Ranked({"a": 6.0, "b": 2.0, "c": 1.0}, {"question": 5}, 1.0))
    found = linked("l", one, signed=False, weight=0.5).rank(task)
    assert found.scores == {"a": 6.0, "c": 2.5, "b": 2.0}
    assert found.order == ["a", "c", "b"] and found.tokens == {"question": 5} and found.seconds >= 1.0
    signed = linked("l", one, signed=True, weight=0.5).rank(task)
    assert signed.scores == {"a": 6.0, "c": 4.0, "b": 2.0}
    kept = Configuration("kept", lambda task: Ranked({"a": 6.0, "b": 2.0}))
    assert linked("l", kept, signed=True).rank(task).scores == {"a": 6.0, "b": 2.0}
    assert made("bm25+links", reranker).parts[0].name == "bm25"
    both = made("bm25+0.5*gates+links", reranker)
    assert [part.name for part in both.parts] == ["bm25+0.5*gates"]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"a": 1.0}, "must return Ranked, got dict"),
        (Ranked({"z": 1.0}), "unknown document 'z'"),
        (Ranked({"a": float("nan")}), "not finite"),
    ],
)
def test_what_is_no_ranking_is_refused(returned: Any, message: str) -> None:
    task = Task("q", (Document("x", id="a"),), ("s",))
    with pytest.raises(ScoringError, match=message):
        checked(returned, task, "mine")


def test_only_functions_are_configurations() -> None:
    with pytest.raises(InvalidArgumentError, match="configuration 'x' must be"):
        as_configuration("x", 3)
