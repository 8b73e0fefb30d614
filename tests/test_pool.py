"""Named sources into one pool: nothing lost, nothing doubled, nothing depending on the order of the sources."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradrerank.documents import Document, Provenance
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.sources.pool import DEFAULT_SOURCE, Pool, build_pool, read_sources, reciprocal_rank, restrict
from gradrerank.validation import is_blank

Sources = dict[str, list[Document]]

texts = st.sampled_from(["alpha", " alpha\n", "beta", "gamma", "", "  ", "\u200b", "\ud800", "Beta"])
documents = st.builds(
    Document,
    text=texts,
    id=st.sampled_from([None, "1", "2"]),
    title=st.sampled_from([None, "", "T"]),
    score=st.sampled_from([None, 0.0, -0.3, 14.2]),
)
sources_strategy = st.dictionaries(st.sampled_from(["wiki", "web", "notes"]), st.lists(documents, max_size=6))
limits = st.sampled_from([None, 1, 2, 50])


def places(pool: Pool) -> Counter[tuple[str, int]]:
    """How often each occurrence (source, rank) is in the pool."""
    everything = [*pool.candidates, *pool.dropped]
    return Counter((p.source, p.rank) for found in everything for p in found.provenance)


# --- reading -----------------------------------------------------------------------------------------------------


def test_C05_generators_are_read_once_and_wholly() -> None:
    n_read = 0

    def stream() -> Iterator[Document | str]:
        nonlocal n_read
        for text in ["x", "y"]:
            n_read += 1
            yield text

    sources = read_sources({"a": stream(), "b": (Document("z"),)})
    assert n_read == 2
    assert {name: [d.text for d in docs] for name, docs in sources.items()} == {"a": ["x", "y"], "b": ["z"]}


def test_C05_documents_without_a_source_are_one_source() -> None:
    document = Document("x", id="1")
    assert read_sources([document, "y"]) == {DEFAULT_SOURCE: (document, Document("y"))}
    assert read_sources(d for d in [document])[DEFAULT_SOURCE][0] is document


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("text", r"sources is a str; pass an iterable of documents, for instance \[text\]"),
        (b"text", r"sources is a bytes"),
        (Document("x"), r"sources is a Document; .* for instance \[document\]"),
        ({"wiki": "text"}, r"sources\['wiki'\] is a str; pass an iterable of documents, for instance \[text\]"),
        ({"wiki": Document("x")}, r"sources\['wiki'\] is a Document"),
        ({"wiki": ["a", "b", "c", None]}, r"sources\['wiki'\]\[3\] is NoneType, expected Document or str"),
        ({"wiki": None}, r"sources\['wiki'\] is NoneType, expected an iterable"),
        ({"wiki": {"id": "text"}}, r"sources\['wiki'\] is dict, expected an iterable"),
        ({"wiki": {"a", "b"}}, r"sources\['wiki'\] is a set, which has no order"),
        ([["a"], ["b"]], r"sources\[0\] is list, expected Document or str"),
        (["a", b"b"], r"sources\[1\] is bytes, expected Document or str"),
        (None, r"sources is NoneType"),
        (7, r"sources is int"),
        ({3: ["a"]}, r"the name of a source must be a str, got int 3"),
        ({None: ["a"]}, r"the name of a source must be a str, got NoneType"),
    ],
)
def test_C05_what_is_not_a_source_is_named(sources: Any, message: str) -> None:
    with pytest.raises(InvalidTypeError, match=message):
        read_sources(sources)


def test_C05_a_document_of_another_library_is_told_apart_by_its_module() -> None:
    other = type("Document", (), {"__module__": "otherlib.schema"})()
    with pytest.raises(InvalidTypeError, match=r"sources\[0\] is otherlib.schema.Document, expected Document or str"):
        read_sources([other])


@pytest.mark.parametrize("name", ["", "  ", "\u200b"])
def test_C15_a_source_needs_a_name(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="the name of a source must hold some text"):
        read_sources({name: []})


def test_C12_a_numpy_string_becomes_a_plain_one() -> None:
    assert type(read_sources(np.array(["x"]))[DEFAULT_SOURCE][0].text) is str


# --- empty and blank ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sources", [{}, {"a": []}, {"a": [], "b": []}])
def test_C01_no_documents_give_an_empty_pool(sources: Sources) -> None:
    pool = build_pool(read_sources(sources))
    assert pool.candidates == ()
    assert pool.dropped == ()
    assert pool.n_documents == dict.fromkeys(sources, 0)


def test_C01_an_empty_source_changes_nothing_in_the_other() -> None:
    full = [Document("x"), Document("y"), Document("x")]
    assert build_pool({"a": full, "b": []}).candidates == build_pool({"a": full}).candidates


def test_C02_blank_documents_are_dropped_one_by_one_with_their_place() -> None:
    docs = [Document(t, id=str(i)) for i, t in enumerate(["Kettles boil at 100 C.", "", "   ", "\u200b", "\n\t"])]
    pool = build_pool({"a": docs})
    assert [c.document for c in pool.candidates] == [docs[0]]
    assert [(d.document.id, d.reason, d.provenance[0].rank) for d in pool.dropped] == [
        (str(i), "blank", i + 1) for i in range(1, 5)
    ]
    assert pool.sources == {"a": (docs[0],)}
    assert pool.n_documents == {"a": 5}


def test_C02_only_blank_documents_leave_no_candidate() -> None:
    pool = build_pool({"a": [Document(""), Document(" ")], "b": [Document("")]})
    assert pool.candidates == ()
    assert pool.sources == {"a": (), "b": ()}
    assert [(d.provenance[0].source, d.provenance[0].rank) for d in pool.dropped] == [("a", 1), ("b", 1), ("a", 2)]


# --- identity ----------------------------------------------------------------------------------------------------


def test_C03_every_permutation_keeps_text_id_and_metadata_together() -> None:
    kinds = [("", "e"), ("alpha", "a"), ("alpha", "a"), ("  ", "s"), ("beta", "b")]
    docs = [Document(text, id=id, metadata={"of": id}) for text, id in kinds]
    for order in permutations(docs):
        pool = build_pool({"s": list(order)})
        assert {(c.text, c.document.id, c.document.metadata["of"]) for c in pool.candidates} == {
            ("alpha", "a", "a"),
            ("beta", "b", "b"),
        }
        for found in [*pool.candidates, *pool.dropped]:
            for p in found.provenance:
                assert order[p.rank - 1].text == found.document.text
                assert (p.id, p.metadata) == (order[p.rank - 1].id, order[p.rank - 1].metadata)


def test_C08_the_same_text_in_two_sources_is_one_candidate_with_both_citations() -> None:
    wiki = Document("Trams run hourly.", id="w1", metadata={"file": "a"}, score=14.2)
    notes = Document(" Trams run hourly.\n", id="n9", title="", metadata={"file": "b"}, score=0.61)
    pool = build_pool({"wiki": [Document("Buses stop."), wiki], "notes": [notes]})
    trams = pool.candidates[0]
    assert trams.document is notes
    assert trams.sources == ("notes", "wiki")
    assert trams.provenance == (
        Provenance("notes", 1, 0.61, "n9", {"file": "b"}),
        Provenance("wiki", 2, 14.2, "w1", {"file": "a"}),
    )


def test_C08_a_true_duplicate_keeps_both_occurrences_and_the_first_source_by_name_leads() -> None:
    a, b = Document("x", id="1", metadata={"of": "a"}), Document("x", id="1", metadata={"of": "b"})
    for sources in ({"a": [a], "b": [b]}, {"b": [b], "a": [a]}):
        (candidate,) = build_pool(sources).candidates
        assert candidate.document is a
        assert [p.source for p in candidate.provenance] == ["a", "b"]


def test_C08_one_id_with_two_texts_or_two_titles_stays_two_candidates() -> None:
    pool = build_pool({"a": [Document("x", id="1"), Document("x", id="1", title="T")], "b": [Document("y", id="1")]})
    assert [(c.text, c.title) for c in pool.candidates] == [("x", None), ("y", None), ("x", "T")]


def test_C09_odd_metadata_is_passed_by_reference_and_never_read() -> None:
    class Untouchable(dict[Any, Any]):
        def _refuse(self, *_: object) -> Any:
            raise AssertionError("metadata was read")

        __eq__ = __iter__ = __getitem__ = __len__ = items = keys = values = __contains__ = _refuse
        __hash__ = None  # type: ignore[assignment]

    odd = {"tags": ["x"], "box": {"p": {1, 2}}, "arr": np.arange(3), "when": datetime(2024, 1, 1), 5: "int key"}
    for metadata in (odd, Untouchable(odd)):
        first, second = Document("x", metadata=metadata), Document("x", metadata=metadata)
        pool = build_pool({"a": [first], "b": [second, Document("", metadata=metadata)]}, docs_per_source=1)
        (candidate,) = restrict(pool, ["a"]).candidates
        assert [p.metadata is metadata for p in candidate.provenance] == [True, True]


def test_C10_the_callers_documents_are_equal_before_and_after_also_when_reading_fails() -> None:
    docs = [Document("x", metadata={"n": {"tags": ["t"]}}), Document(""), Document("x", metadata={"m": 1})]
    sources = {"a": docs, "b": list(reversed(docs))}
    before = copy.deepcopy(sources)
    restrict(build_pool(read_sources(sources), docs_per_source=1), ["b"])
    assert sources == before
    with pytest.raises(InvalidTypeError):
        read_sources({**sources, "c": [*docs, None]})
    with pytest.raises(InvalidArgumentError):
        build_pool(sources, docs_per_source=0)
    assert sources == before


# --- scores and order --------------------------------------------------------------------------------------------


def test_C11_no_score_stays_none_and_two_scores_are_both_kept() -> None:
    nodes = [Document("a", score=None), Document("b", score=0.1), Document("c", score=-0.3), Document("d", score=0.0)]
    pool = build_pool({"bm25": [Document("a", score=14.2)], "dense": nodes})
    by_text = {c.text: c for c in pool.candidates}
    assert [(p.source, p.score) for p in by_text["a"].provenance] == [("bm25", 14.2), ("dense", None)]
    assert by_text["d"].provenance[0].score == 0.0
    assert [c.text for c in pool.candidates] == ["a", "b", "c", "d"]


def test_C14_only_ranks_count_so_scores_of_any_scale_give_the_same_order() -> None:
    def order(scale: float) -> list[str]:
        bm25 = [Document("a", score=31.0 * scale), Document("b", score=12.0 * scale)]
        dense = [Document("b", score=0.82), Document("c", score=0.82), Document("d", score=-0.79)]
        return [c.text for c in build_pool({"bm25": bm25, "dense": dense}).candidates]

    assert order(1.0) == order(100.0) == ["b", "a", "c", "d"]


def test_candidates_follow_the_sum_of_reciprocal_ranks() -> None:
    wiki = [Document(t) for t in ["one", "two", "three"]]
    web = [Document(t) for t in ["four", "three"]]
    pool = build_pool({"wiki": wiki, "web": web})
    assert [c.text for c in pool.candidates] == ["three", "four", "one", "two"]
    assert reciprocal_rank(pool.candidates[0].provenance) == pytest.approx(1 / 62 + 1 / 63, abs=1e-15)


def test_of_equal_sums_and_ranks_the_source_that_is_first_by_name_leads() -> None:
    x, y = Document("x"), Document("y")
    pool = build_pool({"a": [Document("1"), Document("2"), x], "b": [y], "c": [x, Document("3"), y]})
    tied = [c for c in pool.candidates if len(c.provenance) == 2]
    assert reciprocal_rank(tied[0].provenance) == reciprocal_rank(tied[1].provenance)
    assert [(c.text, c.sources) for c in tied] == [("y", ("b", "c")), ("x", ("c", "a"))]


@given(sources_strategy, limits, st.randoms())
def test_C11_C32_the_order_of_the_sources_changes_nothing(sources: Sources, limit: int | None, random: Any) -> None:
    names = list(sources)
    random.shuffle(names)
    shuffled = {name: sources[name] for name in names}
    assert build_pool(shuffled, docs_per_source=limit) == build_pool(sources, docs_per_source=limit)


# --- limits ------------------------------------------------------------------------------------------------------


def test_docs_per_source_counts_readable_documents_and_spares_what_another_source_hands_over() -> None:
    a = [Document(""), Document("a1"), Document("a2"), Document("shared"), Document("a3")]
    b = [Document("shared"), Document("a3 "), Document("b3"), Document("a3")]
    pool = build_pool({"a": a, "b": b}, docs_per_source=2)
    assert pool.sources == {"a": (a[1], a[2]), "b": (b[0], b[1])}
    by_text = {c.text.strip(): [(p.source, p.rank) for p in c.provenance] for c in pool.candidates}
    assert by_text == {
        "shared": [("b", 1), ("a", 4)],
        "a3": [("b", 2), ("b", 4), ("a", 5)],
        "a1": [("a", 2)],
        "a2": [("a", 3)],
    }
    assert [(d.document.text, d.reason) for d in pool.dropped] == [("", "blank"), ("b3", "docs_per_source")]


def test_C04_docs_per_source_larger_than_the_source_keeps_all() -> None:
    docs = [Document("x"), Document("y")]
    assert build_pool({"a": docs}, docs_per_source=50) == build_pool({"a": docs})


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "2"])
def test_C04_a_bad_docs_per_source_is_refused(limit: Any) -> None:
    with pytest.raises(ValueError, match="docs_per_source"):
        build_pool({"a": [Document("x")]}, docs_per_source=limit)


def test_restrict_keeps_what_a_named_source_found_with_its_whole_provenance() -> None:
    pool = build_pool({"a": [Document("x"), Document("y")], "b": [Document("x"), Document("z"), Document("")]})
    kept = restrict(pool, {"b"})
    assert [(c.text, c.sources) for c in kept.candidates] == [("x", ("a", "b")), ("z", ("b",))]
    assert [(d.document.text, d.reason) for d in kept.dropped] == [("", "blank"), ("y", "source_not_selected")]
    assert kept.sources == pool.sources
    assert restrict(pool, []).candidates == ()


def test_restrict_refuses_what_is_not_a_source() -> None:
    pool = build_pool({"wiki": [Document("x")], "web": []})
    with pytest.raises(InvalidArgumentError, match="no source is named 'wikii'; the sources are web, wiki"):
        restrict(pool, ["wiki", "wikii"])
    with pytest.raises(InvalidTypeError, match="got the str 'wiki'"):
        restrict(pool, "wiki")


# --- nothing lost, nothing doubled -------------------------------------------------------------------------------


@given(sources_strategy, limits, st.sets(st.sampled_from(["wiki", "web", "notes"])))
def test_C03_every_occurrence_is_in_exactly_one_place(sources: Sources, limit: int | None, names: set[str]) -> None:
    pool = build_pool(sources, docs_per_source=limit)
    expected = {(name, rank) for name, docs in sources.items() for rank in range(1, len(docs) + 1)}
    for state in (pool, restrict(pool, names & sources.keys())):
        assert places(state) == Counter(expected)
        for found in [*state.candidates, *state.dropped]:
            best = found.provenance[0]
            assert found.document is sources[best.source][best.rank - 1]
            assert list(found.provenance) == sorted(found.provenance, key=lambda p: (p.rank, p.source))


@given(sources_strategy, limits)
def test_C08_candidates_are_the_distinct_readable_documents(sources: Sources, limit: int | None) -> None:
    pool = build_pool(sources, docs_per_source=limit)

    def key(d: Document) -> tuple[str, str]:
        return d.text.strip(), d.title or ""

    top = {key(d) for docs in sources.values() for d in [d for d in docs if not is_blank(d.text)][:limit]}
    keys = [key(c.document) for c in pool.candidates]
    assert len(keys) == len(set(keys))
    assert set(keys) == top
    assert {key(d) for docs in pool.sources.values() for d in docs} == top
    for candidate in pool.candidates:
        for p in candidate.provenance:
            assert key(sources[p.source][p.rank - 1]) == key(candidate.document)
