"""What both framework packages do alike: settings of the core under its names, sources, budgets, compression."""

from __future__ import annotations

from typing import Any

import pytest
from adapters import ADAPTERS, LangChain, LlamaIndex, adapter
from pydantic import ValidationError
from through import letters
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker, ScoreCalibration, Scores, ScoringJob
from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers import DEFAULT_SCORER

BY_SOURCE = {"wiki": DOCUMENTS[:2], "web": DOCUMENTS[2:]}
Package = LangChain | LlamaIndex
frameworks = pytest.mark.parametrize("package", [adapter(way) for way in ADAPTERS], ids=ADAPTERS)


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters)


class ByLength:
    """The longer the better."""

    name = "length"

    def score(self, job: ScoringJob) -> Scores:
        return Scores([float(len(d.text)) for d in job.documents])


@frameworks
def test_sources_are_chosen_by_utility_as_in_the_core(package: Package, reranker: GradReranker) -> None:
    asked: dict[str, Any] = {"source_choice": "gradient", "max_sources": 1}
    made = package.make(reranker=reranker, source_agreement=True, **asked)
    expected = [d.text for d in reranker.rerank(QUERY, BY_SOURCE, **asked)]
    kept = package.rank(made, package.documents(BY_SOURCE), QUERY)
    assert [package.text(d) for d in kept] == expected and len(expected) < len(DOCUMENTS)


@frameworks
def test_a_calibration_survives_a_dump_and_bounds_by_probability(package: Package, reranker: GradReranker) -> None:
    every = reranker.rerank(QUERY, BY_SOURCE, select_sources=False)
    middle = (every[1].score + every[2].score) / 2
    knots = ((middle - 1e-4, 0.1), (middle + 1e-4, 0.9))
    curve = ScoreCalibration(method="isotonic", scorer=DEFAULT_SCORER, target="query", knots=knots)
    fields: dict[str, Any] = {"reranker": reranker, "min_score": 0.5, "select_sources": False}
    made = package.make(calibration=curve, **fields)
    for each in (made, package.make(calibration=made.model_dump()["calibration"], **fields)):
        kept = package.rank(each, package.documents(BY_SOURCE), QUERY)
        assert [package.text(d) for d in kept] == [d.text for d in every[:2]]
        assert [package.record(d)["stages"]["probability"] for d in kept] == [0.9, 0.9]
    assert "knots" not in repr(made)


@frameworks
async def test_the_choice_and_the_order_are_those_of_the_core(package: Package, reranker: GradReranker) -> None:
    options: dict[str, Any] = {"selection": "coverage", "order": "edges", "top_n": 3, "token_budget": 200}
    expected = [d.text for d in reranker.rerank(QUERY, DOCUMENTS, **options)]
    made, given = package.make(reranker=reranker, **options), package.documents({"documents": DOCUMENTS})
    assert [package.text(d) for d in package.rank(made, given, QUERY)] == expected
    assert [package.text(d) for d in await package.arank(made, given, QUERY)] == expected


@frameworks
def test_limits_by_source_and_a_source_that_finds_nothing(package: Package, reranker: GradReranker) -> None:
    made = package.make(reranker=reranker, scorer=ByLength(), per_source={"a": 1, "c": (1, None)}, select_sources=False)
    sources = {"a": ["aaaa", "aaa", "aa"], "b": ["b"], "c": []}
    found = package.retrieve(package.retriever(sources, made), QUERY)
    assert [package.text(d) for d in found] == ["aaaa", "b"]
    # On its own it does not know the sources, so one that is named may have found nothing.
    assert len(package.rank(made, package.documents({"b": ["x", "y"]}), QUERY)) == 2
    inherited = package.make(reranker=GradReranker(reranker.generator, per_source={"c": 1}))
    assert len(package.rank(inherited, package.documents({"b": ["x", "y"]}), QUERY)) == 2


@frameworks
@pytest.mark.parametrize("field", ["per_source", "weights"])
def test_C15_a_retriever_refuses_a_name_that_is_none_of_its_sources(
    package: Package, reranker: GradReranker, field: str
) -> None:
    """Also where the setting is that of a ready reranker, or was made after the retriever."""
    slip: dict[str, Any] = {field: {"wikki": 1}}
    message = f"{field} names 'wikki', which is no source; sources are wiki, web"
    for made in (
        package.make(reranker=reranker, **slip),
        package.make(reranker=GradReranker(reranker.generator, **slip)),
    ):
        with pytest.raises((InvalidArgumentError, ValidationError), match=message):
            package.retriever(BY_SOURCE, made)
    made = package.make(reranker=reranker)
    retriever = package.retriever(BY_SOURCE, made)
    setattr(made, field, slip[field])
    with pytest.raises(InvalidArgumentError, match=f"{field} names 'wikki'"):
        package.retrieve(retriever, QUERY)


@frameworks
def test_a_second_step_does_not_lose_the_original(package: Package, reranker: GradReranker) -> None:
    given = package.documents({"documents": DOCUMENTS})
    once = package.rank(package.make(reranker=reranker, compress=True), given, QUERY)
    for compress in (False, True):
        twice = package.rank(package.make(reranker=reranker, compress=compress), once, QUERY)
        originals = {package.id(d): package.record(d).get("original", package.text(d)) for d in twice}
        assert originals == {f"d{i}": text for i, text in enumerate(DOCUMENTS)}


@frameworks
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_budget": 0}, "token_budget must be a whole number >= 1"),
        ({"token_counter": 3}, "token_counter must be callable"),
        ({"selection": "best"}, "selection must be one of"),
        ({"selection": 3}, "selection must be one of"),
        ({"mmr_lambda": 2}, "mmr_lambda must be"),
        ({"per_source": {"a": -1}}, "per_source"),
        ({"order": "best"}, "order must be one of"),
        ({"compress": "yes"}, "compress must be a bool"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(
    package: Package, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        package.make(**fields)
