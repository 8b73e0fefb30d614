"""Configurations written as text: ``gates``, ``gates:z=0.3``, ``gates+0.5*minilm``, ``native-icr``.

a,b,c                           several
default                         the package as out of the box, choosing among sources; options are fields of Settings
gates+likelihood                scorers joined as the package joins them
gates:pieces=sentence,best=2    options of the scorer, and fields of Settings such as target=draft
gates:retrieval=rrf             documents ordered and scored by a baseline first
gates+0.5*minilm                weighted sum of z-scores
likelihood+links                documents pass a part of their score to those they name
gates:layers=17..24             a range, both ends included; layers=17/23 names some
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gradrerank.errors import InvalidArgumentError
from gradrerank.evaluation.baselines import baselines, reader
from gradrerank.evaluation.configurations import Configuration, baseline, combination, library, linked
from gradrerank.evaluation.ledger import key_of
from gradrerank.evaluation.native import METHODS, native
from gradrerank.scorers import DEFAULT_SCORER, LINKS, SCORERS, Scorer, as_scorer
from gradrerank.settings import Settings
from gradrerank.sources.embedding import Encoder, SentenceEncoder
from gradrerank.validation import check_choice

if TYPE_CHECKING:
    from gradrerank.reranker import GradReranker

_DEFAULT = "default"
_WEIGHT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\*(.+)")


def split_specs(text: str) -> list[str]:
    """The configurations of a list that is separated by commas.

    A part such as ``best=2`` continues the options of the one before it.

    Args:
        text: The list.

    Raises:
        InvalidArgumentError: When an option stands before any configuration, or a part is empty.

    Example:
        >>> split_specs("gates:pieces=sentence,best=2,bm25")
        ['gates:pieces=sentence,best=2', 'bm25']
    """
    specs: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        name, _, _ = part.partition("=")
        if not part:
            raise InvalidArgumentError(f"configurations must not hold an empty part, got {text!r}")
        if "=" in part and ":" not in name:
            if not specs or ":" not in specs[-1]:
                raise InvalidArgumentError(f"the option {part!r} belongs to no configuration in {text!r}")
            specs[-1] += f",{part}"
        else:
            specs.append(part)
    return specs


def parse(
    spec: str, reranker: Callable[[], GradReranker], *, encoder: Encoder | None = None, seed: int = 0
) -> Configuration:
    """The configuration that a text describes; its name is the text.

    Args:
        spec: One configuration.
        reranker: Gives the reranker; not called for baselines.
        encoder: Sentence encoder of the baseline ``minilm``; None for the embedded one.
        seed: Seed of ``random``.

    Returns:
        The configuration.

    Raises:
        InvalidArgumentError: When there is no such configuration or option; the message names it.
    """
    parts = [part.strip() for part in spec.split("+")]
    if len(parts) > 1 and all(part in (*SCORERS, LINKS) for part in parts):
        return library(spec, reranker(), as_scorer(spec))
    if len(parts) > 1 and parts[-1] == LINKS:
        rest = parse("+".join(parts[:-1]), reranker, encoder=encoder, seed=seed)
        return linked(spec, rest, signed=False)
    matches = [_WEIGHT.fullmatch(part) for part in parts]
    weights = [float(match[1]) if match else 1.0 for match in matches]
    names = [match[2].strip() if match else part for match, part in zip(matches, parts, strict=True)]
    found = [_single(name, reranker, encoder, seed) for name in names]
    if len(found) == 1:
        return found[0]
    return combination(spec, list(zip(weights, found, strict=True)))


def known_names() -> list[str]:
    """Names of all configurations without options."""
    return [_DEFAULT, *SCORERS, *baselines(), *METHODS]


def _single(spec: str, reranker: Callable[[], GradReranker], encoder: Encoder | None, seed: int) -> Configuration:
    name, _, given = spec.partition(":")
    check_choice("configuration", name, known_names())
    options = _options(spec, given)
    dense = SentenceEncoder(device="cpu") if encoder is None else encoder
    functions = baselines(dense, seed=seed)
    if name in functions:
        if options:
            raise InvalidArgumentError(f"the baseline {name!r} has no options, got {spec!r}")
        identity = key_of("baseline", name, seed if name == "random" else repr(dense))
        return baseline(spec, functions[name], identity, reader(dense) if name in ("minilm", "rrf") else None)
    settings = {key: options.pop(key) for key in list(options) if key in Settings.names() and key != "scorer"}
    if name in METHODS:
        _check_options(spec, options, list(inspect.signature(METHODS[name]).parameters)[1:])
        return native(spec, reranker(), name, settings=settings, **options)
    if name == _DEFAULT:
        settings.setdefault("select_sources", Settings().select_sources)
    retrieval = options.pop("retrieval", None)
    if retrieval is not None:
        check_choice(f"retrieval of {spec!r}", retrieval, list(functions))
    make: Callable[..., Any] = _default_scorer if name == _DEFAULT else SCORERS[name]
    _check_options(spec, options, list(inspect.signature(make).parameters))
    ordered = None if retrieval is None else (f"{retrieval} {seed}", functions[retrieval])
    return library(spec, reranker(), make(**options), retrieval=ordered, **settings)


def _default_scorer() -> Scorer:
    return as_scorer(DEFAULT_SCORER)


def _options(spec: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in text.split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value) or key in found:
            raise InvalidArgumentError(f"options must be name=value, each once, got {part!r} in {spec!r}")
        found[key] = _value(value)
    return found


def _value(text: str) -> Any:
    """A plain value: number, yes/no, none, ``17..24``, ``17/23``, or the text itself.

    Example:
        >>> [_value(t) for t in ("3", "0.5", "none", "true", "1..3", "1/4", "sentence")]
        [3, 0.5, None, True, (1, 2, 3), (1, 4), 'sentence']
    """
    words: dict[str, Any] = {"none": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    if bounds := re.fullmatch(r"(\d+)\.\.(\d+)", text):
        return tuple(range(int(bounds[1]), int(bounds[2]) + 1))
    if re.fullmatch(r"\d+(/\d+)*/?", text) and "/" in text:
        return tuple(int(part) for part in text.split("/") if part)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check_options(spec: str, options: dict[str, Any], allowed: Sequence[str]) -> None:
    for key in options:
        check_choice(f"option of {spec!r}", key, [*allowed, "retrieval", *Settings.names()])
