"""Loads that take no time should not draw a progress bar; downloads keep theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def quiet_if_local(place: str | Path) -> Iterator[None]:
    """Hide the progress bars of transformers inside the block, where ``place`` is a folder.

    The setting is one for the whole process; it is put back afterwards.
    """
    from transformers.utils import logging

    hide = Path(place).is_dir() and logging.is_progress_bar_enabled()
    if hide:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        if hide:
            logging.enable_progress_bar()
