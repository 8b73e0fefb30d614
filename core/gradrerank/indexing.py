"""Reading a corpus into the store, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradrerank.lm.reader import Reader


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What indexing did.

    Args:
        documents: Distinct documents that are not blank.
        read: Documents that were read by the model now; the others were in the store.
        tokens: Tokens that passed through the model.
    """

    documents: int
    read: int
    tokens: int


def index_documents(reader: Reader, documents: Sequence[Sequence[int]], *, progress: bool | None) -> IndexReport:
    """Read what the store lacks, with a progress bar.

    Args:
        reader: The reader with its store.
        documents: Token ids of distinct documents.
        progress: Whether to show the bar on stderr; None shows it on a terminal.

    Returns:
        The report.
    """
    from tqdm.auto import tqdm

    hidden = None if progress is None else not progress
    n_read = n_tokens = 0
    with tqdm(total=len(documents), desc="reading", unit="document", disable=hidden) as bar:
        for n, tokens in reader.store_missing(documents):
            bar.update(n)
            n_read, n_tokens = n_read + (n if tokens else 0), n_tokens + tokens
    return IndexReport(len(documents), n_read, n_tokens)
