"""Documents, results and errors as plain values, and the checks that every argument goes through."""

from __future__ import annotations

import copy
import json
import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from gradrerank.documents import Document, DroppedDocument, Provenance, RankedDocument, RerankResult, SourceReport
from gradrerank.errors import AllSourcesFailedError, GradRerankError, InvalidArgumentError, InvalidTypeError
from gradrerank.settings import Settings
from gradrerank.validation import (
    check_choice,
    check_count,
    check_number,
    check_optional_count,
    check_optional_number,
    check_query,
    is_blank,
)


def ranked(text: str = "Trams run hourly.", rank: int = 1, score: float = 0.25) -> RankedDocument:
    provenance = (Provenance("wiki", 1, 14.2, "w1", {"file": "a"}), Provenance("web", 2), Provenance("web", 5))
    return RankedDocument(text, "w1", None, {"file": "a"}, score, rank, provenance, kept=(0, len(text)))


# --- documents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [None, b"bytes", 3, ["x"]])
def test_C05_a_document_without_a_string_is_refused(text: object) -> None:
    with pytest.raises(InvalidTypeError, match=rf"Document\.text must be a str, got {type(text).__name__}"):
        Document(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "fields", [{"id": 7}, {"title": b"t"}, {"metadata": [1]}, {"score": "0.5"}, {"score": True}, {"score": 1j}]
)
def test_C05_wrong_fields_of_a_document_are_named(fields: dict[str, object]) -> None:
    (name,) = fields
    with pytest.raises(InvalidTypeError, match=rf"Document\.{name} must be"):
        Document("x", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("score", [math.nan, math.inf, -math.inf, np.float32("nan")])
def test_C02_a_score_that_is_not_finite_is_refused(score: float) -> None:
    with pytest.raises(InvalidArgumentError, match="finite"):
        Document("x", score=score)


def test_C11_no_score_is_not_zero() -> None:
    assert Document("x").score is None
    assert Document("x", score=0.0).score == 0.0
    assert Document("x") != Document("x", score=0.0)


@pytest.mark.parametrize("score", [np.float32(0.5), np.float64(0.5), np.int64(2), 1])
def test_C12_a_numpy_score_becomes_a_plain_float(score: float) -> None:
    document = Document("x", score=score)
    assert type(document.score) is float
    assert json.loads(json.dumps(document.score)) == float(score)


def test_C10_a_document_cannot_be_changed_and_keeps_the_callers_metadata_object() -> None:
    metadata = {"nested": {"tags": ["x"]}}
    document = Document("x", metadata=metadata)
    with pytest.raises(AttributeError):
        document.text = "y"  # type: ignore[misc]
    assert document.metadata is metadata
    assert copy.deepcopy(document) == document
    assert pickle.loads(pickle.dumps(document)) == document


# --- results -----------------------------------------------------------------------------------------------------


def test_C08_sources_hold_the_best_occurrence_of_each_source() -> None:
    document = ranked()
    assert {name: p.rank for name, p in document.sources.items()} == {"wiki": 1, "web": 2}
    assert document.sources["wiki"].metadata == {"file": "a"}


def test_a_result_is_a_sequence_of_its_documents() -> None:
    documents = (ranked("a", 1, 0.5), ranked("b", 2, -0.5))
    result = RerankResult("q", documents, ())
    assert len(result) == 2
    assert list(result) == list(documents)
    assert result[1].text == "b"
    assert result[:1] == documents[:1]
    assert not RerankResult("q", (), ())


def test_C12_a_result_is_json_without_a_helper() -> None:
    dropped = DroppedDocument(Document(" ", id="b"), (Provenance("web", 3, id="b"),), "blank")
    report = SourceReport("wiki", True, 0.7, 0.7, 3, 1)
    result = RerankResult("q", (ranked(),), (report,), (dropped,), {"total": 0.1}, {"score": 9}, "gates", "query", "q")
    back = json.loads(json.dumps(result.to_dict()))
    assert back["documents"][0]["provenance"][0] == {
        "source": "wiki",
        "rank": 1,
        "score": 14.2,
        "id": "w1",
        "metadata": {"file": "a"},
    }
    assert back["dropped"][0]["reason"] == "blank"
    assert back["dropped"][0]["document"]["id"] == "b"
    assert back["sources"][0]["gain"] == 0.7
    assert back["timings"] == {"total": 0.1}


def test_C10_changing_the_dict_of_a_result_does_not_change_the_result() -> None:
    result = RerankResult("q", (ranked(),), ())
    result.to_dict()["documents"][0]["metadata"]["x"] = {}
    assert result[0].metadata == {"file": "a"}


def test_C09_odd_metadata_passes_through_a_result_as_it_is() -> None:
    array = np.arange(3)
    document = RankedDocument("x", None, None, {"arr": array, 5: {1, 2}}, 0.0, 1, ())  # type: ignore[dict-item]
    assert RerankResult("q", (document,), ()).to_dict()["documents"][0]["metadata"]["arr"] is array


def test_C20_the_repr_of_a_result_stays_short() -> None:
    result = RerankResult("why " * 500, tuple(ranked("x" * 10_000, i) for i in range(1, 9)), ())
    assert len(repr(result)) < 200
    assert "8 documents" in repr(result)


def test_a_result_as_a_table() -> None:
    pytest.importorskip("pandas")
    table = RerankResult("q", (ranked("a", 1), ranked("b", 2)), ()).to_pandas()
    assert list(table["text"]) == ["a", "b"]
    assert table["sources"][0] == {"wiki": 1, "web": 2}
    assert len(RerankResult("q", (), ()).to_pandas()) == 0


def test_C13_the_error_of_failed_sources_names_each_and_survives_a_pickle() -> None:
    error = AllSourcesFailedError({"crm": ConnectionError("down"), "wiki": TimeoutError("slow")})
    assert "'crm': ConnectionError: down" in str(error)
    assert "'wiki': TimeoutError: slow" in str(error)
    back = pickle.loads(pickle.dumps(error))
    assert list(back.causes) == ["crm", "wiki"]
    assert isinstance(back, RuntimeError)


# --- checks of arguments -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, True, False, 2.0, "2", math.nan, np.float64(2), np.bool_(True), [2], 2 + 0j])
def test_C04_a_bad_count_is_a_value_error_naming_argument_and_value(value: object) -> None:
    with pytest.raises(ValueError, match="top_n must be a whole number >= 1 or None") as caught:
        check_optional_count("top_n", value)
    assert repr(value) in str(caught.value)
    assert isinstance(caught.value, InvalidArgumentError)


@pytest.mark.parametrize("value", [1, 50, np.int64(3), np.uint8(3), np.array(3)])
def test_C04_whole_numbers_become_plain_ints(value: int) -> None:
    count = check_optional_count("top_n", value)
    assert count == int(value)
    assert type(count) is int


def test_C04_none_is_no_limit_only_where_it_may_be() -> None:
    assert check_optional_count("top_n", None) is None
    with pytest.raises(InvalidArgumentError, match=r"batch_size must be a whole number >= 1, got None"):
        check_count("batch_size", None)


@pytest.mark.parametrize("value", [math.nan, math.inf, True, np.bool_(False), "0.5", b"1", [0.5], 1j, 10**400])
def test_C16_a_bad_number_is_a_value_error_naming_argument_and_value(value: object) -> None:
    with pytest.raises(ValueError, match="min_score must be a finite number or None, got ") as caught:
        check_optional_number("min_score", value)
    assert repr(value)[:70] in str(caught.value)


@pytest.mark.parametrize("value", [0.5, -3, np.float32(0.5), np.int64(2), Fraction(1, 2), Decimal("0.5")])
def test_C12_real_numbers_become_plain_floats(value: float) -> None:
    number = check_optional_number("min_score", value)
    assert number == float(value)
    assert type(number) is float


def test_a_minimum_is_inclusive() -> None:
    assert check_number("source_lambda", 0, minimum=0) == 0.0
    with pytest.raises(InvalidArgumentError, match=r"source_lambda must be a finite number >= 0, got -0.1"):
        check_number("source_lambda", -0.1, minimum=0)
    with pytest.raises(InvalidArgumentError, match="source_lambda must be a finite number, got None"):
        check_number("source_lambda", None)


@pytest.mark.parametrize("value", [-0.1, 1.5, "x", None, True, math.nan])
def test_a_range_is_told_by_one_wording(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="mmr_lambda must be a number between 0 and 1, got "):
        Settings(mmr_lambda=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, 7, -1, 8.5, "9", True])
def test_the_least_number_of_document_tokens_is_told_by_one_wording(value: object) -> None:
    with pytest.raises(InvalidArgumentError, match="max_document_tokens must be a whole number >= 8 or None, got "):
        Settings(max_document_tokens=value)  # type: ignore[arg-type]
    assert Settings(max_document_tokens=8).max_document_tokens == 8


def test_a_bad_choice_lists_what_is_allowed_and_the_closest() -> None:
    allowed = ("gates", "ablation")
    assert check_choice("scorer", "gates", allowed) == "gates"
    with pytest.raises(InvalidArgumentError, match="one of 'gates', 'ablation', got 'Gate'; did you mean 'gates'"):
        check_choice("scorer", "Gate", allowed)
    with pytest.raises(InvalidArgumentError, match="got list") as caught:
        check_choice("scorer", ["gates"], iter(allowed))
    assert "did you mean" not in str(caught.value)


BLANKS = ["", "   ", "\u200b", "\n\t", "\ufeff\u2060\u200d", "\x00\x07", "\ud800", "\u00a0\u3000", "\u3164\u2800\ufe0f"]


@pytest.mark.parametrize("text", BLANKS)
def test_C02_text_with_nothing_to_read_is_blank(text: str) -> None:
    assert is_blank(text)


@pytest.mark.parametrize("text", ["a", "\u200ba", ".", "\ud800a", "0", "👩‍👩‍👧", "司", "e\u0301", "  x  "])
def test_C02_text_with_something_to_read_is_not_blank(text: str) -> None:
    assert not is_blank(text)


@pytest.mark.parametrize("query", BLANKS)
def test_C06_a_blank_query_is_refused_by_name(query: str) -> None:
    with pytest.raises(ValueError, match="query must hold some text"):
        check_query(query)


@pytest.mark.parametrize("query", [None, 3, b"ferry", ["ferry"], math.nan])
def test_C06_a_query_that_is_no_string_is_refused_by_type(query: object) -> None:
    with pytest.raises(TypeError, match="query must be a str, got") as caught:
        check_query(query)
    assert isinstance(caught.value, GradRerankError)


def test_C06_a_query_is_returned_unchanged() -> None:
    assert check_query("  ferry times\n") == "  ferry times\n"
