"""The pipeline: named sources in, ranked documents with signed utilities out.

``GradReranker.rerank`` reads top to bottom like the description of the method: pool the documents of
all sources, choose which sources to combine, find the text whose loss is read, score every document
by its gradient, cut the ranking.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gradrerank.calibration import ScoreCalibration, check_gold
from gradrerank.call import Call
from gradrerank.context.choosing import Chooser
from gradrerank.context.fusion import final_scores, with_probabilities
from gradrerank.context.limits import PerSource, check_per_source
from gradrerank.context.prompt_tokens import TokenCounter
from gradrerank.documents import RerankResult
from gradrerank.errors import InvalidArgumentError, TruncationWarning, naming
from gradrerank.indexing import IndexReport, index_documents
from gradrerank.inspection import Inspection
from gradrerank.lm.disk_store import make_store
from gradrerank.lm.loading import load_generator
from gradrerank.lm.prompt import Continuation
from gradrerank.reporting import cut_documents, ranked_documents, source_reports, warn_of_silence
from gradrerank.scorers import DEFAULT_SCORER, Scorer, as_scorer
from gradrerank.scoring import score_calls
from gradrerank.selecting import select_documents
from gradrerank.settings import UNSET, Settings
from gradrerank.shortage import told_once
from gradrerank.source_choice import choose_after_scoring, choose_before_reading, credit_sources
from gradrerank.sources.embedding import as_encoder
from gradrerank.sources.pool import Candidate, Sources, build_pool, read_sources, read_sources_of_each, restrict
from gradrerank.sources.weights import Weights, check_weights
from gradrerank.targets import DraftWriter, check_reference, resolve_target
from gradrerank.validation import check_optional_flag, check_queries, check_query

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from gradrerank.lm.generator import Generator
    from gradrerank.lm.kv_store import DocumentStore
    from gradrerank.lm.prompt import DocumentTokens, PromptTexts


class GradReranker(Inspection):
    """Reranks the documents of several sources by how much each helps a language model.

    Args:
        model: The frozen causal LM: None for the embedded SmolLM2-135M-Instruct, a hub name, folder or GGUF file,
            a ``(model, tokenizer)`` pair that is left exactly as it is, or a ``Generator``.
        scorer: ``"gates"`` (gradient in attention gates: one forward and one backward pass),
            ``"likelihood"`` (each document alone: the question once for each), both with what documents lead
            to as ``"gates+likelihood+links"``, ``"iterated"`` (gates at the best set of ``top_n``, found by iteration),
            ``"mixture"`` (the paper's soft token), ``"ablation"`` (exact leave-one-out), ``"removal"`` (the same,
            estimated from gradients), ``"attention"`` (ICR), ``"surrogate"`` (a sparse fit to random ablations),
            ``"similarity"`` (the encoder), several joined by ``+``, or an object with ``name`` and ``score``.
        target: Text whose loss is read: ``"query"``, ``"draft"`` or ``"reference"``.
        encoder: Sentence encoder for the choice of sources: None for the embedded MiniLM, a name, a
            SentenceTransformer, or a callable from texts to vectors. Not used for a single source.
        select_sources: Whether to choose which sources to combine; False keeps all.
        source_choice: What sources are chosen by: ``"embedding"``, ``"gradient"`` or ``"both"``; see
            :mod:`gradrerank.source_choice`.
        source_agreement: Whether to compare what sources say of each word of the target.
        source_lambda: Weight of the redundancy between sources in f(A).
        max_sources: Most sources that are combined.
        docs_per_source: Documents that each source hands over at most.
        weights: Trust in each source, by name or in the order of the sources; None trusts all alike.
        fusion: What is added to the utility: ``"auto"`` (for the default scorer and several sources, what the
            encoder says), ``"off"``, ``"rrf"`` (ranks of retrieval) or ``"score"`` (its scores).
        fusion_weight: Weight of what is added beside the utility.
        max_candidates: Candidates that the model reads at first, best by retrieval order, and more as
            long as it pays (:func:`gradrerank.scoring.score_as_far_as_it_pays`); None reads all.
        top_n: Most documents in the ranking; None ranks all.
        min_score: Least signed utility of a ranked document, itself included; with ``calibration`` its least
            probability.
        calibration: What :meth:`calibrate_scores` gave, for probabilities of being worth reading.
        token_budget: Most tokens that the kept documents take in the prompt; None for no limit.
        token_counter: Number of tokens of a text by your own LLM's tokenizer: ``(text) -> int``.
        selection: Which documents are kept: ``"order"``, ``"knapsack"``, ``"coverage"``, ``"mmr"``, or an
            object with ``name`` and ``choose``.
        mmr_lambda: Weight of the score in ``"mmr"``, between 0 and 1.
        per_source: For a source the most documents of it, or a pair of the least and the most.
        order: How kept documents are arranged: ``"score"``, ``"ascending"``, ``"edges"`` or ``"source"``.
        compress: Whether to keep only those sentences of the kept documents that help. These seven are
            told in full in :class:`~gradrerank.settings.Settings`.
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
        show_progress: Whether to show a progress bar on stderr while many documents are read; None shows
            it on a terminal.

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
        scorer: str | Scorer = DEFAULT_SCORER,
        target: str = "query",
        encoder: Any = None,
        select_sources: bool = True,
        source_choice: str = "embedding",
        source_agreement: bool = False,
        source_lambda: float = 0.1,
        max_sources: int | None = None,
        docs_per_source: int | None = None,
        weights: Weights | None = None,
        fusion: str = "auto",
        fusion_weight: float = 1.0,
        max_candidates: int | None = None,
        top_n: int | None = None,
        min_score: float | None = None,
        calibration: ScoreCalibration | None = None,
        token_budget: int | None = None,
        token_counter: TokenCounter | None = None,
        selection: str | Chooser = "order",
        mmr_lambda: float = 0.7,
        per_source: PerSource | None = None,
        order: str = "score",
        compress: bool = False,
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
        show_progress: bool | None = False,
    ) -> None:
        arguments = locals()
        self.settings = Settings(**{name: arguments[name] for name in Settings.names()})
        self.encoder = as_encoder(encoder, device=str(device or "cpu") if encoder is None else None)
        options: dict[str, Any] = {
            "texts": prompt,
            "use_chat_template": check_optional_flag("use_chat_template", use_chat_template),
            "max_context": max_context,
            "batch_size": batch_size,
            "store": make_store(store, cache_bytes, cache_folder),
        }
        given = {name: value for name, value in options.items() if value is not None}
        if check_optional_flag("show_progress", show_progress) is not False:
            given["show_progress"] = show_progress
        self._loading = {"model": model, "device": device, "dtype": dtype, **given}
        self.generator = load_generator(**self._loading)

    @told_once()
    def rerank(
        self,
        query: str,
        sources: Sources,
        *,
        top_n: int | None = UNSET,
        min_score: float | None = UNSET,
        scorer: str | Scorer = UNSET,
        target: str = UNSET,
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
            The ranking, arranged by ``order``; nothing that was passed is changed, and every document that
            was passed is either ranked or listed in ``dropped`` with the reason.

        Raises:
            InvalidArgumentError: When an argument cannot be used; the message names it.
            InvalidTypeError: When a query, a source or a document has the wrong type.
            ContextOverflowError: When a document or the query does not fit the model.
            ScoringError: When a scorer, draft writer or encoder returns something unusable.
        """
        use = self._use(top_n=top_n, min_score=min_score, scorer=scorer, target=target, **settings)
        return self._run([Call(check_query(query), read_sources(sources), reference)], use)[0]

    @told_once()
    def rerank_batch(
        self,
        queries: Sequence[str],
        sources: Sources | Sequence[Sources],
        *,
        references: Sequence[str | None] | None = None,
        **settings: Any,
    ) -> list[RerankResult]:
        """Rank for several queries at once.

        Documents that queries share are read once, and the questions over the same documents pass
        through the model together.

        Args:
            queries: n queries.
            sources: One mapping of sources for all queries, or a list of n of them.
            references: n answers for ``target="reference"``.
            **settings: As for :meth:`rerank`.

        Returns:
            n results, equal to those of :meth:`rerank` up to the rounding of the arithmetic.

        Raises:
            InvalidArgumentError: When the numbers of queries, sources and references differ.
            InvalidTypeError: When queries is a str or no sequence.
            GradRerankError: As for :meth:`rerank`; where one query is at fault, the message begins with its place.
        """
        use = self._use(**settings)
        queries = check_queries(queries)
        read = read_sources_of_each(sources, len(queries))
        answers = [None] * len(queries) if references is None else list(references)
        if len(answers) != len(queries):
            raise InvalidArgumentError(f"references has {len(answers)} answers for {len(queries)} queries")
        parts = enumerate(zip(queries, read, answers, strict=True))
        return self._run([Call(*part, name=f"queries[{i}]") for i, part in parts], use)

    @told_once()
    def index(
        self,
        documents: Sources,
        *,
        max_document_tokens: int | None = UNSET,
        progress: bool | None = None,
    ) -> IndexReport:
        """Read documents into the store, so that later calls read only the question.

        What is in the store already is passed over, so a call that was interrupted is taken up by the
        next one where it stopped. With ``cache_folder`` the caches outlive the process; without, only
        as many are kept as ``cache_bytes`` allows.

        Args:
            documents: Documents, or documents by source.
            max_document_tokens: Overrides the object's own.
            progress: Whether to show a progress bar on stderr; None shows one on a terminal.

        Returns:
            How many documents and tokens were read, and how many were there already.

        Raises:
            ContextOverflowError: When a document does not fit the model; none is read then.
        """
        use = self._use(max_document_tokens=max_document_tokens)
        pool = build_pool(read_sources(documents))
        tokens = self._read(pool.candidates, use)
        nothing_asked = Continuation((), (0,))
        self.generator.check_fits(tokens, nothing_asked, *_names(pool.candidates))
        return index_documents(self.generator.reader, [d.ids for d in tokens], progress=progress)

    @told_once()
    def calibrate_scores(
        self,
        queries: Sequence[str],
        sources: Sources | Sequence[Sources],
        gold: Sequence[Collection[str]],
        *,
        method: str = "isotonic",
        references: Sequence[str | None] | None = None,
        **settings: Any,
    ) -> ScoreCalibration:
        """Learn from questions with known gold documents how likely a score is worth reading.

        Pass what it gives as ``calibration`` to a reranker or a call; this one stays as it is.

        Args:
            queries: n queries.
            sources: As for :meth:`rerank_batch`.
            gold: For each query the ids, or the texts, of the documents worth reading.
            method: ``"isotonic"`` or ``"platt"``; see :mod:`gradrerank.calibration`.
            references: n answers for ``target="reference"``.
            **settings: As for :meth:`rerank`; take those that you will rank with.

        Returns:
            The calibration, for this scorer, target and model.

        Raises:
            InvalidArgumentError: When numbers differ, or all documents are gold or none is.
            InvalidTypeError: When queries, or the gold of a query, is a str or no collection of them.
        """
        queries = check_queries(queries)
        check_gold(gold, len(queries), method)
        given = {**settings, "calibration": None, "min_score": None}
        results = self.rerank_batch(queries, sources, references=references, **given)
        return ScoreCalibration.fit(results, gold, method=method)

    def _run(self, calls: Sequence[Call], use: Settings) -> list[RerankResult]:
        """The pipeline, in the order of the method."""
        active = as_scorer(use.scorer)
        if use.calibration is not None:
            use.calibration.check_fits(active.name, use.target)
        for call in calls:
            with naming(call.name):
                self._pool(call, use)
        filled = [call for call in calls if call.pool.candidates]
        for call in filled:
            with naming(call.name):
                self._choose_and_read(call, use)
        score_calls(filled, active, use, self.generator, self.encoder)
        for call in filled:
            with naming(call.name), call.watch.stage("sources"):
                credit_sources(call, use, self.generator)
                choose_after_scoring(call, use, active.name)
        return [self._result(call, active.name, use) for call in calls]

    def _prepared(self, query: str, sources: Sources, reference: str | None, use: Settings) -> Call:
        """One call up to where its documents are scored."""
        call = Call(check_query(query), read_sources(sources), reference)
        self._pool(call, use)
        if call.pool.candidates:
            self._choose_and_read(call, use)
        return call

    def _choose_and_read(self, call: Call, use: Settings) -> None:
        """The sources that are read, their documents as tokens, and the text whose loss is read."""
        with call.watch.stage("sources"):
            choose_before_reading(call, use, self.encoder)
        with call.watch.stage("target"):
            self._read_target(call, use)

    def _pool(self, call: Call, use: Settings) -> None:
        """All sources become one pool of candidates."""
        check_reference(use.target, call.reference)
        with call.watch.stage("pool"):
            call.weights = weights = check_weights(use.weights, list(call.sources))
            call.per_source = check_per_source(use.per_source, list(call.sources)) or {}
            pool = build_pool(call.sources, docs_per_source=use.docs_per_source, weights=weights)
            call.selected = [n for n, found in pool.sources.items() if found and (weights is None or weights[n] > 0)]
            call.pool = restrict(pool, call.selected)

    def _read_target(self, call: Call, use: Settings) -> None:
        """Documents as tokens, and the text whose loss is read behind them."""
        call.documents = self._read(call.pool.candidates, use)
        call.goal = resolve_target(
            use.target,
            call.query,
            reference=call.reference,
            generator=self.generator,
            documents=call.documents,
            drafting=use.drafting,
            tokens=call.tokens,
        )
        self.generator.check_fits(call.documents, call.goal.continuation, *_names(call.pool.candidates))

    def _read(self, candidates: Sequence[Candidate], use: Settings) -> list[DocumentTokens]:
        documents = self.generator.layout.documents(
            [(c.title, c.text) for c in candidates], max_tokens=use.max_document_tokens
        )
        documents = [replace(d, called=c.called, own=c.own) for c, d in zip(candidates, documents, strict=True)]
        cut = [c.name for c, d in zip(candidates, documents, strict=True) if d.truncated]
        if cut:
            more = f" and {len(cut) - 10} more" if len(cut) > 10 else ""
            warnings.warn(
                f"{len(cut)} documents are longer than max_document_tokens={use.max_document_tokens} and were read "
                f"only in part: {', '.join(map(repr, cut[:10]))}{more}",
                TruncationWarning,
                stacklevel=2,
            )
        return documents

    def _result(self, call: Call, scorer: str, use: Settings) -> RerankResult:
        """Rank, cut and report."""
        if not call.pool.candidates:
            return _nothing_to_rank(call, scorer, use)
        with call.watch.stage("select"):
            candidates, scores = call.pool.candidates, call.scores
            final = final_scores(call, use, scorer)
            final = with_probabilities(final, use.calibration)
            context = select_documents(call, final.scores, use, self.generator, self.encoder)
            ranked = ranked_documents(context, candidates, call.documents, final, scores.spans)
        warn_of_silence(call, use, scorer)
        return RerankResult(
            query=call.query,
            documents=ranked,
            sources=source_reports(call, call.selected, ranked),
            dropped=call.pool.dropped + call.unread + cut_documents(context.selection, candidates, final),
            timings=call.watch.seconds(),
            tokens=dict(call.tokens),
            scorer=scorer,
            target=call.goal.kind,
            target_text=call.goal.text,
            details={**scores.details, **_volume(call)},
            context_tokens=context.tokens,
        )

    def _use(self, **given: Any) -> Settings:
        """The object's settings with those of a call."""
        return self.settings.override(**{name: value for name, value in given.items() if value is not UNSET})

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


def _names(candidates: Sequence[Candidate]) -> tuple[list[str], list[Sequence[str]]]:
    """What to call documents that do not fit, and where to look for them."""
    return [c.name for c in candidates], [c.sources for c in candidates]


def _volume(call: Call) -> dict[str, float]:
    """The Gram volume of the sources, where it was asked for and there are two of them."""
    return {} if call.agreement is None or call.agreement.volume is None else {"source_volume": call.agreement.volume}


def _nothing_to_rank(call: Call, scorer: str, use: Settings) -> RerankResult:
    return RerankResult(
        query=call.query,
        documents=(),
        sources=source_reports(call, (), ()),
        dropped=call.pool.dropped,
        timings=call.watch.seconds(),
        scorer=scorer,
        target=use.target,
        context_tokens=0 if use.counts_tokens else None,
    )
