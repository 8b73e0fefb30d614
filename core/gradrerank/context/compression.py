"""Which sentences of a document are kept when documents are compressed."""

from __future__ import annotations

from collections.abc import Sequence

from gradrerank.documents import Document, RenderedDocument, SpanUtility

Range = tuple[int, int]


def helpful_ranges(document: Document, spans: Sequence[SpanUtility]) -> tuple[Range, ...]:
    """The characters of a document that help, sentence by sentence.

    A sentence is kept when its utility is positive; where none is, the best one is kept, so that no
    document comes out empty. What the model did not read (beyond ``max_document_tokens``) has no utility
    and is left out. Neighbouring sentences become one range, and ranges neither begin nor end in white
    space.

    Args:
        document: The document; of one that a framework rendered only the caller's own text is cut.
        spans: Utilities of its sentences, in order.

    Returns:
        Ranges ``(start, end)`` of the document's text, in order and apart; none where nothing is left
        out, or where there is nothing to go by.

    Example:
        >>> spans = [SpanUtility(0, 5, 0.1), SpanUtility(5, 10, -0.2), SpanUtility(10, 14, 0.3)]
        >>> helpful_ranges(Document("One. Two! Six!"), spans)
        ((0, 4), (10, 14))
    """
    start, end = document.own if isinstance(document, RenderedDocument) else (0, len(document.text))
    own = [SpanUtility(max(s.start, start), min(s.end, end), s.score) for s in spans]
    readable = [s for s in own if document.text[s.start : s.end].strip()]
    helpful = [s for s in readable if s.score > 0] or sorted(readable, key=lambda s: -s.score)[:1]
    joined: list[Range] = []
    for span in helpful:
        if joined and not document.text[joined[-1][1] : span.start].strip():
            joined[-1] = (joined[-1][0], span.end)
        else:
            joined.append((span.start, span.end))
    ranges = tuple(_trimmed(document.text, *each) for each in joined)
    return () if ranges == (_trimmed(document.text, start, end),) else ranges


def _trimmed(text: str, start: int, end: int) -> Range:
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - len(piece) + len(piece.rstrip())
