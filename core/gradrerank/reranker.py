"""The pipeline: named sources in, ranked documents with signed utilities out.

``GradReranker.rerank`` reads top to bottom like the description of the method: pool the documents of
all sources, choose which sources to combine, find the text whose loss is read, score every document
by its gradient, cut the ranking.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradrerank.context.fusion import final_scores
from gradrerank.context.selection import rank_and_cut
from gradrerank.documents import Document, RerankResult
from gradrerank.errors import InvalidArgumentError, NoSignalWarning, TruncationWarning
from gradrerank.lm.disk_store import DiskStore
from gradrerank.lm.kv_store import DocumentStore
from gradrerank.lm.loading import load_generator
from gradrerank.reporting import cut_documents, ranked_documents, source_reports
from gradrerank.scorers import Scorer, Scores, ScoringJob, as_scorer
from gradrerank.scorers.checking import checked_scores
from gradrerank.settings import Settings
from gradrerank.sources.combination import ChosenSources, choose_sources
from gradrerank.sources.embedding import as_encoder
from gradrerank.sources.pool import Candidate, Pool, build_pool, read_sources, restrict
from gradrerank.sources.weights import Weights, check_weights
from gradrerank.stopwatch import Stopwatch
from gradrerank.targets import DraftWriter, Target, check_reference, resolve_target
from gradrerank.validation import check_query

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gradrerank.lm.generator import Generator
    from gradrerank.lm.prompt import DocumentTokens, PromptTexts


class _Unset:
    """Stands for an argument that was not given, where None means something."""

    def __repr__(self) -> str:
        return "<the object's own>"


_UNSET: Any = _Unset()


class GradReranker:
    """Reranks the documents of several sources by how much each helps a language model.

    Args:
        model: The frozen causal LM: None for the embedded SmolLM2-135M-Instruct, a hub name or folder,
            a ``(model, tokenizer)`` pair that is left exactly as it is, or a ``Generator``.
        scorer: ``"gates"`` (gradient in attention gates), ``"mixture"`` (the paper's soft token),
            ``"ablation"`` (exact leave-one-out), or an object with ``name`` and ``score``.
        target: Text whose loss is read: ``"query"``, ``"draft"`` or ``"reference"``.
        encoder: Sentence encoder for the choice of sources: None for the embedded MiniLM, a name, a
            SentenceTransformer, or a callable from texts to vectors. Not used for a single source.
        select_sources: Whether to choose which sources to combine; False keeps all.
        source_lambda: Weight of the redundancy between sources in f(A).
        max_sources: Most sources that are combined.
        docs_per_source: Documents that each source hands over at most.
        weights: Trust in each source, by name or in the order of the sources; None trusts all alike.
        top_n: Most documents in the ranking; None ranks all.
        min_score: Least signed utility of a ranked document, itself included.
        device: Where a named model is placed; None is the CPU.
        dtype: Floating-point type of a named model; None is float32 on the CPU.
        batch_size: Documents that are read together.
        max_document_tokens: Tokens of a document that are read at most; longer ones are cut with a
            warning. None reads all, and a document longer than the context is an error.
        draft_writer: Your own LLM for ``target="draft"``: ``(query, texts) -> str``.
        draft_documents: Documents in the prompt of a draft.
        draft_tokens: Most tokens of a draft of the scoring model.
        prompt: The words around the documents.
        use_chat_template: False uses a plain prompt even where there is a chat template.
        max_context: Most tokens of a prompt; None takes the model's own limit.
        cache_bytes: Most bytes of document caches that are held in memory for later calls; None is 1 GiB.
        cache_folder: Where document caches are kept on disk for later processes; None keeps none.
        store: A ready store of document caches, to be shared by several rerankers.

    Raises:
        InvalidArgumentError: When an argument cannot be used.
        ModelLoadError: When the model cannot be loaded.
        UnsupportedModelError: When attention cannot be gated in the model.

    Example:
        >>> reranker = GradReranker()                                            # doctest: +SKIP
        >>> result = reranker.rerank(                                            # doctest: +SKIP
        ...     "When does the ferry leave?",
        ...     {"timetable": ["The ferry leaves at 8:40."], "news": ["The ferry was painted blue."]},
        ... )
        >>> result[0].text                                                       # doctest: +SKIP
        'The ferry leaves at 8:40.'
    """

    def __init__(
        self,
        model: str | tuple[PreTrainedModel, PreTrainedTokenizerBase] | Generator | None = None,
        *,
        scorer: str | Scorer = "gates",
        target: str = "query",
        encoder: Any = None,
        select_sources: bool = True,
        source_lambda: float = 0.1,
        max_sources: int | None = None,
        docs_per_source: int | None = None,
        weights: Weights | None = None,
        top_n: int | None = None,
        min_score: float | None = None,
        device: str | torch.device | None = None,
        dtype: str | torch.dtype | None = None,
        batch_size: int | None = None,
        max_document_tokens: int | None = None,
        draft_writer: DraftWriter | None = None,
        draft_documents: int = 5,
        draft_tokens: int = 32,
        prompt: PromptTexts | None = None,
        use_chat_template: bool | None = None,
        max_context: int | None = None,
        cache_bytes: int | None = None,
        cache_folder: str | os.PathLike[str] | None = None,
        store: DocumentStore | None = None,
    ) -> None:
        self.settings = Settings(
            scorer=scorer,
            target=target,
            select_sources=select_sources,
            source_lambda=source_lambda,
            max_sources=max_sources,
            docs_per_source=docs_per_source,
            weights=weights,
            top_n=top_n,
            min_score=min_score,
            max_document_tokens=max_document_tokens,
            draft_writer=draft_writer,
            draft_documents=draft_documents,
            draft_tokens=draft_tokens,
        )
        self.encoder = as_encoder(encoder, device=str(device or "cpu") if encoder is None else None)
        options: dict[str, Any] = {
            "texts": prompt,
            "use_chat_template": use_chat_template,
            "max_context": max_context,
            "batch_size": batch_size,
            "store": _store(store, cache_bytes, cache_folder),
        }
        given = {name: value for name, value in options.items() if value is not None}
        self._loading = {"model": model, "device": device, "dtype": dtype, **given}
        self.generator = load_generator(**self._loading)

    def rerank(
        self,
        query: str,
        sources: Mapping[str, Iterable[Document | str]] | Iterable[Document | str],
        *,
        top_n: int | None = _UNSET,
        min_score: float | None = _UNSET,
        scorer: str | Scorer = _UNSET,
        target: str = _UNSET,
        reference: str | None = None,
        **settings: Any,
    ) -> RerankResult:
        """Rank the documents of all sources by their utility for the model.

        Args:
            query: The query.
            sources: For each source name any iterable of documents or texts, best first. A bare
                iterable is one source named ``"documents"``.
            top_n: Overrides the object's own; None ranks all.
            min_score: Overrides the object's own.
            scorer: Overrides the object's own.
            target: Overrides the object's own.
            reference: The answer whose loss is read by ``target="reference"``.
            **settings: Any other field of :class:`~gradrerank.settings.Settings`.

        Returns:
            The ranking; nothing that was passed is changed, and every document that was passed is
            either ranked or listed in ``dropped`` with the reason.

        Raises:
            InvalidArgumentError: When an argument cannot be used; the message names it.
            InvalidTypeError: When a query, a source or a document has the wrong type.
            ContextOverflowError: When a document or the query does not fit the model.
            ScoringError: When a scorer, draft writer or encoder returns something unusable.
        """
        given = {"top_n": top_n, "min_score": min_score, "scorer": scorer, "target": target, **settings}
        use = self.settings.override(**{name: value for name, value in given.items() if value is not _UNSET})
        check_query(query)
        check_reference(use.target, reference)
        watch, tokens = Stopwatch(), Counter[str]()

        with watch.stage("pool"):
            read = read_sources(sources)
            weights = check_weights(use.weights, list(read))
            pool = build_pool(read, docs_per_source=use.docs_per_source, weights=weights)
            trusted = [n for n, found in pool.sources.items() if found and (weights is None or weights[n] > 0)]
            pool = restrict(pool, trusted)
        if not pool.candidates:
            return _nothing_to_rank(query, pool, use, watch)

        with watch.stage("sources"):
            chosen = self._choose_sources(query, {name: pool.sources[name] for name in trusted}, use)
            selected = trusted if chosen is None else list(chosen.names)
            pool = restrict(pool, selected)

        with watch.stage("target"):
            documents = self._read(pool.candidates, use)
            goal = self._target(query, documents, use, reference, tokens)
            self.generator.check_fits(documents, goal.continuation, [_name(c) for c in pool.candidates])

        with watch.stage("score"):
            job = ScoringJob(query, documents, goal.continuation, self.generator, use.top_n, tokens)
            active = as_scorer(use.scorer)
            scores = checked_scores(active.score(job), len(documents), active.name)
            _warn_without_signal(scores, active.name)

        with watch.stage("select"):
            final = final_scores(scores, pool.candidates, weights, len(goal.continuation.target), active.name)
            selection = rank_and_cut(final.scores, top_n=use.top_n, min_score=use.min_score)
            ranked = ranked_documents(selection, pool.candidates, documents, final, scores.spans)

        return RerankResult(
            query=query,
            documents=ranked,
            sources=source_reports(pool, selected, chosen, ranked),
            dropped=pool.dropped + cut_documents(selection, pool.candidates, final),
            timings=watch.seconds(),
            tokens=dict(tokens),
            scorer=active.name,
            target=goal.kind,
            target_text=goal.text,
            details=dict(scores.details),
        )

    def _choose_sources(
        self, query: str, sources: Mapping[str, Sequence[Document]], use: Settings
    ) -> ChosenSources | None:
        """The combination of sources that maximises f(A); None where there is nothing to choose."""
        if not use.select_sources or len(sources) < 2:
            return None
        return choose_sources(
            query, sources, self.encoder, source_lambda=use.source_lambda, max_sources=use.max_sources
        )

    def _read(self, candidates: Sequence[Candidate], use: Settings) -> list[DocumentTokens]:
        documents = self.generator.layout.documents(
            [(c.title, c.text) for c in candidates], max_tokens=use.max_document_tokens
        )
        cut = [c for c, d in zip(candidates, documents, strict=True) if d.truncated]
        if cut:
            names = ", ".join(repr(_name(c)) for c in cut[:10])
            more = f" and {len(cut) - 10} more" if len(cut) > 10 else ""
            warnings.warn(
                f"{len(cut)} documents are longer than max_document_tokens={use.max_document_tokens} and were read "
                f"only in part: {names}{more}",
                TruncationWarning,
                stacklevel=3,
            )
        return documents

    def _target(
        self,
        query: str,
        documents: Sequence[DocumentTokens],
        use: Settings,
        reference: str | None,
        tokens: Counter[str],
    ) -> Target:
        return resolve_target(
            use.target,
            query,
            reference=reference,
            generator=self.generator,
            documents=documents,
            drafting=use.drafting,
            tokens=tokens,
        )

    def __repr__(self) -> str:
        """One short line."""
        name = as_scorer(self.settings.scorer).name
        return f"GradReranker({self.generator.name!r}, scorer={name!r}, target={self.settings.target!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> GradReranker:
        """A copy with the same settings that shares model, caches and encoder."""
        return copy.copy(self)

    def __copy__(self) -> GradReranker:
        """A copy with the same settings that shares model, caches and encoder."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Configuration only: a model that was loaded by name is loaded again."""
        model = self._loading["model"]
        if model is not None and not isinstance(model, str):
            raise TypeError(
                f"this GradReranker holds a ready model ({self.generator.name}), whose weights are not pickled; make "
                "it from a model name or folder to pickle it, or build it anew in the other process"
            )
        return {"settings": self.settings, "encoder": self.encoder, "_loading": self._loading}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the model again."""
        self.__dict__.update(state)
        self.generator = load_generator(**self._loading)


def _store(
    store: DocumentStore | None, capacity: int | None, folder: str | os.PathLike[str] | None
) -> DocumentStore | None:
    """The store that the caller asks for, or None where none is described."""
    if store is not None and (capacity is not None or folder is not None):
        raise InvalidArgumentError("store is ready made; cache_bytes and cache_folder describe another one")
    if store is not None or (capacity is None and folder is None):
        return store
    disk = None if folder is None else DiskStore(folder)
    return DocumentStore(1 << 30 if capacity is None else capacity, disk)


def _name(candidate: Candidate) -> str:
    """What to call a document in a message: its id, or how it begins."""
    return candidate.document.id or candidate.text[:40]


def _nothing_to_rank(query: str, pool: Pool, use: Settings, watch: Stopwatch) -> RerankResult:
    return RerankResult(
        query=query,
        documents=(),
        sources=source_reports(pool, (), None, ()),
        dropped=pool.dropped,
        timings=watch.seconds(),
        scorer=as_scorer(use.scorer).name,
        target=use.target,
    )


def _warn_without_signal(scores: Scores, scorer: str) -> None:
    if len(scores.utilities) > 1 and not any(scores.utilities):
        warnings.warn(
            f"scorer {scorer!r} gave every document exactly 0, so the retrieval order stands; is the model's attention "
            "to the documents cut off?",
            NoSignalWarning,
            stacklevel=3,
        )
