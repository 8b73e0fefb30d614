"""A small question with three small sources, written for this project, that `gradrerank demo` ranks.

The answer needs two documents from two sources: the encyclopedia knows on which island the painter was
born, the timetable (and a forum post that quotes it) knows when the ferry to that island leaves. One post
spreads a rumour about the ferry, one was deleted and is blank, and the rest is about other things.
"""

from __future__ import annotations

from gradrerank.documents import Document

QUESTION = "When does the ferry to the island where the painter Ada Morland was born leave?"

NEEDED = ("morland", "ferry-3")
"""Ids of the two documents that answer the question together."""

_FERRY = "The ferry to the island of Grey Holm leaves the north quay of Pell at 9:40. The crossing takes fifty minutes."


def demo_sources() -> dict[str, list[Document]]:
    """The three sources, best document first, as their own search might return them.

    Returns:
        Documents by source name; new objects at each call.

    Example:
        >>> {name: len(documents) for name, documents in demo_sources().items()}
        {'timetable': 3, 'encyclopedia': 3, 'forum': 4}
    """
    return {
        "timetable": [
            Document(
                "Bus 12 runs from the railway station to the market every half hour.", id="bus-12", title="Bus 12"
            ),
            Document(_FERRY, id="ferry-3", title="Island ferry"),
            Document("The night train to the capital has sleeping cars.", id="train-7", title="Night train"),
        ],
        "encyclopedia": [
            Document(
                "The puffin is a seabird. It nests in burrows on cliffs and feeds on sand eels.",
                id="puffin",
                title="Puffin",
            ),
            Document(
                "Ada Morland was a painter of seascapes. She was born on the island of Grey Holm.",
                id="morland",
                title="Ada Morland",
            ),
            Document(
                "Before petroleum, lighthouse lamps burned oil pressed from rapeseed.", id="lamp-oil", title="Lamp oil"
            ),
        ],
        "forum": [
            Document(
                "A man on the bus told me that the ferry has stopped for good, so do not bother to go to the quay.",
                id="post-17",
                title="Ferry rumour",
            ),
            Document("", id="post-19"),
            Document(_FERRY, id="post-21", title="Island ferry"),
            Document("A gull stole my sandwich on the beach. Great day anyway!", id="post-30", title="Gulls"),
        ],
    }
