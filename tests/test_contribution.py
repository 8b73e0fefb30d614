"""Utilities of sources and their agreement."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gradrerank.sources.contribution import contributions, source_agreement

NAMES = ["crm", "web", "wiki"]
found_lists = st.lists(st.lists(st.sampled_from(NAMES), min_size=1, unique=True), min_size=1, max_size=8)


@given(found_lists, st.data())
def test_shares_add_up_to_the_utility_of_all_documents(found_by: list[list[str]], data: st.DataObject) -> None:
    utilities = data.draw(
        st.lists(st.integers(-900, 900).map(lambda c: c / 100), min_size=len(found_by), max_size=len(found_by))
    )
    found = contributions(found_by, utilities)
    assert math.fsum(c.utility for c in found.values()) == pytest.approx(math.fsum(utilities), abs=1e-9)
    expected = 1.0 if any(u > 0 for u in utilities) else 0.0
    assert math.fsum(c.share for c in found.values()) == pytest.approx(expected)
    assert all(0 <= c.share <= 1 + 1e-12 for c in found.values())


@given(found_lists, st.data())
def test_the_order_of_documents_and_names_does_not_matter(found_by: list[list[str]], data: st.DataObject) -> None:
    utilities = data.draw(
        st.lists(st.integers(-900, 900).map(lambda c: c / 100), min_size=len(found_by), max_size=len(found_by))
    )
    order = data.draw(st.permutations(range(len(found_by))))
    moved = contributions([found_by[i][::-1] for i in order], [utilities[i] for i in order])
    assert moved == contributions(found_by, utilities)
    assert list(moved) == sorted(moved)


def test_a_shared_document_is_shared_equally_and_a_harmful_one_counts_against_its_source() -> None:
    found = contributions([["a", "b"], ["a"], ["c"]], [3.0, -1.0, -2.0])
    assert [found[n].utility for n in "abc"] == [0.5, 1.5, -2.0]
    assert [found[n].share for n in "abc"] == [0.5, 0.5, 0.0]


def test_no_documents_no_sources() -> None:
    assert contributions([], []) == {}
    assert source_agreement([], np.zeros((3, 0))).cosines == {}


def test_no_positive_utility_is_nobodys_share() -> None:
    assert contributions([["a"]], [-1.0])["a"].share == 0.0
    assert contributions([["a"]], [0.0])["a"].share == 0.0


@given(arrays(float, (5, 4), elements=st.floats(-3, 3).map(lambda x: round(x, 2))))
def test_cosines_and_volume_against_the_definitions(utilities: np.ndarray) -> None:
    found_by = [["a"], ["b"], ["c"], ["a", "c"]]
    found = source_agreement(found_by, utilities)
    halves = utilities[:, 3] / 2
    vectors = {"a": utilities[:, 0] + halves, "b": utilities[:, 1], "c": utilities[:, 2] + halves}
    moved = {name: v / np.linalg.norm(v) for name, v in vectors.items() if np.linalg.norm(v) > 0}
    if len(moved) < 2:
        assert found.cosines == {} and found.volume is None
        return
    for a, va in moved.items():
        assert set(found.cosines[a]) == set(moved) - {a}
        for b, cosine in found.cosines[a].items():
            assert cosine == pytest.approx(float(va @ moved[b]), abs=1e-9)
    gram = np.array([[va @ vb for vb in moved.values()] for va in moved.values()])
    assert found.volume == pytest.approx(math.sqrt(max(np.linalg.det(gram), 0.0)), abs=1e-6)


def test_volume_of_apart_repeated_and_opposed_sources() -> None:
    apart = source_agreement([["a"], ["b"]], np.eye(2))
    same = source_agreement([["a"], ["b"]], np.array([[1.0, 2.0], [1.0, 2.0]]))
    opposed = source_agreement([["a"], ["b"]], np.array([[1.0, -2.0], [1.0, -2.0]]))
    assert (apart.volume, apart.cosines["a"]["b"]) == (1.0, 0.0)
    assert (same.volume, same.cosines["a"]["b"]) == pytest.approx((0.0, 1.0), abs=1e-7)
    assert (opposed.volume, opposed.cosines["a"]["b"]) == pytest.approx((0.0, -1.0), abs=1e-7)


def test_more_sources_than_tokens_span_no_volume_and_a_source_that_does_nothing_is_left_out() -> None:
    found = source_agreement([["a"], ["b"], ["c"], ["idle"]], np.array([[1.0, 2.0, 3.0, 0.0], [1.0, 0.0, 1.0, 0.0]]))
    assert found.volume == 0.0
    assert list(found.cosines) == ["a", "b", "c"]
