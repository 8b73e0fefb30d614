"""Figures as Markdown, places on a page, and several runs as one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradrerank.errors import InvalidArgumentError
from gradrerank.evaluation import Report, join_reports
from gradrerank.evaluation.markdown import estimate, fill, markdown_table, number
from gradrerank.evaluation.report import Row


@given(value=st.floats(-100, 100), digits=st.integers(1, 4), sign=st.booleans())
def test_a_number_is_read_back_as_it_was_rounded(value: float, digits: int, sign: bool) -> None:
    shown = number(value, digits, sign=sign)
    assert float(shown) == pytest.approx(round(value, digits), abs=1e-9)
    assert not shown.startswith(("0.", "-0."))
    assert shown.startswith(("+", "-")) or not sign


def test_nothing_has_no_sign_of_its_own() -> None:
    assert (number(-0.0001), number(-0.0001, sign=True)) == (".000", "+.000")
    assert estimate({"mean": -0.02, "low": -0.2, "high": 1.5}, sign=True) == "-.020 [-.20, +1.50]"


def test_only_the_named_places_of_a_page_change() -> None:
    page = "# A\n\n<!-- table a -->\n\nold\n\n<!-- end a -->\n\n<!-- table b -->\n\nkept\n\n<!-- end b -->\n"
    new = markdown_table(["x", "y"], [["1", ""]])
    once = fill(page, {"a": new})
    assert once == page.replace("old", "| x | y |\n|---|---|\n| 1 | |")
    assert fill(once, {"a": new}) == once


@pytest.mark.parametrize(
    "page",
    [
        "nothing",
        "<!-- table a -->",
        "<!-- end a --> <!-- table a -->",
        "<!-- table a --><!-- end a -->" * 2,
    ],
)
def test_a_page_without_its_place_is_refused(page: str) -> None:
    with pytest.raises(InvalidArgumentError, match="<!-- end a -->"):
        fill(page, {"a": "text"})


def test_joined_runs_keep_questions_of_the_same_name_apart() -> None:
    first = Report(
        "one",
        {"a": Row({"RR": {"q0": 1.0, "q1": 0.5}}), "b": Row({"RR": {"q0": 0.5, "q1": 0.5}})},
        {"q0": "g", "q1": "g"},
    )
    second = Report("two", {"a": Row({"RR": {"q0": 0.0}})}, {"q0": "g"})
    joined = join_reports([first, second])
    assert joined.estimate("a", "RR").mean == 0.5 and joined.estimate("a", "RR").n == 3
    assert joined.difference("a", "RR", "b").mean == 0.25 and joined.difference("a", "RR", "b").n == 2
    assert len(set(joined.groups.values())) == 2
