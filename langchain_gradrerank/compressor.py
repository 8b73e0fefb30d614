"""The document compressor: LangChain documents in, the ones that help the model out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from langchain_core.callbacks import Callbacks, adispatch_custom_event, dispatch_custom_event
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings
from langchain_core.messages import BaseMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from pydantic import ConfigDict, Field, PrivateAttr, ValidationInfo, field_serializer, field_validator, model_validator

from gradrerank import RerankResult
from gradrerank.adapting import (
    LazyReranker,
    Occurrences,
    OnLoop,
    check_setting,
    draft_prompt,
    run_blocking,
)
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError
from gradrerank.scorers import DEFAULT_SCORER
from gradrerank.settings import Settings
from gradrerank.targets import DraftWriter
from gradrerank.together import RankJob, rank_together
from gradrerank.validation import check_place, check_query
from langchain_gradrerank.batching import ASYNC_PART, PART
from langchain_gradrerank.documents import (
    RETRIEVAL_SCORE_KEY,
    SOURCE_KEY,
    TITLE_KEY,
    by_metadata,
    from_result,
    read_documents,
    summary,
    with_source_names,
)

# Every setting of the core but the writer of drafts, which ``llm`` is here.
SETTINGS = tuple(name for name in Settings.names() if name != "draft_writer")
# Fields that may hold an object: shared by copies, and named by their class in dumps.
OBJECTS = ("model", "encoder", "scorer", "llm", "reranker", "selection", "token_counter")

RUN_NAME = "GradRerank"
EVENT = "gradrerank_result"


class GradRerankCompressor(BaseDocumentCompressor):
    """Keeps the documents that help a language model answer, best first unless ``order`` says otherwise.

    Every document gets ``metadata["relevance_score"]``, its signed utility in nats (positive helps,
    negative hurts, near zero is ignored), and ``metadata["gradrerank"]``, a dict that says which
    sources found it, as what, and what every stage made of it: see
    :mod:`langchain_gradrerank.documents`. Documents that name their source under ``source_key`` are
    grouped by it; all others are one source. A document that several sources found comes back once.
    The documents that are passed are never changed.

    The model is loaded when it is first needed. A setting that is not given is that of ``reranker``,
    where one is given. In a trace, ranking is a run named ``GradRerank``, within which the event
    ``gradrerank_result`` tells sources, dropped documents, timings and tokens.

    Args:
        top_n: Most documents that are kept; None keeps all.
        min_score: Least signed utility of a document that is kept, itself included; with ``calibration`` its
            least probability.
        calibration: What ``GradReranker.calibrate_scores`` gave, or its ``to_dict()``: documents then have a
            ``"probability"`` of being worth reading among their stages.
        token_budget: Most tokens that the kept documents take in the prompt, each with its title, joined by
            empty lines; a document that is longer than what is left is passed over. None for no limit.
        token_counter: Number of tokens of a text by your LLM's tokenizer, for instance
            ``llm.get_num_tokens``; None takes the scoring model's.
        selection: Which documents are kept: ``"order"`` (best first), ``"knapsack"`` (most utility for the
            tokens), ``"coverage"`` (documents that help different words), ``"mmr"`` (documents that do not
            resemble each other), or an object with ``name`` and ``choose``.
        mmr_lambda: Weight of the score in ``"mmr"``, between 0 and 1.
        per_source: For a source the most documents that are kept of it, or a pair of the least and the most. A
            name that no document bears is no error here, since its source may have found nothing; a
            ``MultiSourceRetriever`` knows its sources, and refuses another name.
        order: How the kept documents are arranged: ``"score"``, ``"ascending"`` (best last), ``"edges"`` (the
            best at both ends) or ``"source"`` (grouped by source).
        compress: Whether ``page_content`` keeps only those sentences that help; the whole text is then in
            ``metadata["gradrerank"]["original"]``.
        scorer: A name in :data:`gradrerank.scorers.SCORERS`, several joined by ``+``, or an object with
            ``name`` and ``score``.
        target: The text whose loss is read: ``"query"``, or ``"draft"``, an answer that ``llm``, or
            else the scoring model, writes first.
        llm: Any LangChain LLM, chat model, or runnable from a str to a str or message.
        model: The scoring model: None for the embedded one, a name or folder, or a
            ``(model, tokenizer)`` pair, which stays as it is.
        device: Where a named model is placed, for instance ``"cuda"``; None is the CPU.
        dtype: Floating-point type of a named model, for instance ``"bfloat16"``.
        encoder: Sentence encoder for the choice of sources: None for the embedded MiniLM, a name, a
            SentenceTransformer, a LangChain ``Embeddings``, or a callable from texts to vectors.
        reranker: A ready ``GradReranker``, which is shared; model, device, dtype and encoder are its own.
        select_sources: Whether to choose which sources to combine; False keeps all.
        source_choice: What sources are chosen by: ``"embedding"``, ``"gradient"`` or ``"both"``.
        source_agreement: Whether to compare what sources say of each word of the target.
        source_lambda: Weight of the redundancy between sources.
        max_sources: Most sources that are combined.
        docs_per_source: Documents that each source hands over at most.
        weights: Trust in each source, by name; sources that are not named have the largest weight. Names as in
            ``per_source``.
        fusion: What is added to the utility: ``"auto"`` (for the default scorer and several sources, what the
            encoder says), ``"off"``, ``"rrf"`` (ranks of retrieval) or ``"score"`` (its scores).
        fusion_weight: Weight of what is added beside the utility.
        max_candidates: Documents that the model reads at first, best by fused retrieval order, and more as
            long as it pays; None reads all.
        max_document_tokens: Tokens of a document that are read at most; None reads all.
        draft_documents: Documents in the prompt of a draft.
        draft_tokens: Most tokens of a draft of the scoring model.
        source_key: Metadata key of the name of a document's source, or of a list of names.
        title_key: Metadata key of the title, which the model reads above the text; None for no titles.
        score_key: Metadata key of the retrieval score, which is handed on and read by ``fusion="score"`` only;
            None for none.

    Raises:
        ValidationError: When a value cannot be used; the message names the field.

    Example:
        >>> compressor = GradRerankCompressor(top_n=2)                                      # doctest: +SKIP
        >>> kept = compressor.compress_documents(documents, "When does the ferry leave?")  # doctest: +SKIP
        >>> kept[0].metadata["relevance_score"]                                             # doctest: +SKIP
        1.37
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", validate_assignment=True)

    top_n: int | None = None
    min_score: float | None = None
    calibration: Any = None
    token_budget: int | None = None
    token_counter: Any = None
    selection: Any = "order"
    mmr_lambda: float = 0.7
    per_source: dict[str, Any] | None = None
    order: str = "score"
    compress: bool = False
    scorer: Any = DEFAULT_SCORER
    target: str = "query"
    llm: Any = None
    model: Any = Field(default=None, frozen=True)
    device: str | None = Field(default=None, frozen=True)
    dtype: str | None = Field(default=None, frozen=True)
    encoder: Any = Field(default=None, frozen=True)
    reranker: Any = Field(default=None, frozen=True)
    select_sources: bool = True
    source_choice: str = "embedding"
    source_agreement: bool = False
    source_lambda: float = 0.1
    max_sources: int | None = None
    docs_per_source: int | None = None
    weights: dict[str, float] | None = None
    fusion: str = "auto"
    fusion_weight: float = 1.0
    max_candidates: int | None = None
    max_document_tokens: int | None = None
    draft_documents: int = 5
    draft_tokens: int = 32
    source_key: str = Field(default=SOURCE_KEY, min_length=1)
    title_key: str | None = TITLE_KEY
    score_key: str | None = RETRIEVAL_SCORE_KEY

    _lazy: LazyReranker | None = PrivateAttr(default=None)

    # -- ranking -----------------------------------------------------------------------------------

    def compress_documents(
        self, documents: Iterable[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Keep the documents that help, best first.

        Args:
            documents: Documents in retrieval order; any iterable, read once.
            query: The query.
            callbacks: Handlers or a callback manager.

        Returns:
            Copies of the documents that are kept.

        Raises:
            InvalidTypeError: When the query or a document has the wrong type; the message names it.
            InvalidArgumentError: When the query is blank.
            ContextOverflowError: When a document or the query does not fit the model.
            ScoringError: When a scorer, the llm or the encoder returns something unusable.
        """
        return self.rerank(self._grouped(documents), query, callbacks)

    async def acompress_documents(
        self, documents: Iterable[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        """Keep the documents that help, best first, while the event loop goes on.

        The model computes in a thread of its own; ``llm`` is awaited on the loop. A cancellation
        returns at once. Loading a model takes seconds in which other coroutines run haltingly: pass
        a ready ``reranker`` where that matters.

        Args:
            documents: As in :meth:`compress_documents`.
            query: The query.
            callbacks: Handlers or a callback manager.

        Returns:
            As :meth:`compress_documents`.

        Raises:
            InvalidTypeError: As in :meth:`compress_documents`, and so for the others.
        """
        return await self.arerank(self._grouped(documents), query, callbacks)

    def rerank(
        self, found: Occurrences[Document], query: str, callbacks: Callbacks | None = None, **settings: Any
    ) -> list[Document]:
        """Rank documents whose sources are known.

        Args:
            found: Documents by source.
            query: The query.
            callbacks: Handlers or a callback manager.
            **settings: Settings of the reranker for this call.

        Returns:
            As :meth:`compress_documents`.
        """

        def work(given: dict[str, Any], config: RunnableConfig) -> list[Document]:
            def write(query: str, texts: list[str]) -> str:
                return _text_of(self.llm.invoke(self._draft_prompt(query, texts), config=config))

            job = self._job(found, query, self._settings(settings, write))
            owner, part = PART.get() or (None, None)
            result = part.hand_in(job) if part and owner is self and not part.came else self._result(job)
            dispatch_custom_event(EVENT, summary(result), config=config)
            return self._documents(result, found)

        return RunnableLambda(work, name=RUN_NAME).invoke(_input(found, query), config={"callbacks": callbacks})

    async def arerank(
        self, found: Occurrences[Document], query: str, callbacks: Callbacks | None = None, **settings: Any
    ) -> list[Document]:
        """Rank documents whose sources are known, while the event loop goes on.

        Args:
            found: Documents by source.
            query: The query.
            callbacks: Handlers or a callback manager.
            **settings: Settings of the reranker for this call.

        Returns:
            As :meth:`compress_documents`.
        """

        async def work(given: dict[str, Any], config: RunnableConfig) -> list[Document]:
            async def ask(prompt: str) -> str:
                return _text_of(await self.llm.ainvoke(prompt, config=config))

            with OnLoop() as loop:

                def write(query: str, texts: list[str]) -> str:  # called in the thread that ranks
                    return loop.wait_for(ask(self._draft_prompt(query, texts)))

                job = self._job(found, query, self._settings(settings, write))
                owner, part = ASYNC_PART.get() or (None, None)
                together = part and owner is self and not part.came
                result = await (part.hand_in(job) if part and together else run_blocking(self._result, job))
            await adispatch_custom_event(EVENT, summary(result), config=config)
            return self._documents(result, found)

        return await RunnableLambda(work, name=RUN_NAME).ainvoke(_input(found, query), config={"callbacks": callbacks})

    def rank_jobs(self, jobs: Sequence[RankJob]) -> list[RerankResult | Exception]:
        """Rank several queries, over the same documents together.

        Args:
            jobs: Queries, their documents by source, and settings.

        Returns:
            For each its result, or the exception that it alone would have raised.
        """
        filled = [job for job in jobs if any(job.sources.values())]
        found = iter(
            rank_together(self._ready(), filled) if filled else ()
        )  # else there is nothing to load a model for
        return [next(found) if any(job.sources.values()) else RerankResult(job.query, (), ()) for job in jobs]

    def _result(self, job: RankJob) -> RerankResult:
        result = self.rank_jobs([job])[0]
        if isinstance(result, Exception):
            raise result
        return result

    def _job(self, found: Occurrences[Document], query: str, settings: Mapping[str, Any]) -> RankJob:
        return RankJob(check_query(query), found.sources, settings)

    def in_force(self, name: str) -> Any:
        """A setting as it will be used: what was given to this object, else that of a ready reranker.

        Args:
            name: Name of the setting.
        """
        inherited = self.reranker is not None and name not in self.model_fields_set
        return getattr(self.reranker.settings if inherited else self, name)

    def _named(self) -> list[str]:
        """Sources that settings name: documents tell what was found, and one that is named may have found nothing."""
        named = (self.in_force(name) for name in ("weights", "per_source"))
        return [name for each in named if isinstance(each, Mapping) for name in each]

    def _documents(self, result: RerankResult, found: Occurrences[Document]) -> list[Document]:
        ranked = from_result(result, found)
        if self.source_key == SOURCE_KEY:
            ranked = [with_source_names(d) if SOURCE_KEY in d.metadata else d for d in ranked]
        return ranked

    def _grouped(self, documents: Iterable[Document]) -> Occurrences[Document]:
        return by_metadata(
            read_documents(documents),
            source_key=self.source_key,
            title_key=self.title_key,
            score_key=self.score_key,
            also=self._named(),
        )

    def _settings(self, given: Mapping[str, Any], writer: DraftWriter) -> dict[str, Any]:
        """What was given to the call or to this object; the rest is the reranker's own."""
        own = {name: getattr(self, name) for name in SETTINGS if name in self.model_fields_set}
        return own | ({} if self.llm is None else {"draft_writer": writer}) | dict(given)

    def _draft_prompt(self, query: str, texts: list[str]) -> str:
        return draft_prompt(self._ready().generator.layout.texts, query, texts)

    def _ready(self) -> Any:
        return self._holder().get()

    def _holder(self) -> LazyReranker:
        """The holder of the model; a copy that was made with another model has none yet."""
        options = {name: getattr(self, name) for name in ("model", "device", "dtype", "encoder")}
        if isinstance(options["encoder"], Embeddings):
            options["encoder"] = options["encoder"].embed_documents
        if self._lazy is None or not self._lazy.made_from(self.reranker, **options):
            self._lazy = LazyReranker(self.reranker, **options)
        return self._lazy

    # -- validation --------------------------------------------------------------------------------

    @field_validator(*SETTINGS, mode="before")
    @classmethod
    def _check_setting(cls, value: Any, info: ValidationInfo) -> Any:
        return check_setting(str(info.field_name), value)

    @field_validator("device", "dtype", mode="before")
    @classmethod
    def _check_place(cls, value: Any, info: ValidationInfo) -> str | None:
        return check_place(str(info.field_name), value)

    @field_validator("llm")
    @classmethod
    def _check_llm(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, Runnable):
            raise InvalidArgumentError(f"llm must be a LangChain model or another Runnable, got {type(value).__name__}")
        return value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        try:
            self._holder()
        except InvalidTypeError as error:
            raise InvalidArgumentError(str(error)) from error
        target = self.in_force("target")
        if target == "reference":
            raise InvalidArgumentError(
                "target='reference' needs an answer to each query, which a compressor is not given; call "
                "GradReranker.rerank(..., reference=...) or choose target='draft'"
            )
        if self.llm is not None and target != "draft":
            raise InvalidArgumentError(f"llm writes the draft of target='draft', but target is {target!r}")
        return self

    # -- copies and dumps --------------------------------------------------------------------------

    @field_serializer(*OBJECTS)
    def _dump_object(self, value: Any) -> str | None:
        return value if value is None or isinstance(value, str) else _shown(value)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Only what was given; an object by the name of its class."""
        for name in type(self).model_fields:
            if name in self.model_fields_set:
                value = getattr(self, name)
                yield name, _Shown(value) if name in OBJECTS and not isinstance(value, str | None) else value

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy with settings of its own that shares models and other objects."""
        memo = {} if memo is None else memo
        memo.update({id(value): value for value in (getattr(self, name) for name in OBJECTS)})
        return super().__deepcopy__(memo)

    def __getstate__(self) -> dict[Any, Any]:
        """Configuration only: a ready model is refused before its weights are pickled."""
        self._holder().__reduce__()
        return super().__getstate__()


class _Shown:
    """Stands for an object in a repr."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return _shown(self.value)


def _shown(value: Any) -> str:
    return f"<{type(value[0] if isinstance(value, tuple) and value else value).__name__}>"


def _input(found: Occurrences[Document], query: str) -> dict[str, Any]:
    """What a trace shows as the input of the run."""
    return {"query": query, "documents": found.items}


def _text_of(written: Any) -> str:
    if isinstance(written, BaseMessage):
        return str(written.text)
    if isinstance(written, str):
        return written
    raise ScoringError(f"llm must return a str or a message, got {type(written).__name__}")
