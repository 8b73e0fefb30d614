"""Results as tables: complete, readable at any width, and harmless whatever the documents hold."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gradrerank.display import HOW_TO_READ, one_line, render_result
from gradrerank.documents import (
    Document,
    DroppedDocument,
    Provenance,
    RankedDocument,
    RerankResult,
    SourceReport,
)


def shown(result: RerankResult, *, width: int = 100, encoding: str = "utf-8", color: bool = False) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="replace", newline="")
    Console(file=file, width=width, force_terminal=color, highlight=False, emoji=False).print(render_result(result))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def ranked(
    score: float = 0.5, *, rank: int = 1, text: str = "The ferry leaves at nine.", **fields: object
) -> RankedDocument:
    values = {"id": "f1", "title": "Ferry", "metadata": {}, "provenance": (Provenance("timetable", 2),), **fields}
    return RankedDocument(text=text, score=score, rank=rank, **values)


def result_of(*documents: RankedDocument, **fields: object) -> RerankResult:
    sources = (SourceReport("timetable", True, 0.5, 0.5, 3, 2), SourceReport("forum", False, -0.125, 0.1, 4, 0))
    values = {"query": "When?", "sources": sources, "timings": {"score": 1.0, "total": 1.26}, **fields}
    return RerankResult(documents=documents, **values)


def test_everything_that_was_decided_is_shown() -> None:
    gone = Document("x")
    dropped = tuple(DroppedDocument(gone, (Provenance("forum", 1),), r) for r in ("blank", "top_n", "top_n"))
    first = ranked(0.25, provenance=(Provenance("timetable", 2), Provenance("forum", 7)))
    second = ranked(-0.5, rank=2, id="g1", title=None, text="A gull.")
    text = shown(
        result_of(
            first, second, dropped=dropped, scorer="gates", target="query", tokens={"documents": 40, "question": 2}
        )
    )
    rows = text.splitlines()
    (row,) = (r for r in rows if "Ferry (f1)" in r)
    assert row.split()[:2] == ["1", "+0.250"] and "timetable #2" in row
    assert "forum #7" in rows[rows.index(row) + 1] and "The ferry leaves at nine." in rows[rows.index(row) + 1]
    (row,) = (r for r in rows if " g1 " in r)
    assert row.split()[:2] == ["2", "-0.500"]
    assert "Question: When?" in text and HOW_TO_READ in text
    assert "positive helps" in text and "negative hurts" in text and "near zero is ignored" in text
    assert [r.split() for r in rows if r.startswith(("timetable", "forum"))] == [
        ["timetable", "chosen", "+0.500", "3", "2"],
        ["forum", "left", "out", "-0.125", "4", "0"],
    ]
    assert "Dropped: 1 blank, 2 beyond top_n" in text
    assert "42 tokens through the model (documents 40, question 2), 1.3 s" in text


def test_bars_point_to_the_side_of_the_sign_and_grow_with_the_size() -> None:
    text = shown(result_of(ranked(1.0), ranked(0.5, rank=2), ranked(0.0, rank=3), ranked(-0.5, rank=4)))
    rows = [r for r in text.splitlines() if "Ferry (f1)" in r]
    assert [r[r.index("│") - 4 : r.index("│") + 5] for r in rows] == [
        "    │████",
        "    │██  ",
        "    │    ",
        "  ██│    ",
    ]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((0.5, -0.25), ["+0.500", "-0.250"]),
        ((0.5, 0.0001, -0.0001, -0.0), ["+0.500", "0.000", "0.000", "0.000"]),
        ((0.0012, -0.00005), ["+1.2e-03", "-5.0e-05"]),
        ((0.0, 0.0), ["0.000", "0.000"]),
    ],
)
def test_scores_carry_a_sign_unless_they_round_to_zero(scores: tuple[float, ...], expected: list[str]) -> None:
    text = shown(result_of(*(ranked(s, rank=n) for n, s in enumerate(scores, start=1))))
    assert [r.split()[1] for r in text.splitlines() if "Ferry (f1)" in r] == expected


def test_C01_an_empty_ranking_is_said_to_be_empty() -> None:
    text = shown(RerankResult("When?", (), ()))
    assert "No document was ranked." in text and "Dropped: nothing" in text
    assert "utility" not in text


def test_a_draft_is_shown_because_its_loss_is_what_was_read() -> None:
    assert "Draft: At nine." in shown(result_of(ranked(), target="draft", target_text="At\nnine."))


def test_no_choice_among_sources_shows_no_gain() -> None:
    only = (SourceReport("timetable", True, None, None, 1, 1),)
    text = shown(result_of(ranked(), sources=only))
    assert ["timetable", "chosen", "-", "1", "1"] in [r.split() for r in text.splitlines()]


def test_what_each_source_contributed_is_shown_where_it_is_known() -> None:
    sources = (
        SourceReport("timetable", True, 0.5, 0.5, 3, 2, utility=1.5, share=0.75),
        SourceReport("forum", False, -0.125, 0.1, 4, 0, utility=-0.25, share=0.0),
        SourceReport("news", False, 0.0, 0.1, 4, 0),
    )
    rows = [r.split() for r in shown(result_of(ranked(), sources=sources)).splitlines()]
    assert ["source", "choice", "gain", "utility", "share", "documents", "kept"] in rows
    assert ["timetable", "chosen", "+0.500", "+1.500", "75%", "3", "2"] in rows
    assert ["forum", "left", "out", "-0.125", "-0.250", "0%", "4", "0"] in rows
    assert ["news", "left", "out", "+0.000", "-", "-", "4", "0"] in rows
    narrow = shown(result_of(ranked(), sources=sources), width=64)
    assert "75%" in narrow and "+1.500" in narrow


def test_C26_a_document_that_was_read_in_part_says_so() -> None:
    assert "Ferry (f1) read in part" in shown(result_of(ranked(truncated=True)))
    assert "read in part" not in shown(result_of(ranked()))


HOSTILE = [
    "[bold]loud[/bold]",
    "[/]",
    "[red]",
    "[link=http://example.org]here[/link]",
    ":warning:",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://example.org\x1b\\link\x1b]8;;\x1b\\",
    "\x9b31mred",
    "\x1b",
    "\x1bc",
    "bell\x07 back\x08\x08 tab\t feed\x0c",
    "first\r\nsecond\u2028third\x85fourth",
    "\u202egnp.exe\u202c \u2066x\u2069 \u200fy",
    "zero\u200bwidth\ufeff",
    "lone \ud800 surrogate",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_from_outside_are_shown_and_never_obeyed(text: str) -> None:
    """C23: what stands in a document is content, here for the terminal."""
    hostile = ranked(text=text, id=text, title=text, provenance=(Provenance(text, 1),))
    reports = (SourceReport(text, True, None, None, 1, 1),)
    output = shown(result_of(hostile, query=text, sources=reports, target="draft", target_text=text))
    assert not set(output) - {"\n"} & set(map(chr, [*range(32), *range(127, 160)]))
    assert not set(output) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u2028\u2029")
    plain = shown(result_of(ranked(text="x"), query="x"))
    assert output.count("\n") <= plain.count("\n") + 2  # one heading and one line of text more, no torn rows


def test_brackets_are_shown_as_they_were_written() -> None:
    text = shown(result_of(ranked(text="[bold]loud[/bold] and [/]", title="[i]", id="[x]")))
    assert "[bold]loud[/bold] and [/]" in text and "[i] ([x])" in text


def test_one_line_drops_whole_escape_sequences_and_keeps_words_apart() -> None:
    assert one_line("a\x1b[1;31mb\x1b]0;title\x07c\n\td") == "abc d"
    assert one_line("first\u2028second\x85third") == "first second third"
    assert one_line("\u202eabc\u202c") == "abc"
    assert one_line("👩‍👩‍👧 می‌خواهم") == "👩‍👩‍👧 می‌خواهم"
    assert one_line("") == ""


@given(st.text(), st.sampled_from([60, 80, 120]))
def test_any_text_stays_within_the_width(text: str, width: int) -> None:
    """C21: wide characters, combining marks and emoji included."""
    output = shown(result_of(ranked(text=text, title=text, id=text, provenance=(Provenance(text, 1),))), width=width)
    assert max(cell_len(row) for row in output.split("\n")) <= width
    assert "\x1b" not in output


def test_a_long_text_takes_two_lines_at_most() -> None:
    text = shown(result_of(ranked(text="word " * 10_000)), width=80)
    assert sum("word" in row for row in text.splitlines()) == 2 and "…" in text


def test_many_sources_take_three_lines_at_most() -> None:
    found = tuple(Provenance(f"s{n}", n) for n in range(1, 10))
    text = shown(result_of(ranked(provenance=found)))
    assert "s1 #1" in text and "s2 #2" in text and "and 7 more" in text and "s3 #3" not in text


def test_an_output_without_block_characters_gets_plain_ones() -> None:
    text = shown(result_of(ranked(1.0), ranked(-1.0, rank=2)), encoding="ascii")
    assert "|####" in text and "####|" in text and "?" not in text.replace("Question: When?", "")


def test_colour_is_only_for_terminals() -> None:
    assert "\x1b[" in shown(result_of(ranked()), color=True)
    assert "\x1b" not in shown(result_of(ranked()), color=False)
