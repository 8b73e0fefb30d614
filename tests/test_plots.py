"""Plots: what they show is what the result says, and they leave matplotlib as it was."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")

from matplotlib import pyplot  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402

from gradrerank.documents import (  # noqa: E402
    Document,
    DroppedDocument,
    Provenance,
    RankedDocument,
    RerankResult,
    SourceReport,
)
from gradrerank.errors import InvalidArgumentError, InvalidTypeError  # noqa: E402
from gradrerank.gate_path import GatePath  # noqa: E402
from gradrerank.plots import plot_agreement, plot_documents, plot_path, plot_sources, plot_tokens  # noqa: E402
from gradrerank.plotting import _lost, plain, short  # noqa: E402
from gradrerank.token_map import TokenMap  # noqa: E402

SOURCES = ("wiki", "_web", "新闻")


def ranked(rank: int, score: float, *names: str, title: str | None = None, text: str = "A text.") -> RankedDocument:
    found = tuple(Provenance(name, rank) for name in names or ("wiki",))
    return RankedDocument(f"{text} {rank}", f"d{rank}", title, {}, score, rank, found)


def result_of(n: int, **fields: Any) -> RerankResult:
    documents = tuple(ranked(i + 1, 0.5 - i / n, *SOURCES[: 1 + i % 3], title=f"Title {i}") for i in range(n))
    sources = (
        SourceReport("wiki", True, 0.5, 0.5, n, n),
        SourceReport("_web", True, 0.2, 0.4, n, n),
        SourceReport("新闻", False, -0.1, 0.3, n, 0),
    )
    return RerankResult("When does it leave?", documents, sources, scorer="gates", **fields)


def token_map(n: int = 3) -> TokenMap:
    grid = np.zeros((2, n))
    grid[0, 0], grid[1, -1], grid[1, 0] = 1.0, -0.5, 0.1
    documents = tuple(Document(f"Text {i}", title=f"Title {i}") for i in range(n))
    return TokenMap("q", "query", (" ferry", "\n"), grid, documents, (("wiki",), *[("web",)] * (n - 1)))


PATH = GatePath("q", "query", (0.0, 0.25, 1.0), (3.0, 2.0, 2.2), (0.1, -0.3))
ALL = {
    "documents": lambda ax=None: result_of(6).plot(ax=ax),
    "sources": lambda ax=None: result_of(6).plot("sources", ax=ax),
    "agreement": lambda ax=None: result_of(6).plot("agreement", other=result_of(6), ax=ax),
    "tokens": lambda ax=None: token_map().plot(ax=ax),
    "path": lambda ax=None: PATH.plot(ax=ax),
}


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """A font that lacks a character warns; nothing that the plots draw may."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    pyplot.close("all")


def labels(ax: Axes) -> list[str]:
    return [tick.get_text() for tick in ax.get_yticklabels()]


def widths(ax: Axes) -> list[float]:
    return [float(bar.get_width()) for bar in ax.patches]


@pytest.mark.parametrize("kind", ALL)
def test_a_plot_draws_on_the_axes_it_is_given_and_changes_no_setting(kind: str) -> None:
    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend()
    colormaps = set(matplotlib.colormaps)
    _, (left, right) = pyplot.subplots(1, 2, layout="constrained", figsize=(12, 4))
    assert ALL[kind](left) is left
    left.figure.canvas.draw()
    assert not right.has_data()
    assert dict(matplotlib.rcParams) == before and matplotlib.get_backend() == backend
    assert set(matplotlib.colormaps) == colormaps
    assert len(pyplot.get_fignums()) == 1


@pytest.mark.parametrize("kind", ALL)
def test_no_text_of_a_new_figure_is_cut_at_its_edge(kind: str) -> None:
    ax = ALL[kind]()
    ax.figure.canvas.draw()
    width, height = ax.figure.canvas.get_width_height()
    (left, right), (bottom, top) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
    shown = [t for t in ax.get_xticklabels() if left <= t.get_position()[0] <= right]
    shown += [t for t in ax.get_yticklabels() if bottom <= t.get_position()[1] <= top]
    for text in [ax.title, ax._left_title, ax.xaxis.label, ax.yaxis.label, *shown]:
        if text.get_text():
            box = text.get_window_extent()
            assert box.x0 >= -1 and box.x1 <= width + 1 and box.y0 >= -1 and box.y1 <= height + 1, text


def test_bars_are_the_scores_in_the_order_of_rank() -> None:
    result = result_of(4)
    shuffled = RerankResult(result.query, result.documents[::-1], ())
    for shown in (result, shuffled):
        ax = plot_documents(shown)
        assert widths(ax) == pytest.approx([d.score for d in result])
        assert labels(ax) == [f"{i + 1}  Title {i}" for i in range(4)]
        legend = [text.get_text() for text in ax.get_legend().get_texts()]
        assert legend[0] == "wiki" and len(legend) == 3 and "_web" in legend[1]


def test_of_many_documents_both_ends_are_drawn_and_the_gap_is_told() -> None:
    ax = plot_documents(result_of(60), limit=8)
    assert [label.split()[0] for label in labels(ax)] == ["1", "2", "3", "4", "5", "6", "59", "60", "..."]
    assert labels(ax)[-1] == "... 52 more"
    with pytest.raises(InvalidArgumentError, match="limit"):
        plot_documents(result_of(3), limit=0)


def test_more_combinations_of_sources_than_colours_share_the_last() -> None:
    documents = tuple(ranked(i + 1, 1.0, f"source {i}") for i in range(12))
    ax = plot_documents(RerankResult("q", documents, ()))
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert len(legend) == 8 and legend[-1] == "others"
    assert len(ax.patches) == 12


@pytest.mark.parametrize("n", [0, 1])
def test_few_documents_can_be_drawn(n: int) -> None:
    ax = plot_documents(result_of(n) if n else RerankResult("q", (), ()))
    ax.figure.canvas.draw()
    assert len(ax.patches) == n
    assert (ax.get_xlabel() == "no document was ranked") == (n == 0)


def test_gain_and_redundancy_add_up_to_relevance() -> None:
    ax = plot_sources(result_of(3))
    gains, penalties = widths(ax)[:3], widths(ax)[3:]
    assert gains == pytest.approx([0.5, 0.2, -0.1]) and penalties == pytest.approx([0.0, 0.2, 0.4])
    assert [text.get_text() for text in ax.texts] == ["+0.500", "+0.200", "-0.100"]
    plain_source = SourceReport("wiki", True, None, None, 3, 1)
    with pytest.raises(InvalidArgumentError, match="no choice among sources was made"):
        plot_sources(RerankResult("q", (), (plain_source,)))


def test_agreement_without_another_result_says_what_it_needs() -> None:
    with pytest.raises(InvalidArgumentError, match="needs other="):
        result_of(3).plot("agreement")


def test_agreement_matches_documents_and_tells_their_correlation() -> None:
    result = result_of(5)
    dropped = DroppedDocument(Document("A text. 5", title="Title 4"), (Provenance("wiki", 1),), "top_n", -0.9)
    turned = tuple(RankedDocument(d.text, d.id, d.title, {}, -d.score, d.rank, d.provenance) for d in result[:4])
    other = RerankResult(result.query, turned, (), (dropped,), scorer="ablation")
    ax = plot_agreement(result, other)
    points = ax.collections[0].get_offsets()
    assert [list(p) for p in points] == [
        [x, d.score] for d, x in zip(result, [d.score for d in turned] + [-0.9], strict=True)
    ]
    assert "Spearman 0.00, 5 documents" in ax.get_title(loc="left")
    assert ax.get_xlabel().startswith("leave-one-out") and ax.get_ylabel().startswith("gates")
    assert "undefined" in plot_agreement(
        result, RerankResult(result.query, tuple(ranked(d.rank, 0.1, title=d.title) for d in result), ())
    ).get_title(loc="left")


def test_what_cannot_be_compared_is_refused() -> None:
    result = result_of(3)
    with pytest.raises(InvalidTypeError, match="other must be a RerankResult, got list"):
        plot_agreement(result, [])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="two queries"):
        plot_agreement(result, RerankResult("Another?", (), ()))
    with pytest.raises(InvalidArgumentError, match="shares 0 scored documents"):
        plot_agreement(result, RerankResult(result.query, (), ()))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("document", "did you mean 'documents'"),
        ("tokens", r"reranker\.explain_tokens\(query, sources\)\.plot"),
        ("path", r"reranker\.gate_path\(query, sources\)\.plot"),
    ],
)
def test_a_plot_of_another_name_says_where_it_is(kind: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        result_of(2).plot(kind)


def test_the_heat_map_has_a_row_a_document_and_marks_strong_cells() -> None:
    ax = plot_tokens(token_map())
    assert ax.images[0].get_array().tolist() == token_map().utilities.T.tolist()
    assert labels(ax) == ["Title 0  (wiki)", "Title 1  (web)", "Title 2  (web)"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["\u00b7ferry", "\u21b5"]
    assert [(t.get_position(), t.get_text()) for t in ax.texts] == [((0, 0), "+"), ((1, 2), "\u2212")]
    low, high = ax.images[0].get_clim()
    assert low == -high == -1.0
    strongest = plot_tokens(token_map(9), limit=2)
    assert labels(strongest) == ["Title 0  (wiki)", "Title 8  (web)"]
    assert "2 of 9 documents" in strongest.get_title(loc="left")
    with pytest.raises(InvalidArgumentError, match="nothing to draw"):
        plot_tokens(TokenMap("q", "", (), np.zeros((0, 0)), (), ()))


def test_the_path_shows_losses_and_the_slope_at_its_end() -> None:
    ax = plot_path(PATH)
    curve, slope = ax.lines[:2]
    assert list(curve.get_xdata()) == list(PATH.points) and list(curve.get_ydata()) == list(PATH.losses)
    (x0, x1), (y0, y1) = slope.get_xdata(), slope.get_ydata()
    assert (x1, y1) == (1, 2.2) and (y1 - y0) / (x1 - x0) == pytest.approx(0.2)
    assert "take 0.800 nats off" in ax.get_title(loc="left")
    worse = plot_path(GatePath("q", "query", (0.0, 1.0), (1.0, 1.5), (0.0,)))
    assert "add 0.500 nats to" in worse.get_title(loc="left")
    with pytest.raises(InvalidArgumentError, match="nothing to draw"):
        plot_path(GatePath("q", "", (), (), ()))


@pytest.mark.parametrize(
    "title",
    [
        "costs $5 and $6",
        "渡轮时刻表",
        "\x1b[31mred\x00 \u202ertl",
        "👩\u200d👧 x",
        "ቋንቋ",
        "_private",
        "long " * 60,
        "a\nb",
    ],
)
def test_any_title_is_drawn_without_formula_warning_or_overflow(title: str) -> None:
    documents = (ranked(1, 0.5, title=title), ranked(2, -0.5, title, title=title, text=title))
    for ax in (
        plot_documents(RerankResult(title, documents, ())),
        plot_sources(RerankResult(title, (), (SourceReport(title, True, 0.1, 0.2, 1, 1),))),
    ):
        ax.figure.canvas.draw()
        assert all(0 < len(line) <= 60 for label in labels(ax) for line in label.splitlines())
        box = ax.get_legend().get_window_extent()
        assert box.x1 <= ax.figure.canvas.get_width_height()[0] + 1


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("\U0001f6a2 Ferry to \U0001f3dd\ufe0f Storholm", "Ferry to Storholm"),
        ("\U00012000\U00012001 timetable", "timetable"),
        ("\U00012000\U00012001\U00012002 no", "d1: A text. 1"),
        ("\U0001f6a2\U0001f6a2", "d1: A text. 1"),
    ],
)
def test_a_title_keeps_the_words_that_can_be_drawn(title: str, shown: str) -> None:
    """Cuneiform and emoji stand for what no font has: fonts of emoji are not used."""
    pytest.importorskip("matplotlib")
    if not {"\U0001f6a2", "\U00012000"} <= _lost("\U0001f6a2\U00012000"):
        pytest.skip("a font of this machine has them")
    drawn = plot_documents(RerankResult("\U0001f6a2 When?", (ranked(1, 0.5, title=title),), ()))
    assert [label.get_text() for label in drawn.get_yticklabels()] == [f"1  {shown}"]
    assert "When?" in drawn.get_title(loc="left")


def test_dollars_stay_dollars() -> None:
    text = plain(pyplot.figure().text(0, 0, "from $5 to $6"))
    assert text.get_text() == "from $5 to $6" and not text.get_parse_math()
    assert short("abc", 3) == "abc" and short("abcd", 3) == "ab…"


def test_matplotlib_is_imported_only_for_a_plot() -> None:
    code = (
        "import sys, gradrerank.reranker, gradrerank.plots, gradrerank.notebook; sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
