"""A result as tables for a terminal. Nothing is ranked or decided here.

Texts, titles, ids and names of sources come from outside, so none of them reaches the terminal as it is:
escape sequences, control characters and marks that turn the direction of writing are taken out, and
square brackets are shown as brackets, never read as markup.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import get_args

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gradrerank.documents import DropReason, RankedDocument, RerankResult

HOW_TO_READ = "Utility: positive helps the model, negative hurts it, near zero is ignored."

# Control sequences of ECMA-48: "ESC [ ... letter", and the strings that ESC ], P, X, ^ or _ open.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
)
# The two format characters that shape the letters around them, as in emoji and in Persian.
_JOINERS = "\u200c\u200d"
_SNIPPET = 400
_SIDE = 4
# What each reason is called; one that is not here is called by its name.
DROPPED: dict[str, str] = {
    "blank": "blank",
    "docs_per_source": "beyond docs_per_source",
    "source_not_selected": "only in sources left out",
    "max_candidates": "never read, beyond max_candidates",
    "min_score": "below min_score",
    "top_n": "beyond top_n",
    "per_source": "beyond per_source",
    "token_budget": "beyond token_budget",  # nosec B105 # a number of tokens, no password
    "selection": "not wanted by the selection",
}


def render_result(result: RerankResult) -> RenderableType:
    """A ranking as rich renderables: the query, the documents, the sources, what was dropped, the cost.

    Args:
        result: What :meth:`~gradrerank.reranker.GradReranker.rerank` returned.

    Returns:
        Something that a ``rich.console.Console`` prints; it fits any width from about 60 columns.

    Example:
        >>> Console(width=80).print(render_result(RerankResult("When does the ferry leave?", (), ())))
        Question: When does the ferry leave?
        <BLANKLINE>
        No document was ranked.
        Dropped: nothing
    """
    parts: list[RenderableType] = [_heading("Question", result.query)]
    if result.target in ("draft", "reference"):
        parts.append(_heading(result.target.capitalize(), result.target_text))
    parts.append(Text())
    parts += [_documents(result), Text(how_to_read(result))] if result.documents else [Text("No document was ranked.")]
    if result.sources:
        parts += [Text(), _sources(result)]
    parts.append(Text(f"Dropped: {dropped_summary(result)}"))
    if "total" in result.timings:
        parts.append(Text(_cost(result)))
    return Group(*parts)


def one_line(text: str) -> str:
    r"""A text from outside as one harmless line.

    Args:
        text: Any string.

    Returns:
        The text without escape sequences, control characters, lone surrogates and marks of writing
        direction, with every run of white space as one space.

    Example:
        >>> one_line("red \x1b[31malert\x1b[0m\r\nnext\u202e line")
        'red alert next line'
    """
    kept = (c if _is_harmless(c) else " " if c.isspace() else "" for c in _ESCAPES.sub("", text))
    return " ".join("".join(kept).split())


def _is_harmless(character: str) -> bool:
    return character in _JOINERS or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _heading(label: str, text: str) -> Text:
    return Text.assemble((f"{label}: ", "bold"), one_line(text))


def _documents(result: RerankResult) -> Table:
    table = Table(box=SIMPLE_HEAD, expand=True, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("utility", justify="right", no_wrap=True)
    table.add_column("", width=2 * _SIDE + 1, no_wrap=True)
    table.add_column("document", ratio=1)
    table.add_column("found by", max_width=24, no_wrap=True, overflow="ellipsis")
    largest = max(abs(d.score) for d in result.documents)
    for d in result.documents:
        score = Text(signed(d.score, largest), style=_style(d.score))
        table.add_row(str(d.rank), score, _Bar(d.score, largest), _Passage(d), _found_by(d))
    return table


class _Passage:
    """Title and id on one line, the beginning of the text on at most two more."""

    def __init__(self, document: RankedDocument) -> None:
        title, name = one_line(document.title or ""), one_line(document.id or "")
        self.head = Text(title, style="bold")
        if name:
            self.head.append(f" ({name})" if title else name, style="cyan")
        if document.truncated:
            self.head.append(" read in part" if self.head else "read in part", style="yellow")
        self.text = one_line(document.excerpt[:_SNIPPET])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Fit it into the width of the cell."""
        more = "..." if options.ascii_only else "…"
        if self.head:
            yield Text.assemble(self.head, no_wrap=True, overflow="ellipsis")
        lines = [line.plain.rstrip() for line in Text(self.text).wrap(console, options.max_width)]
        if len(lines) > 2:
            lines = [lines[0], set_cell_size(lines[1], min(cell_len(lines[1]), options.max_width - len(more))) + more]
        yield Text("\n".join(lines))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """It takes what it gets."""
        return Measurement(min(16, options.max_width), options.max_width)


def _found_by(document: RankedDocument) -> Text:
    """One line for each source, with the rank that it gave; no taller than the document's cell."""
    found = [f"{one_line(name)} #{p.rank}" for name, p in document.sources.items()]
    shown = found if len(found) <= 3 else [*found[:2], f"and {len(found) - 2} more"]
    return Text("\n".join(shown))


class _Bar:
    """A bar from a middle line: to the right for what helps, to the left for what hurts."""

    def __init__(self, score: float, largest: float) -> None:
        self.score = score
        self.cells = round(_SIDE * abs(score) / largest) if largest else 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """Draw it, with plain characters where the output takes no others."""
        full, middle = ("#", "|") if options.ascii_only else ("█", "│")
        left, right = (0, self.cells) if self.score > 0 else (self.cells, 0)
        yield Text(f"{full * left:>{_SIDE}}{middle}{full * right:<{_SIDE}}", style=_style(self.score), end="")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """Its width is fixed."""
        return Measurement(2 * _SIDE + 1, 2 * _SIDE + 1)


def _style(score: float) -> str:
    return "green" if score > 0 else "red" if score < 0 else ""


def signed(score: float, largest: float) -> str:
    """A utility with its sign, unless it rounds to zero; small numbers of a whole ranking keep their digits.

    Args:
        score: The utility.
        largest: The largest magnitude that stands beside it.

    Example:
        >>> signed(0.25, 1.0), signed(-0.00025, 0.001), signed(-0.0, 1.0)
        ('+0.250', '-2.5e-04', '0.000')
    """
    shown = f"{score:+.1e}" if 0 < largest < 0.01 else f"{score:+.3f}"
    return shown if float(shown) else shown[1:]


# Scorers that do not read a loss.
_UNITS = {"similarity": "cosines", "attention": "attention weights"}


def how_to_read(result: RerankResult) -> str:
    """What the sign means, with scorer and unit."""
    if not (result.scorer and result.target):
        return HOW_TO_READ
    unit = unit_of(result)
    told = f"nats of the loss of the {result.target}" if unit == "nats" else unit
    others = [f" with {name}" for name in ("encoder", "retrieval") if any(name in d.scores for d in result)]
    return f"{HOW_TO_READ}\n(Scorer {one_line(result.scorer)}{''.join(others)}; in {told}.)"


def unit_of(result: RerankResult) -> str:
    """The unit of the utilities, which is that of the first of several joined scorers."""
    return _UNITS.get(result.scorer.partition("+")[0], "nats")


def _sources(result: RerankResult) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("source", no_wrap=True, overflow="ellipsis", max_width=36)
    table.add_column("choice", no_wrap=True)
    credited = any(s.utility is not None for s in result.sources)
    for name in ("gain", *(("utility", "share") if credited else ()), "documents", "kept"):
        table.add_column(name, justify="right", no_wrap=True)
    largest = max(abs(s.utility or 0.0) for s in result.sources)
    for s in result.sources:
        choice = Text("chosen", style="green") if s.selected else Text("left out", style="red")
        cells: list[str | Text] = ["-" if s.gain is None else f"{s.gain:+.3f}"]
        if credited:
            utility = s.utility
            cells.append("-" if utility is None else Text(signed(utility, largest), style=_style(utility)))
            cells.append("-" if s.share is None else f"{s.share:.0%}")
        table.add_row(Text(one_line(s.name)), choice, *cells, str(s.n_documents), str(s.n_kept))
    return table


def dropped_summary(result: RerankResult) -> str:
    """How many documents were dropped for each reason, in the order of the pipeline."""
    counts = Counter(d.reason for d in result.dropped)
    return ", ".join(f"{counts[r]} {DROPPED.get(r, r)}" for r in get_args(DropReason) if counts[r]) or "nothing"


def _cost(result: RerankResult) -> str:
    tokens = f"{sum(result.tokens.values())} tokens through the model"
    if result.tokens:
        tokens += f" ({', '.join(f'{name} {count}' for name, count in result.tokens.items())})"
    if result.context_tokens is not None:
        tokens += f", {result.context_tokens} tokens kept"
    return f"{tokens}, {result.timings['total']:.1f} s"
