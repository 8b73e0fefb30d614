"""The node postprocessor: LlamaIndex nodes in, the ones that help the model out."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.bridge.pydantic import (
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)
from llama_index.core.callbacks import CallbackManager
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixin, PromptMixinType
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from gradrerank.adapting import LazyReranker, check_setting, draft_prompt, run_blocking
from gradrerank.documents import RerankResult
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError
from gradrerank.fetching import OnLoop
from gradrerank.lm.embedded import HUB_NAME
from gradrerank.lm.prompt import PromptTexts
from gradrerank.scorers import DEFAULT_SCORER
from gradrerank.settings import Settings
from gradrerank.targets import DraftWriter
from gradrerank.validation import check_place
from llamaindex_gradrerank.events import GradRerankEvent, announced, dispatcher
from llamaindex_gradrerank.nodes import TITLE_KEY, NodePool, RankedNode, by_source, read_nodes, read_query

SOURCE_KEY = "retrieval_source"
# Every setting of the core but the writer of drafts, which ``llm`` is here.
SETTINGS = tuple(name for name in Settings.names() if name != "draft_writer")
# Fields that may hold an object: shared by copies, and told by the name of its class in dumps.
OBJECTS = ("scorer", "model", "encoder", "llm", "reranker", "selection", "token_counter")
_TOLD = "object"


class GradRerankPostprocessor(PromptMixin, BaseNodePostprocessor):
    """Keeps the nodes that help a language model answer, best first unless ``order`` says otherwise.

    What comes back are :class:`~llamaindex_gradrerank.RankedNode` objects: ``score`` is the signed
    utility in nats (positive helps, negative hurts, near zero is ignored), and ``gradrerank`` a dict
    that says which ``sources`` found the node, its ``ranks``, ``scores`` and ``ids`` there, the
    ``metadata`` of its duplicates, the score of all ``stages``, and the utility of ``spans`` of its
    text. The nodes in them are copies with the same ids, hashes and prompts; only where
    ``compress`` cuts a text, text and hash are others, and ``gradrerank["original"]`` is the whole text.

    Nodes that :class:`~llamaindex_gradrerank.MultiSourceRetriever` found, or that name their source in
    their metadata under ``source_key``, are grouped by it; all others are one source. Nodes with equal
    texts come back once. Blank ones are left out; images without text come back behind the ranking,
    without a score, and are not counted by ``top_n``. Which metadata the model reads is told in
    :mod:`llamaindex_gradrerank.nodes`.

    The model is loaded when it is first needed. A setting that is not given is that of ``reranker``,
    where one is given.

    Raises:
        ValidationError: When a value cannot be used; the message names the field.

    Example:
        >>> postprocessor = GradRerankPostprocessor(top_n=2, metadata_mode="none")
        >>> postprocessor
        GradRerankPostprocessor(top_n=2, metadata_mode='none')
        >>> engine = index.as_query_engine(node_postprocessors=[postprocessor])             # doctest: +SKIP
        >>> response = engine.query("When does the ferry leave?")                           # doctest: +SKIP
        >>> [(node.text, node.score) for node in response.source_nodes]                     # doctest: +SKIP
    """

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", protected_namespaces=())

    top_n: int | None = Field(default=None, description="Most nodes that are kept; None keeps all.")
    min_score: float | None = Field(
        default=None, description="Least signed utility of a node that is kept, itself included; None for no bound."
    )
    calibration: Any = Field(
        default=None,
        description="What GradReranker.calibrate_scores gave, or its to_dict(): nodes then have a 'probability' of "
        "being worth reading among their stages, and min_score bounds it.",
    )
    token_budget: int | None = Field(
        default=None,
        description="Most tokens that the kept nodes take as the LLM reads them, joined by empty lines; None for no "
        "limit. A node that is longer than what is left is passed over.",
    )
    token_counter: Any = Field(
        default=None,
        description="Number of tokens of a text by the LLM's tokenizer: (text) -> int; None takes the scoring model's.",
    )
    selection: Any = Field(
        default="order",
        description="Which nodes are kept: 'order' (best first), 'knapsack' (most utility for the tokens), 'coverage' "
        "(nodes that help different words), 'mmr' (nodes that do not resemble each other), or an object with name and "
        "choose.",
    )
    mmr_lambda: float = Field(default=0.7, description="Weight of the score in 'mmr', between 0 and 1.")
    per_source: dict[str, Any] | None = Field(
        default=None,
        description="For a source the most nodes that are kept of it, or a pair of the least and the most. A name "
        "that no node bears is no error here, since its source may have found nothing; a MultiSourceRetriever knows "
        "its sources, and refuses another name.",
    )
    order: str = Field(
        default="score",
        description="How the kept nodes are arranged: 'score', 'ascending' (best last), 'edges' (the best at both "
        "ends) or 'source' (grouped).",
    )
    compress: bool = Field(
        default=False,
        description="Whether the text of a node keeps only those sentences that help; the whole text is then in "
        "gradrerank['original'].",
    )
    scorer: Any = Field(
        default=DEFAULT_SCORER,
        description="A name in gradrerank.scorers.SCORERS, several joined by '+', or an object with name and score.",
    )
    target: str = Field(
        default="query",
        description="The text whose loss is read: 'query', or 'draft', an answer that llm, or else the model, writes.",
    )
    select_sources: bool = Field(
        default=True, description="Whether to choose which sources to combine; False keeps all."
    )
    source_choice: str = Field(
        default="embedding", description="What sources are chosen by: 'embedding', 'gradient' or 'both'."
    )
    source_agreement: bool = Field(
        default=False, description="Whether to compare what sources say of each word of the target."
    )
    source_lambda: float = Field(default=0.1, description="Weight of the redundancy between sources.")
    max_sources: int | None = Field(default=None, description="Most sources that are combined; None for no limit.")
    docs_per_source: int | None = Field(default=None, description="Nodes that each source hands over at most.")
    fusion: str = Field(
        default="auto",
        description="What is added to the utility: 'auto' (for the default scorer and several sources, what the "
        "encoder says), 'off', 'rrf' (ranks of retrieval) or 'score' (its scores).",
    )
    fusion_weight: float = Field(default=1.0, description="Weight of what is added beside the utility.")
    max_candidates: int | None = Field(
        default=None, description="Nodes that the model reads at first, and more as long as it pays; None reads all."
    )
    weights: dict[str, float] | None = Field(
        default=None,
        description="Trust in each source, by name; a source that is not named has the largest weight. Names as in "
        "per_source.",
    )
    max_document_tokens: int | None = Field(
        default=None, description="Tokens of a node that are read at most; None reads all."
    )
    draft_documents: int = Field(default=5, description="Nodes in the prompt of a draft.")
    draft_tokens: int = Field(default=32, description="Most tokens of a draft that the scoring model writes.")
    model: Any = Field(
        default=None,
        frozen=True,
        description="The scoring model: None for the embedded one, a name or folder, or a (model, tokenizer) pair.",
    )
    device: str | None = Field(default=None, frozen=True, description="Where a named model is placed; None is the CPU.")
    dtype: str | None = Field(default=None, frozen=True, description="Floating-point type of a named model.")
    encoder: Any = Field(
        default=None,
        frozen=True,
        description="Sentence encoder for the choice of sources: None for the embedded MiniLM, a name, a "
        "SentenceTransformer, a LlamaIndex embedding, or a callable from texts to vectors.",
    )
    reranker: Any = Field(
        default=None, frozen=True, description="A ready GradReranker, which is shared, in place of the four above."
    )
    llm: LLM | None = Field(default=None, description="Writes the draft of target='draft'.")
    draft_prompt: BasePromptTemplate = Field(
        default=None, validate_default=True, description="What llm reads: {query_str} and {context_str} in some words."
    )
    metadata_mode: MetadataMode = Field(
        default=MetadataMode.EMBED, description="Which metadata the model reads before the text of a node."
    )
    source_key: str = Field(
        default=SOURCE_KEY, min_length=1, description="Metadata field that names the source of a node, or several."
    )
    title_key: str | None = Field(
        default=TITLE_KEY,
        description="Metadata field of the title, by which other nodes may name a node (scorer 'links'); whether the "
        "model reads it is up to metadata_mode.",
    )

    _lazy: LazyReranker | None = PrivateAttr(default=None)

    @classmethod
    def class_name(cls) -> str:
        """The name of the class in serialized form."""
        return "GradRerankPostprocessor"

    # -- ranking -----------------------------------------------------------------------------------

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = read_query(query_bundle)
        read = read_nodes(nodes)
        return self.rerank(query, read, self._pool(read))

    @dispatcher.span
    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = read_query(query_bundle)
        read = read_nodes(nodes)
        return await self.arerank(query, read, self._pool(read))

    @dispatcher.span
    def rerank(
        self,
        query: QueryBundle,
        nodes: Sequence[NodeWithScore],
        pool: NodePool,
        callback_manager: CallbackManager | None = None,
        **settings: Any,
    ) -> list[NodeWithScore]:
        """Rank nodes whose sources are known.

        Args:
            query: The query, with a text.
            nodes: The nodes, for handlers of events.
            pool: The nodes by source.
            callback_manager: Who is told; None for this object's own.
            **settings: Settings of the reranker for this call.

        Returns:
            The ranked nodes, then images and the like without text.
        """

        def write(question: str, texts: list[str]) -> str:
            return _as_text(self._llm().predict(self.draft_prompt, **_draft_values(question, texts)))

        use = self._settings(settings, write)
        with announced(callback_manager or self.callback_manager, query, nodes, use["top_n"], self.model_name) as kept:
            kept.extend(self._rank(query.query_str, pool, use))
        return kept

    @dispatcher.span
    async def arerank(
        self,
        query: QueryBundle,
        nodes: Sequence[NodeWithScore],
        pool: NodePool,
        callback_manager: CallbackManager | None = None,
        **settings: Any,
    ) -> list[NodeWithScore]:
        """Rank nodes whose sources are known, while the event loop goes on.

        The model computes in a thread of its own; ``llm`` is awaited on the loop. A cancellation
        returns at once.

        Args:
            query: The query, with a text.
            nodes: The nodes, for handlers of events.
            pool: The nodes by source.
            callback_manager: Who is told; None for this object's own.
            **settings: Settings of the reranker for this call.

        Returns:
            As :meth:`rerank`.
        """
        loop = OnLoop()

        def write(question: str, texts: list[str]) -> str:  # called in the thread that ranks
            asked = self._llm().apredict(self.draft_prompt, **_draft_values(question, texts))
            return _as_text(loop.wait_for(asked))

        use = self._settings(settings, write)
        manager = callback_manager or self.callback_manager
        with announced(manager, query, nodes, use["top_n"], self.model_name) as kept, loop:
            kept.extend(await run_blocking(self._rank, query.query_str, pool, use))
        return kept

    def _rank(self, query: str, pool: NodePool, use: Mapping[str, Any]) -> list[RankedNode]:
        if pool.is_empty:  # nothing to load a model for
            result = RerankResult(query, (), (), dropped=pool.dropped)
        else:
            result = self._holder().get().rerank(query, pool.sources, **use)
        dispatcher.event(GradRerankEvent(result=result))
        return [pool.ranked(document) for document in result] + pool.media(result.dropped, use["weights"])

    def _pool(self, nodes: Sequence[NodeWithScore]) -> NodePool:
        """Nodes by the source that they name; one that only settings name may have found nothing."""
        named = (*(self.weights or ()), *(self.per_source or ()))
        found = by_source(nodes, self.source_key)
        return NodePool({name: found.get(name, []) for name in (*named, *found)}, self.metadata_mode, self.title_key)

    def _settings(self, given: Mapping[str, Any], writer: DraftWriter) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in SETTINGS}
        return own | ({} if self.llm is None else {"draft_writer": writer}) | dict(given)

    def _llm(self) -> LLM:
        if self.llm is None:
            raise InvalidArgumentError("llm is None, so there is nobody to write a draft")
        return self.llm

    @property
    def model_name(self) -> str:
        """Name of the scoring model, also before it is loaded."""
        holder = self._holder()
        return holder.get().generator.name if holder.loaded else self.model or HUB_NAME

    def _holder(self) -> LazyReranker:
        """The holder of the model; a copy that was made with another model has none yet."""
        options = {name: getattr(self, name) for name in ("model", "device", "dtype", "encoder")}
        if isinstance(self.encoder, BaseEmbedding):
            options["encoder"] = self.encoder.get_text_embedding_batch
        if self._lazy is None or not self._lazy.made_from(self.reranker, **options):
            self._lazy = LazyReranker(self.reranker, **options)
        return self._lazy

    # -- prompts -----------------------------------------------------------------------------------

    def _get_prompts(self) -> PromptDictType:
        return {"draft_prompt": self.draft_prompt}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        if "draft_prompt" in prompts:
            self.draft_prompt = prompts["draft_prompt"]

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    # -- validation --------------------------------------------------------------------------------

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, given: Any) -> Any:
        """Settings that are not given are those of a ready reranker."""
        if not isinstance(given, dict):
            return given
        for name in OBJECTS:
            if isinstance(given.get(name), Mapping) and _TOLD in given[name]:
                raise InvalidTypeError(
                    f"{name} was the object {given[name][_TOLD]}, which serialized data does not hold; give it again: "
                    f"from_dict(data, {name}=...)"
                )
        own = getattr(given.get("reranker"), "settings", None)
        inherited = {name: getattr(own, name) for name in SETTINGS} if isinstance(own, Settings) else {}
        if "weights" not in given and isinstance(inherited.get("weights"), Sequence):
            raise InvalidArgumentError("the reranker has weights by position; give weights by the name of the source")
        return inherited | given

    @field_validator(*SETTINGS, mode="before")
    @classmethod
    def _check_setting(cls, value: Any, info: ValidationInfo) -> Any:
        return check_setting(str(info.field_name), value)

    @field_validator("device", "dtype", mode="before")
    @classmethod
    def _check_place(cls, value: Any, info: ValidationInfo) -> str | None:
        return check_place(str(info.field_name), value)

    @field_validator("draft_prompt", mode="before")
    @classmethod
    def _check_prompt(cls, value: Any, info: ValidationInfo) -> Any:
        """None stands for the words around the documents that the scoring model reads."""
        if value is None:
            reranker: Any = info.data.get("reranker")
            ready = isinstance(getattr(reranker, "settings", None), Settings)  # anything else is refused later
            words = reranker.generator.layout.texts if ready else PromptTexts()
            escaped = {name: str(getattr(words, name)).replace("{", "{{").replace("}", "}}") for name in _WORDS}
            return PromptTemplate(draft_prompt(PromptTexts(**escaped), "{query_str}", ["{context_str}"]))
        return PromptTemplate(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        try:
            self._holder()
        except InvalidTypeError as error:
            raise InvalidArgumentError(str(error)) from error
        if self.target == "reference":
            raise InvalidArgumentError(
                "target='reference' needs an answer to each query, which a postprocessor is not given; call "
                "GradReranker.rerank(..., reference=...) or choose target='draft'"
            )
        if self.llm is not None and self.target != "draft":
            raise InvalidArgumentError(f"llm writes the draft of target='draft', but target is {self.target!r}")
        return self

    # -- copies and dumps --------------------------------------------------------------------------

    @field_serializer(*OBJECTS)
    def _dump_object(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else {_TOLD: _class_of(value)}

    @field_serializer("draft_prompt")
    def _dump_prompt(self, value: BasePromptTemplate) -> str:
        return value.get_template()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Only what was given and is not the default; an object by the name of its class."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            if name not in self.model_fields_set or name == "callback_manager" or value is None:
                continue
            if not isinstance(value, (str, int, float, dict)):
                yield name, _Shown(value)
            elif value != field.default:
                yield name, value.value if isinstance(value, MetadataMode) else value

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """A copy with settings of its own that shares models, handlers and other objects."""
        return self.model_copy(update={name: copy.copy(getattr(self, name)) for name in ("weights", "per_source")})

    def __getstate__(self) -> dict[Any, Any]:
        """Configuration only; a ready model is refused, and handlers of callbacks stay behind."""
        self._holder().__reduce__()
        fields = {name: getattr(self, name) for name in type(self).model_fields if name != "callback_manager"}
        return {"fields": fields, "given": self.model_fields_set}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        """Start afresh from the configuration."""
        self.__init__(**state["fields"])  # type: ignore[misc]
        self.__pydantic_fields_set__.intersection_update(state["given"])


class _Shown:
    """Stands for an object in a repr."""

    def __init__(self, value: Any) -> None:
        self._shown = f"<{_class_of(value)}>"

    def __repr__(self) -> str:
        return self._shown


_WORDS = ("system", "introduction", "question")


def _draft_values(query: str, texts: Sequence[str]) -> dict[str, str]:
    return {"query_str": query, "context_str": "\n\n".join(texts)}


def _as_text(written: Any) -> str:
    if not isinstance(written, str):
        raise ScoringError(f"llm must write a str, got {type(written).__name__}")
    return written


def _class_of(value: Any) -> str:
    """The class of an object, or of the first of a pair."""
    kind = type(value[0] if isinstance(value, tuple) and value else value)
    return kind.__name__
