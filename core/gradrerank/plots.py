"""Pictures of a result, with matplotlib (the extra ``plot``).

Every function draws on the axes that it is given, or makes a figure, and returns the axes. None shows a
figure or changes a setting of matplotlib. Blue helps and orange hurts; sources also have hatches, so that a
print without colours can be read.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradrerank.context.retrieval import rank_correlation
from gradrerank.display import unit_of
from gradrerank.documents import Document, RankedDocument, RerankResult, SourceReport
from gradrerank.errors import InvalidArgumentError, InvalidTypeError
from gradrerank.plotting import (
    BLUE,
    GREY,
    ORANGE,
    STYLES,
    diverging,
    first_drawable,
    label_ticks,
    new_axes,
    outside,
    plain,
)
from gradrerank.validation import check_choice, check_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gradrerank.gate_path import GatePath
    from gradrerank.token_map import TokenMap

_HELPS_HURTS = "utility ({}): positive helps, negative hurts"


def plot_result(result: RerankResult, kind: str, *, ax: Axes | None = None, **options: Any) -> Axes:
    """Draw a result by the name of the plot; see :meth:`gradrerank.RerankResult.plot`.

    Args:
        result: The result.
        kind: ``"documents"``, ``"sources"`` or ``"agreement"``.
        ax: Where to draw; None makes a figure.
        **options: Other arguments of the plot.

    Raises:
        InvalidArgumentError: When there is no plot of that name, the message says where the others are; or when
            ``"agreement"`` has no other result to agree with.
    """
    elsewhere = {"tokens": "reranker.explain_tokens(query, sources)", "path": "reranker.gate_path(query, sources)"}
    if kind in elsewhere:
        raise InvalidArgumentError(f"plot {kind!r} needs the model: use {elsewhere[kind]}.plot()")
    if kind == "agreement" and "other" not in options:
        raise InvalidArgumentError(
            "plot 'agreement' needs other=, another result of the same query, for instance "
            "other=reranker.rerank(query, sources, scorer='ablation')"
        )
    plots: dict[str, Callable[..., Axes]] = {
        "documents": plot_documents,
        "sources": plot_sources,
        "agreement": plot_agreement,
    }
    return plots[check_choice("kind", kind, tuple(plots))](result, ax=ax, **options)


def plot_documents(result: RerankResult, *, ax: Axes | None = None, limit: int = 40) -> Axes:
    """Bars of the utility of each ranked document, in the colour of the sources that found it.

    Args:
        result: The result.
        ax: Where to draw; None makes a figure.
        limit: Most documents; of more, the best three quarters and the last quarter of that number are drawn.

    Returns:
        The axes.
    """
    shown, gap = _both_ends(sorted(result.documents, key=lambda d: d.rank), check_count("limit", limit))
    ax = new_axes(ax, width=8.0, height=1.7 + 0.26 * max(len(shown), 2))
    found_by, styles = _styles(shown)
    places = [i + (1 if gap and i >= gap[0] else 0) for i in range(len(shown))]
    for place, document, names in zip(places, shown, found_by, strict=True):
        ax.barh(place, document.score, height=0.75, edgecolor="white", linewidth=0, **styles[names])
    labels = [f"{d.rank}  {_name(d, 44, '(no font has its script)')}" for d in shown]
    if gap:
        places, labels = [*places, gap[0]], [*labels, f"... {gap[1]} more"]
    label_ticks(ax.yaxis, places, labels, size=8.5)
    ax.set_ylim(max([1, *places]) + 0.6, -0.6)
    ax.locator_params(axis="x", nbins=7)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.use_sticky_edges = False
    ax.margins(x=0.06)
    ax.set_xlabel(_HELPS_HURTS.format(unit_of(result)) if shown else "no document was ranked")
    if not shown:
        ax.set_xticks([])
    else:
        _legend_of_styles(ax, styles, "found by")
    return _titled(ax, result.query)


def plot_sources(result: RerankResult, *, ax: Axes | None = None) -> Axes:
    """Relevance of each source, what redundancy takes off it, and the gain in f(A) that is left.

    Args:
        result: The result of a call that chose among at least two sources.
        ax: Where to draw; None makes a figure.

    Returns:
        The axes.

    Raises:
        InvalidArgumentError: When no choice was made, so there are no gains.
    """
    measured = [s for s in result.sources if s.gain is not None and s.relevance is not None]
    if not measured:
        raise InvalidArgumentError(
            "there is no gain to draw: no choice among sources was made (it needs two sources and select_sources=True)"
        )
    ax = new_axes(ax, width=8.0, height=1.9 + 0.45 * max(len(measured), 2))
    gains, relevances = ([float(getattr(s, n) or 0.0) for s in measured] for n in ("gain", "relevance"))
    places = range(len(measured))
    colors = [BLUE if s.selected else "white" for s in measured]
    ax.barh(places, gains, height=0.6, color=colors, edgecolor=BLUE)
    penalty = [r - g for r, g in zip(relevances, gains, strict=True)]
    ax.barh(places, penalty, left=gains, height=0.6, color="none", edgecolor=ORANGE, hatch="////")
    for place, gain, relevance in zip(places, gains, relevances, strict=True):
        ax.annotate(
            f"{gain:+.3f}",
            (max(gain, relevance, 0.0), place),
            (4, 0),
            textcoords="offset points",
            va="center",
            size=8.5,
        )
    label_ticks(ax.yaxis, places, [_source_label(s) for s in measured], size=9)
    ax.set_ylim(len(measured) - 0.4, -0.6)
    ax.axvline(0, color="black", linewidth=0.8)
    ax.use_sticky_edges = False
    ax.margins(x=0.2)
    ax.set_xlabel("gain in f(A) + redundancy = relevance to the question (cosine)")
    _legend_of_styles(
        ax,
        {
            "gain, chosen": {"facecolor": BLUE, "edgecolor": BLUE},
            "gain, left out": {"facecolor": "white", "edgecolor": BLUE},
            "redundancy": {"facecolor": "none", "edgecolor": ORANGE, "hatch": "////"},
        },
        None,
    )
    return _titled(ax, result.query)


def plot_agreement(result: RerankResult, other: RerankResult, *, ax: Axes | None = None) -> Axes:
    """The scores of two results of the same query against each other, one point a document.

    Args:
        result: The result whose scores go upwards, and whose ranks number the points.
        other: The result whose scores go to the right, for instance of scorer ``ablation``.
        ax: Where to draw; None makes a figure.

    Returns:
        The axes; the title says how well the orders agree (Spearman).

    Raises:
        InvalidTypeError: When other is not a result.
        InvalidArgumentError: When the queries differ, or fewer than two documents have a score in both.
    """
    if not isinstance(other, RerankResult):
        raise InvalidTypeError(f"other must be a RerankResult, got {type(other).__name__}")
    if result.query != other.query:
        raise InvalidArgumentError(f"the results are of two queries: {result.query!r} and {other.query!r}")
    ours, theirs = _scores(result), _scores(other)
    common = [key for key in ours if key in theirs]
    if len(common) < 2:
        raise InvalidArgumentError(f"other shares {len(common)} scored documents with the result; 2 are needed")
    x, y = (np.array([found[key] for key in common]) for found in (theirs, ours))
    ax = new_axes(ax, width=6.0, height=5.4)
    for line in (ax.axhline, ax.axvline):
        line(0, color=GREY, linewidth=0.8, zorder=1)
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    ax.plot([low, high], [low, high], color=GREY, linestyle="--", linewidth=1, zorder=1, label="equal scores")
    ax.scatter(x, y, s=36, color=BLUE, edgecolor="white", linewidth=0.7, zorder=3)
    _number_points(ax, x, y, result, common)
    ax.margins(0.1)
    ax.legend(frameon=False, loc="upper left", fontsize=8.5)
    plain(ax.set_xlabel(f"{_scorer(other)}: utility ({unit_of(other)})"))
    plain(ax.set_ylabel(f"{_scorer(result)}: utility ({unit_of(result)})"))
    rho = rank_correlation(x, y) if np.ptp(x) and np.ptp(y) else None
    told = "undefined, all scores of one are equal" if rho is None else f"{round(rho, 2) + 0.0:.2f}"
    return _titled(ax, result.query, f"Spearman {told}, {len(common)} documents, numbered by rank")


def plot_tokens(tokens: TokenMap, *, ax: Axes | None = None, limit: int = 20) -> Axes:
    """A heat map: which document explains which word of the target.

    Args:
        tokens: What ``reranker.explain_tokens`` returned.
        ax: Where to draw; None makes a figure.
        limit: Most documents, those with the largest utility for any token.

    Returns:
        The axes; strong cells also show their sign.

    Raises:
        InvalidArgumentError: When there is no document or no token.
    """
    if not tokens.utilities.size:
        raise InvalidArgumentError("there is nothing to draw: the map has no document or no token")
    strength = np.abs(tokens.utilities).max(0)
    columns = np.sort(np.argsort(-strength, kind="stable")[: check_count("limit", limit)])
    grid = tokens.utilities[:, columns].T
    rows, width = grid.shape
    ax = new_axes(ax, width=min(max(7.0, 4.0 + 0.36 * width), 22.0), height=2.2 + 0.28 * rows)
    largest = float(np.abs(grid).max()) or 1.0
    image = ax.imshow(grid, cmap=diverging(), vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
    for i, j in zip(*np.nonzero(np.abs(grid) >= 0.25 * largest), strict=True):
        ax.text(j, i, "+" if grid[i, j] > 0 else "\u2212", ha="center", va="center", fontsize=8, color="black")
    label_ticks(ax.xaxis, range(width), [_shown_token(t) for t in tokens.tokens], size=8, rotation=60)
    names = [_document_label(tokens, int(c)) for c in columns]
    label_ticks(ax.yaxis, range(rows), names, size=8.5)
    bar = ax.figure.colorbar(image, ax=ax, pad=0.015, aspect=30)
    bar.set_label("utility for this token (nats)", fontsize=8.5)
    bar.ax.tick_params(labelsize=8)
    left_out = len(strength) - rows
    more = f"{rows} of {len(strength)} documents, the strongest" if left_out else f"documents: {rows}"
    return _titled(ax, tokens.query, f"tokens of the {tokens.target}; {more}")


def plot_path(path: GatePath, *, ax: Axes | None = None) -> Axes:
    """The loss while all documents are faded in, and the slope at z = 1 that scorer ``gates`` reads.

    Args:
        path: What ``reranker.gate_path`` returned.
        ax: Where to draw; None makes a figure.

    Returns:
        The axes.

    Raises:
        InvalidArgumentError: When the path has no points.
    """
    if not path.losses:
        raise InvalidArgumentError("there is nothing to draw: the path has no points, since there was no document")
    ax = new_axes(ax, width=6.4, height=4.2)
    z, losses = np.array(path.points), np.array(path.losses)
    ax.plot(z, losses, color=BLUE, marker="o", markersize=4.5, label="loss, all gates at z")
    slope, span = -sum(path.utilities), float(np.ptp(losses)) or 1.0
    # As long as it stays within sight of the curve.
    reach = min(0.5, 0.5 * span / abs(slope)) if slope else 0.5
    ax.plot([1 - reach, 1], [losses[-1] - slope * reach, losses[-1]], color=ORANGE, linestyle="--", linewidth=2)
    ax.plot([], [], color=ORANGE, linestyle="--", linewidth=2, label="slope at z = 1, which scorer gates reads")
    ax.set_xlabel("z: 0 without the documents, 1 with them")
    ax.set_ylabel(f"loss of the {path.target} (nats per token)")
    ax.margins(y=0.12)
    ax.legend(frameon=False, fontsize=8.5)
    told = f"together the documents take {path.together:.3f} nats off the loss"
    if path.together < 0:
        told = f"together the documents add {-path.together:.3f} nats to the loss"
    return _titled(ax, path.query, told)


def _styles(documents: Sequence[RankedDocument]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """For each document who found it, and a style for each such name; the rarest share one."""
    found_by = [" + ".join(sorted(d.sources)) for d in documents]
    counted = Counter(found_by)
    names = sorted(counted, key=lambda name: (-counted[name], name))
    if len(names) > len(STYLES):
        rest = set(names[len(STYLES) - 1 :])
        found_by = ["others" if name in rest else name for name in found_by]
        names = [*names[: len(STYLES) - 1], "others"]
    return found_by, dict(zip(sorted(names, key=lambda n: (n == "others", n.count(" + "), n)), STYLES, strict=False))


def _both_ends(documents: Sequence[RankedDocument], limit: int) -> tuple[list[RankedDocument], tuple[int, int] | None]:
    """The documents that are drawn, and where a gap of how many stands."""
    if len(documents) <= limit:
        return list(documents), None
    last = limit // 4
    first = limit - last
    return [*documents[:first], *documents[len(documents) - last :]], (first, len(documents) - limit)


def _name(document: RankedDocument | Document, length: int, default: str) -> str:
    """What to call a document: its title, or its id and how it begins."""
    beginning = f"{document.id}: {document.text}" if document.id else document.text
    return first_drawable((document.title, beginning, document.id), length, default)


def _document_label(tokens: TokenMap, column: int) -> str:
    name = _name(tokens.documents[column], 40, f"document {column + 1}")
    if len(set(tokens.sources)) == 1:
        return name
    return f"{name}  ({outside(', '.join(tokens.sources[column]), 24)})"


def _shown_token(token: str) -> str:
    """A token with its white space visible, since a leading space is part of it."""
    return outside("".join("\u00b7" if c == " " else "\u21b5" if c == "\n" else c for c in token), 16)


def _source_label(source: SourceReport) -> str:
    told = f"{source.n_documents} documents, {source.n_kept} kept"
    utility = getattr(source, "utility", None)
    if isinstance(utility, (int, float)):
        told += f", utility {utility:+.2f}"
    return f"{outside(source.name, 30)}\n{told}"


def _scorer(result: RerankResult) -> str:
    return "leave-one-out" if result.scorer == "ablation" else outside(result.scorer, 30) or "scores"


def _scores(result: RerankResult) -> dict[tuple[str, str], float]:
    """Every score of a result by what a document is: its title and its text (see the pool)."""
    scores = {(d.title or "", d.text.strip()): d.score for d in result.documents}
    for d in result.dropped:
        if d.score is not None:
            scores.setdefault((d.document.title or "", d.document.text.strip()), d.score)
    return scores


def _number_points(
    ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64], result: RerankResult, keys: Sequence[tuple[str, str]]
) -> None:
    """Ranks beside the points, of many only those that stand out, so that they do not cover each other."""
    ranks = {(d.title or "", d.text.strip()): d.rank for d in result.documents}
    spread = np.hypot(x / (np.ptp(x) or 1.0), y / (np.ptp(y) or 1.0))
    free: list[tuple[float, float]] = []
    for i in np.argsort(-spread, kind="stable"):
        place = (x[i] / (np.ptp(x) or 1.0), y[i] / (np.ptp(y) or 1.0))
        if keys[i] not in ranks or any(abs(place[0] - a) < 0.045 and abs(place[1] - b) < 0.045 for a, b in free):
            continue
        free.append(place)
        ax.annotate(str(ranks[keys[i]]), (x[i], y[i]), xytext=(5, 4), textcoords="offset points", fontsize=8, zorder=4)


def _legend_of_styles(ax: Axes, styles: dict[str, dict[str, Any]], title: str | None) -> None:
    """A legend beside the plot, where no bar is."""
    from matplotlib.patches import Patch

    # Names are put in afterwards: a legend leaves out what begins with an underscore.
    legend = ax.legend(
        [Patch(**{"edgecolor": "white", "linewidth": 0.8, **style}) for style in styles.values()],
        [str(i) for i in range(len(styles))],
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        borderaxespad=0,
        frameon=False,
        fontsize=8.5,
        title_fontsize=8.5,
    )
    for text, name in zip(legend.get_texts(), styles, strict=True):
        text.set_text(outside(name, 32))
        plain(text)


def _titled(ax: Axes, query: str, more: str = "") -> Axes:
    """The query over the plot, on as many lines as it takes, and what else there is to say below it."""
    ax.figure.canvas.figure.draw_without_rendering()  # only then the labels have their place and the axes their width
    width = max(24, int(ax.get_window_extent().width / ax.figure.dpi * 14))
    lines = textwrap.wrap(outside(query, 3 * width), width) + (textwrap.wrap(more, width) if more else [])
    plain(ax.set_title("\n".join(lines), fontsize=10, loc="left"))
    return ax
