"""Results as HTML for a notebook: shaded by signed utility, and harmless whatever the documents hold.

Blue helps and orange hurts, two colours that colour-blind people tell apart. For print without colours the
sign also stands in the text, and what helps is underlined, what hurts dotted. Styles are inline, since
notebooks strip style sheets and must not be changed by a result.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gradrerank.display import DROPPED, dropped_summary, how_to_read, signed
from gradrerank.documents import DroppedDocument, RankedDocument, RerankResult, SourceReport

if TYPE_CHECKING:
    from gradrerank.citing import Citation, Citations
    from gradrerank.explaining import Explanation

HELPS, HURTS = (33, 102, 172), (230, 130, 20)
# Format characters that shape the letters around them or allow a line break, and change no order.
_SHAPING = "\u00ad\u200c\u200d"
# A mark is drawn from this share of the largest utility on, its number from the second on.
_VISIBLE, _TOLD = 0.05, 0.25
_EXCERPT = 700
_DROPPED_SHOWN = 30

_BOX = (
    "max-width:100%;box-sizing:border-box;background:#fff;color:#1a1a1a;padding:6px;font:13px/1.45 sans-serif;"
    "text-align:left;overflow-wrap:anywhere;-webkit-print-color-adjust:exact;print-color-adjust:exact"
)
_TABLE = "width:100%;table-layout:fixed;border-collapse:collapse;margin:6px 0;color:#1a1a1a;background:#fff"
_CELL = (
    "padding:4px 6px;border-top:1px solid #ccc;vertical-align:top;text-align:left;white-space:normal;"
    "overflow-wrap:anywhere"
)
_HEAD = "padding:4px 6px;text-align:left;vertical-align:bottom;font-weight:bold;background:#fff"
_QUIET = "color:#555"
_NUMBER = "color:#444;user-select:none;unicode-bidi:isolate"


class Mark(NamedTuple):
    """Characters ``start`` to ``end`` of a text, shaded by a utility."""

    start: int
    end: int
    utility: float


def result_html(result: RerankResult) -> str:
    """A ranking as HTML: the query, the documents, the sources, what was dropped.

    Args:
        result: What :meth:`~gradrerank.reranker.GradReranker.rerank` returned.

    Returns:
        One ``<div>`` that fits the width it is given.
    """
    parts = [_line("Question", result.query)]
    if result.target in ("draft", "reference"):
        parts.append(_line(result.target.capitalize(), result.target_text))
    if result.documents:
        parts += [_documents(result), f'<div style="{_QUIET}">{safe(how_to_read(result))}</div>']
    else:
        parts.append("<div>No document was ranked.</div>")
    if result.sources:
        parts.append(_sources(result.sources))
    parts.append(_dropped(result))
    return _box(parts)


def explanation_html(explanation: Explanation) -> str:
    """The documents of an explanation, each with its sentences shaded."""
    marks: dict[int, list[Mark]] = {}
    for s in explanation.sentences:
        marks.setdefault(s.rank, []).append(Mark(s.start, s.end, s.utility))
    largest = max((abs(s.utility) for s in explanation.sentences), default=0.0)
    rows = [
        [str(d.rank), _names(d), _heading(d) + _passage(d.text, sorted(marks[d.rank]), largest)]
        for d in explanation.documents
        if d.rank in marks
    ]
    told = "Blue and underlined helps, orange and dotted hurts; the numbers are nats of the loss."
    table = _table(("#", "2.5em"), ("found by", "8em"), ("sentences", ""), rows=rows)
    return _box([_line("Question", explanation.query), table, f'<div style="{_QUIET}">{told}</div>'])


def citations_html(citations: Citations) -> str:
    """An answer with its marks, and the sentences that they stand for."""
    answer = f'<div style="margin:4px 0;white-space:pre-line"><b>Answer</b> {_isolated(citations.text)}</div>'
    largest = max((abs(c.utility) for c in citations.citations), default=0.0)
    rows = [
        [f"[{c.number}]", _utility(c.utility, largest), safe(", ".join(c.sources)), _cited(c)]
        for c in citations.citations
    ]
    columns = (("", "3em"), ("utility", "5.5em"), ("source", "9em"), ("sentence", ""))
    table = _table(*columns, rows=rows) if rows else "<div>No sentence supports it.</div>"
    unsupported = "".join(
        f'<div style="{_QUIET}">Without support: {_isolated(s.text)}</div>' for s in citations.unsupported
    )
    return _box([_line("Question", citations.query), answer, table, unsupported])


def safe(text: str) -> str:
    r"""A text from outside as HTML text: markup stays text, and what would be invisible is shown.

    Args:
        text: Any string.

    Returns:
        HTML in which control characters, marks that turn the direction of writing and lone surrogates
        stand as their code points, as in ``[U+202E]``.

    Example:
        >>> safe("<b>\u202e & co")
        '&lt;b&gt;[U+202E] &amp; co'
    """
    if text.isprintable():
        return html.escape(text)
    return html.escape("".join(c if _is_plain(c) else f"[U+{ord(c):04X}]" for c in text))


def marked(text: str, marks: Sequence[Mark], largest: float) -> str:
    """A text with shaded pieces.

    Args:
        text: Any string.
        marks: Pieces in order, without overlap.
        largest: The utility that is shaded most.

    Returns:
        HTML of the whole text.
    """
    parts, last = [], 0
    for mark in marks:
        parts += [safe(text[last : mark.start]), _shaded(text[mark.start : mark.end], mark.utility, largest)]
        last = mark.end
    return "".join([*parts, safe(text[last:])])


def shade(utility: float, largest: float) -> str:
    """CSS of a background for a utility: blue helps, orange hurts, stronger for more."""
    if not largest or not utility:
        return "background:transparent"
    red, green, blue = HELPS if utility > 0 else HURTS
    return f"background:rgba({red},{green},{blue},{0.06 + 0.44 * min(1.0, abs(utility) / largest):.2f})"


def _is_plain(character: str) -> bool:
    if character in "\n\t" or character in _SHAPING:
        return True
    return unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _isolated(content: str) -> str:
    """A text from outside whose direction of writing does not spread to its surroundings."""
    return f"<bdi>{safe(content)}</bdi>"


def _box(parts: Iterable[str]) -> str:
    return f'<div class="gradrerank" style="{_BOX}">{"".join(parts)}</div>'


def _line(label: str, text: str) -> str:
    return f'<div style="margin:2px 0"><b>{label}</b> {_isolated(text)}</div>'


def _table(*columns: tuple[str, str], rows: Iterable[Sequence[str]]) -> str:
    """A table of ready cells; a column is its heading and its width, or an empty width for the rest."""
    widths = "".join(f'<col style="width:{width}">' if width else "<col>" for _, width in columns)
    heads = "".join(f'<th style="{_HEAD}">{name}</th>' for name, _ in columns)
    body = "".join(f'<tr style="background:#fff">{"".join(map(_cell, row))}</tr>' for row in rows)
    return (
        f'<table style="{_TABLE}"><colgroup>{widths}</colgroup>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    )


def _cell(content: str) -> str:
    return content if content.startswith("<td") else f'<td style="{_CELL}">{content}</td>'


def _utility(utility: float | None, largest: float) -> str:
    if utility is None:
        return "-"
    return f'<td style="{_CELL};{shade(utility, largest)}">{signed(utility, largest)}</td>'


def _documents(result: RerankResult) -> str:
    largest = max(abs(d.score) for d in result.documents)
    inside = max((abs(s.score) for d in result.documents for s in d.spans), default=0.0)
    rows = [
        [
            str(d.rank),
            _utility(d.score, largest),
            _names(d),
            _heading(d) + _passage(d.text, [Mark(s.start, s.end, s.score) for s in d.spans], inside),
        ]
        for d in result.documents
    ]
    return _table(("#", "2.5em"), ("utility", "5.5em"), ("rank before", "8em"), ("document", ""), rows=rows)


def _names(document: RankedDocument) -> str:
    """One line for each source with the rank that it gave."""
    return "<br>".join(f"{_isolated(name)} #{p.rank}" for name, p in document.sources.items())


def _heading(document: RankedDocument) -> str:
    parts = []
    if document.title:
        parts.append(f"<b>{_isolated(document.title)}</b>")
    if document.id:
        parts.append(f'<span style="{_QUIET}">{_isolated(document.id)}</span>')
    if document.truncated:
        parts.append(f"<i>read to character {document.kept[1]} of {len(document.text)}</i>")
    if getattr(document, "excerpts", ()):
        parts.append(f"<i>excerpts kept: {len(document.excerpts)}</i>")
    return f"<div>{' '.join(parts)}</div>" if parts else ""


def _passage(text: str, marks: Sequence[Mark], largest: float) -> str:
    """A text with shaded pieces; what is long can be opened."""
    style = 'style="white-space:pre-line"'
    if len(text) <= _EXCERPT * 1.2:
        return f'<div dir="auto" {style}>{marked(text, marks, largest)}</div>'
    cut = next((m.end for m in marks if _EXCERPT * 0.6 < m.end <= _EXCERPT), _EXCERPT)
    first = marked(text[:cut], [m._replace(end=min(m.end, cut)) for m in marks if m.start < cut], largest)
    moved = [Mark(max(m.start, cut) - cut, m.end - cut, m.utility) for m in marks if m.end > cut]
    rest = marked(text[cut:], moved, largest)
    return (
        f'<div dir="auto" {style}>{first}</div><details><summary style="{_QUIET}">{len(text) - cut} more characters'
        f'</summary><div dir="auto" {style}>{rest}</div></details>'
    )


def _shaded(text: str, utility: float, largest: float) -> str:
    """A piece of text on its colour, the white space at its edges outside."""
    core = text.strip()
    share = abs(utility) / largest if largest else 0.0
    if not core or share < _VISIBLE:
        return safe(text)
    at = text.index(core)
    line = f"solid rgb{HELPS}" if utility > 0 else f"dotted rgb{HURTS}"
    number = f'<small dir="ltr" style="{_NUMBER}">&nbsp;{signed(utility, largest)}</small>'
    return (
        f'{safe(text[:at])}<span title="{signed(utility, largest)}" style="{shade(utility, largest)};'
        f'border-bottom:2px {line}">{safe(core)}</span>{number if share >= _TOLD else ""}{safe(text[at + len(core) :])}'
    )


def _sources(sources: Sequence[SourceReport]) -> str:
    """The sources, with what was measured of them and nothing else."""
    measured = [n for n in ("gain", "relevance", "utility", "share", "agreement") if _any(sources, n)]
    utilities = [getattr(s, "utility", None) or 0.0 for s in sources]
    largest = max(map(abs, utilities))
    rows = []
    for s in sources:
        row = [_isolated(s.name), "chosen" if s.selected else "left out"]
        row += [_measure(name, getattr(s, name, None), largest) for name in measured]
        rows.append([*row, str(s.n_documents), str(s.n_kept)])
    widths = {
        "choice": "5em",
        "gain": "5em",
        "relevance": "6.5em",
        "share": "5em",
        "agreement": "8em",
        "utility": "5.5em",
        "kept": "4em",
    }
    names = ["choice", *measured, "documents", "kept"]
    columns = [("source", ""), *((name, widths.get(name, "7.5em")) for name in names)]
    return _table(*columns, rows=rows)


def _any(sources: Sequence[SourceReport], name: str) -> bool:
    return any(getattr(s, name, None) not in (None, {}) for s in sources)


def _measure(name: str, value: Any, largest: float) -> str:
    if name == "agreement":
        return "<br>".join(f"{_isolated(other)} {cosine:+.2f}" for other, cosine in (value or {}).items())
    if value is None:
        return "-"
    if name == "utility":
        return _utility(value, largest)
    return f"{value:.0%}" if name == "share" else f"{value:+.3f}"


def _dropped(result: RerankResult) -> str:
    summary = f"Dropped: {dropped_summary(result)}"
    if not result.dropped:
        return f"<div>{summary}</div>"
    items = [f"<li>{_dropped_item(d)}</li>" for d in result.dropped[:_DROPPED_SHOWN]]
    if len(result.dropped) > _DROPPED_SHOWN:
        items.append(f"<li>and {len(result.dropped) - _DROPPED_SHOWN} more</li>")
    return f'<details><summary>{summary}</summary><ul style="margin:2px 0">{"".join(items)}</ul></details>'


def _dropped_item(dropped: DroppedDocument) -> str:
    document = dropped.document
    name = document.title or document.id or document.text.strip()[:60] or "(blank)"
    found = _isolated(", ".join(dict.fromkeys(p.source for p in dropped.provenance)))
    reason = DROPPED.get(dropped.reason, dropped.reason)
    return f'{_isolated(name)} <span style="{_QUIET}">({found}): {reason}</span>'


def _cited(citation: Citation) -> str:
    head = f"<b>{_isolated(citation.title)}</b> " if citation.title else ""
    name = f"{_isolated(citation.id)}, " if citation.id else ""
    where = f'<span style="{_QUIET}">({name}characters {citation.start} to {citation.end})</span>'
    return f"{head}{where}<div>{_isolated(citation.text)}</div>"
