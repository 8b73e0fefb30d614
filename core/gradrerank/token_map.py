"""Which document explains which word: tokens of the target by documents.

The arithmetic is in :mod:`gradrerank.scorers.token_utilities`; here it gets names that a person can read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradrerank.documents import Document
from gradrerank.scorers.token_utilities import token_utilities

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

    from gradrerank.call import Call
    from gradrerank.lm.generator import Generator


@dataclass(frozen=True, slots=True, eq=False)
class TokenMap:
    """The utility of every document for every token.

    Args:
        query: The query.
        target: Kind of target: ``"query"``, ``"draft"`` or ``"reference"``.
        tokens: The T tokens of the target as text. The tokens of one character all show that character.
        utilities: An array of shape [T, n], in nats of a token's loss; positive helps. Its mean over tokens
            is the documents' utility by the scorer ``gates``.
        documents: The n documents in retrieval order, as the caller passed them.
        sources: For each document the names of the sources that found it.
    """

    query: str
    target: str
    tokens: tuple[str, ...]
    utilities: NDArray[np.float64]
    documents: tuple[Document, ...]
    sources: tuple[tuple[str, ...], ...]

    def plot(self, *, ax: Axes | None = None, limit: int = 20) -> Axes:
        """Draw a heat map, a row for each document (needs matplotlib, the extra ``plot``).

        Args:
            ax: Where to draw; None makes a figure.
            limit: Most documents, those with the largest utility for any token.
        """
        from gradrerank.plots import plot_tokens

        return plot_tokens(self, ax=ax, limit=limit)

    def to_pandas(self) -> pandas.DataFrame:
        """A table with a row for each token and a column for each document, by its place from 0 (needs pandas).

        Raises:
            ImportError: When pandas is not installed.
        """
        import pandas

        return pandas.DataFrame(self.utilities, index=list(self.tokens))

    def to_dict(self) -> dict[str, Any]:
        """Plain strings, numbers and lists; documents by their ids."""
        return {
            "query": self.query,
            "target": self.target,
            "tokens": list(self.tokens),
            "utilities": self.utilities.tolist(),
            "documents": [d.id for d in self.documents],
            "sources": [list(names) for names in self.sources],
        }


def token_map(call: Call, generator: Generator) -> TokenMap:
    """Read the utilities of a call's documents for each token of its target.

    Args:
        call: A call with its documents and its target.
        generator: The model.

    Returns:
        The map; without documents, one of shape [0, 0].
    """
    if not call.documents:
        return TokenMap(call.query, "", (), np.zeros((0, 0)), (), ())
    job = call.job(generator)
    read = f" {call.goal.text}" if call.goal.kind == "query" else generator.layout.spoken(call.goal.text)
    (encoding,) = generator.tokenizer.content([read])
    return TokenMap(
        query=call.query,
        target=call.goal.kind,
        tokens=tuple(read[start:end] for start, end in encoding.offsets),
        utilities=token_utilities(job),
        documents=tuple(c.document for c in call.pool.candidates),
        sources=tuple(c.sources for c in call.pool.candidates),
    )
