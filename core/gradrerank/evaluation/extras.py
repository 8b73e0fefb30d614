"""Libraries that only evaluation needs, loaded when they are first used."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str) -> Any:
    """Import a module of the extra ``evaluation``.

    Args:
        module: Its name, for instance ``"scipy.stats"``.

    Returns:
        The module.

    Raises:
        ImportError: When it is not installed; the message names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"evaluation needs {module.partition('.')[0]!r} ({error}); install it with: "
            "pip install 'gradrerank[evaluation]'"
        ) from error
