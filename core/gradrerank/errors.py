"""Every error and warning that the library raises on purpose.

Each error is also the built-in kind that a caller would expect (``ValueError``, ``TypeError``,
``RuntimeError``), so ``except ValueError`` keeps working.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class GradRerankError(Exception):
    """Base class of all errors that gradrerank raises on purpose."""


class InvalidArgumentError(GradRerankError, ValueError):
    """An argument has the right type and an impossible value, or does not go with another one."""


class InvalidTypeError(GradRerankError, TypeError):
    """An argument, a document or a source has the wrong type."""


class ContextOverflowError(GradRerankError, ValueError):
    """A text, or all of them together, does not fit the model's context or the memory."""


class UnsupportedModelError(GradRerankError, ValueError):
    """The model or its tokenizer cannot be used, with the reason and what to do instead."""


class ModelLoadError(GradRerankError, RuntimeError):
    """A model could not be found or loaded."""


class ScoringError(GradRerankError, RuntimeError):
    """A scorer, a writer of drafts, an encoder or a counter of tokens gave something that cannot be used."""


class AllSourcesFailedError(GradRerankError, RuntimeError):
    """Every source failed, so an empty answer would look like "no match".

    Args:
        causes: For each source name the exception that it raised.

    Example:
        >>> str(AllSourcesFailedError({"crm": ConnectionError("down")}))
        "all 1 sources failed: 'crm': ConnectionError: down"
    """

    def __init__(self, causes: Mapping[str, BaseException]) -> None:
        self.causes = dict(causes)
        listed = "; ".join(f"{name!r}: {type(e).__name__}: {e}" for name, e in self.causes.items())
        super().__init__(f"all {len(self.causes)} sources failed: {listed}")

    def __reduce__(self) -> tuple[type[AllSourcesFailedError], tuple[dict[str, BaseException]]]:
        """Pickle by the causes, not by the message, so that the copy holds them too."""
        return type(self), (self.causes,)


class GradRerankWarning(UserWarning):
    """Base class of all warnings that gradrerank gives."""


class TruncationWarning(GradRerankWarning):
    """The model read only part of a document."""


class SourceWarning(GradRerankWarning):
    """A source failed or ran out of time, and the others went on without it."""


class StoreWarning(GradRerankWarning):
    """A document cache could not be kept, and will have to be made again."""


class NoSignalWarning(GradRerankWarning):
    """Something that was to tell the documents apart, a scorer or a fusion, said nothing of any of them."""


class LowMemoryWarning(GradRerankWarning):
    """Memory ran out, and smaller batches did the same work in more time."""


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Let an error inside say which of several queries it is about, once.

    Args:
        name: What to call the query; empty where there is only one.
    """
    try:
        yield
    except GradRerankError as error:
        if not name or str(error).startswith(f"{name}: "):
            raise
        raise type(error)(f"{name}: {error}") from error
