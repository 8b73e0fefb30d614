"""What the frozen language model is asked: how well does it predict a target behind some documents?

``Generator`` gives the loss of a target under any gates, its gradient in the gates, and writes
drafts. It knows nothing of ranking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from gradrerank.errors import ContextOverflowError, InvalidArgumentError, InvalidTypeError
from gradrerank.lm.check import check_gates
from gradrerank.lm.engine import Engine
from gradrerank.lm.gates import Reading
from gradrerank.lm.kv_store import DocumentStore
from gradrerank.lm.limits import context_limit
from gradrerank.lm.memory import Memory
from gradrerank.lm.prompt import Continuation, DocumentTokens, PromptLayout, PromptTexts
from gradrerank.lm.reader import Reader
from gradrerank.lm.retrying import in_batches, naming_lack_of_memory
from gradrerank.lm.tokens import ContentTokenizer
from gradrerank.validation import check_count, check_optional_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Loss of every token of the target, for several rows.

    Args:
        losses: [rows, K] negative log-likelihoods in nats; 0 where a row's target has no token.
        counts: [rows], number of target tokens of each row.
    """

    losses: Tensor
    counts: Tensor

    @property
    def mean(self) -> Tensor:
        """[rows], mean over the target's tokens."""
        return self.losses.sum(-1) / self.counts


@dataclass(frozen=True, slots=True)
class GateGradients:
    """The loss at some gates and its gradient in them.

    Args:
        loss: [rows], mean negative log-likelihood of the target's tokens, in nats.
        gradients: [rows, layers, heads, S] for the layers that were asked for.
    """

    loss: Tensor
    gradients: Tensor


class Generator:
    """A causal language model, frozen, with its tokenizer and its document store.

    Args:
        model: A causal LM of transformers; left exactly as it is.
        tokenizer: Its fast tokenizer; left exactly as it is.
        name: Name for error messages; None takes the model's own.
        texts: The words around the documents.
        use_chat_template: None uses the chat template where there is one; False never does.
        max_context: Most tokens of a prompt; None takes the model's own limit.
        store: Where document caches are kept, to be shared by several generators; None makes one.
        batch_size: Documents that are read together.
        show_progress: Whether to show a progress bar on stderr while many documents are read; None shows
            it on a terminal.
        tried: Whether it is known that attention can be gated in this very model with these releases of
            torch and transformers; False tries it (see :func:`gradrerank.lm.check.check_gates`).

    Raises:
        UnsupportedModelError: When attention cannot be gated in this model, or the tokenizer or the
            chat template cannot be used.

    Example:
        >>> generator = load_generator()                                    # doctest: +SKIP
        >>> documents = generator.layout.documents([(None, "Trams run hourly.")])  # doctest: +SKIP
        >>> memory = generator.remember(documents)                          # doctest: +SKIP
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        texts: PromptTexts | None = None,
        use_chat_template: bool | None = None,
        max_context: int | None = None,
        store: DocumentStore | None = None,
        batch_size: int = 16,
        show_progress: bool | None = False,
        tried: bool = False,
    ) -> None:
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        _check_pair(model, tokenizer)
        self.engine = Engine(model, self.name, lasting=store is not None)
        self.tokenizer = ContentTokenizer(tokenizer, name=self.name, vocabulary=len(self.engine.embedding))
        self.layout = PromptLayout(self.tokenizer, texts, name=self.name, use_chat_template=use_chat_template)
        max_context = check_optional_count("max_context", max_context)
        self.limit = context_limit(model.config, self.tokenizer.model_max_length, max_context)
        if self.limit <= len(self.layout.prefix) + len(self.layout.tail):
            raise InvalidArgumentError(
                f"max_context={max_context} leaves no room: the template alone takes "
                f"{len(self.layout.prefix) + len(self.layout.tail)} tokens of a context of {self.limit}"
            )
        self.reader = Reader(
            self.engine,
            self.layout.prefix,
            limit=self.limit,
            store=DocumentStore() if store is None else store,
            batch_size=check_count("batch_size", batch_size),
            decode=self.tokenizer.decode,
            progress=show_progress,
        )
        if not tried:
            check_gates(self)

    @property
    def plain(self) -> PreTrainedModel:
        """A private view of the model as it is."""
        return self.engine.plain

    @property
    def store(self) -> DocumentStore:
        """Where document caches are kept."""
        return self.reader.store

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.engine.device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the model."""
        return self.engine.dtype

    @property
    def n_layers(self) -> int:
        """Number of attention layers."""
        return self.reader.n_layers

    @property
    def n_heads(self) -> int:
        """Number of query heads of each layer."""
        return self.engine.n_heads

    def exact_mode(self, *, grad: bool) -> AbstractContextManager[Any]:
        """See :meth:`gradrerank.lm.engine.Engine.exact_mode`."""
        return self.engine.exact_mode(grad=grad)

    def remember(
        self,
        documents: Sequence[DocumentTokens],
        spans: Sequence[Sequence[int]] | None = None,
        tokens: Counter[str] | None = None,
    ) -> Memory:
        """Read documents and lay their caches side by side behind the prefix.

        Args:
            documents: n documents.
            spans: For each document the span index of each of its tokens; None makes every document
                one span, in order.
            tokens: Counts the tokens that pass through the model, under ``"documents"``.

        Returns:
            The memory that a continuation attends to.
        """
        return self.reader.assemble(self.reader.read([d.ids for d in documents], tokens), spans)

    def losses(self, memory: Memory, continuation: Continuation, gates: Tensor) -> Tensor:
        """Loss of one target under several settings of the gates, without gradient.

        Args:
            memory: What the model has read.
            continuation: Question and target.
            gates: [rows, S], the same for all layers and heads.

        Returns:
            [rows, target tokens] negative log-likelihoods in nats, float32 or wider.

        Raises:
            ContextOverflowError: When there is no memory for a single row.
        """

        def read(rows: Sequence[int]) -> Sequence[Tensor]:
            shared = [self._per_head(gates[list(rows)])] * self.n_layers
            return self.token_losses(memory, [continuation] * len(rows), shared).losses.unbind()

        with self.exact_mode(grad=False):
            return torch.stack(in_batches(range(len(gates)), len(gates), read, _behind(memory)))

    def gate_gradients(
        self,
        memory: Memory,
        continuations: Continuation | Sequence[Continuation],
        gates: Tensor,
        layers: Sequence[int] | None = None,
        *,
        removal: float = 0.0,
    ) -> GateGradients:
        """Loss of targets and its gradient in the gate of every layer, head and span.

        The backward pass stops at the lowest of the layers that are asked for.

        Args:
            memory: What the model has read.
            continuations: Question and target of each row, or one for all rows.
            gates: [rows, S], the point at which the gradient is taken.
            layers: Layers whose gates get a gradient; None for all.
            removal: What a gradient is, between a slope (0) and removing the span from every head (1); see
                :mod:`gradrerank.lm.gated_attention`.

        Returns:
            Loss and gradients; the gradient of a row's loss in its own gates.

        Raises:
            ContextOverflowError: When there is no memory for a single row.
        """
        targets = [continuations] * len(gates) if isinstance(continuations, Continuation) else continuations
        chosen = list(range(self.n_layers)) if layers is None else list(layers)

        def read(rows: Sequence[int]) -> Sequence[tuple[Tensor, Tensor]]:
            shared = self._per_head(gates.detach()[list(rows)])
            leaves = {i: shared.clone().requires_grad_() for i in chosen}
            at = [leaves.get(i, shared) for i in range(self.n_layers)]
            loss = self.token_losses(memory, [targets[i] for i in rows], at, removal=removal).mean
            slopes = torch.autograd.grad(loss.sum(), list(leaves.values()))
            return list(zip(loss.detach(), torch.stack(slopes, dim=1), strict=True))

        with self.exact_mode(grad=True):
            found = in_batches(range(len(gates)), len(gates), read, f"a gradient, {_behind(memory)}")
        return GateGradients(*(torch.stack(parts) for parts in zip(*found, strict=True)))

    def token_losses(
        self, memory: Memory, rows: Sequence[Continuation], gates: Sequence[Tensor], *, removal: float = 0.0
    ) -> TokenLosses:
        """Losses of targets behind a memory, in the gradient mode that is on.

        Rows are padded on the right, and only positions that predict some row's target are projected.

        Args:
            memory: What the model has read.
            rows: Question and target of each row.
            gates: For each layer [rows, heads, S].
            removal: What their gradients are to be, as in :meth:`gate_gradients`.

        Returns:
            The losses; rows of equal lengths have no padding.
        """
        logits, labels = self._target_logits(memory, rows, gates, removal)
        wide = logits.to(self.engine.wide)
        losses = functional.cross_entropy(wide.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=_NONE)
        counts = torch.tensor([len(row.target) for row in rows], device=self.device)
        return TokenLosses(losses.view(labels.shape), counts)

    def logits(self, memory: Memory, continuation: Continuation) -> Tensor:
        """[target tokens, vocabulary] logits that predict a target with all gates open."""
        with self.exact_mode(grad=False):
            gates = [self._per_head(torch.ones(1, memory.n_spans))] * self.n_layers
            return self._target_logits(memory, [continuation], gates)[0][0]

    def check_fits(
        self,
        documents: Sequence[DocumentTokens],
        continuation: Continuation,
        names: Sequence[str],
        sources: Sequence[Sequence[str]] = (),
    ) -> None:
        """Check the lengths before anything passes through the model.

        Args:
            documents: n documents.
            continuation: Question and target.
            names: What to call each of the n documents in the message.
            sources: Names of the sources that found each of them, or nothing where there are none.

        Raises:
            ContextOverflowError: When the longest document with prefix, question and target is
                longer than the context. Documents lie side by side, so their number does not count.
        """
        longest = max((len(d) for d in documents), default=0)
        needed = len(self.layout.prefix) + longest + len(continuation)
        if needed <= self.limit:
            return
        frame = f"template {len(self.layout.prefix)}, question and target {len(continuation)}"
        at = max(range(len(documents)), key=lambda i: len(documents[i]), default=None)
        if at is None or len(self.layout.prefix) + len(continuation) >= self.limit:
            raise ContextOverflowError(f"the query does not fit: {frame} tokens of a context of {self.limit}")
        origin = f" (source {', '.join(map(repr, sources[at]))})" if sources else ""
        raise ContextOverflowError(
            f"document {names[at]!r} is longer than the model's context: {longest} tokens with {frame} tokens are "
            f"more than {self.limit}{origin}; pass max_document_tokens to read only its beginning"
        )

    def write(
        self,
        query: str,
        documents: Sequence[DocumentTokens],
        *,
        max_new_tokens: int,
        tokens: Counter[str] | None = None,
    ) -> str:
        """Write an answer from one ordinary prompt, greedily.

        Args:
            query: The query.
            documents: In the order in which they stand in the prompt; as many as fit are used.
            max_new_tokens: Most tokens of the answer.
            tokens: Counts prompt and answer under ``"draft"``.

        Returns:
            The answer; may be empty when the model has nothing to say.
        """
        from transformers import GenerationConfig

        prompt = self.layout.ordinary_prompt(query, documents, limit=self.limit - max_new_tokens)
        own = self.plain.generation_config
        end = own.eos_token_id if own is not None else None
        settings = GenerationConfig(
            max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=end, pad_token_id=_first(end)
        )
        with self.exact_mode(grad=False), naming_lack_of_memory(f"a draft behind {len(prompt)} tokens"):
            ids = torch.tensor([prompt], device=self.device)
            generate: Any = self.plain.generate
            output = generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        written = output[0, len(prompt) :].tolist()
        if tokens is not None:
            tokens["draft"] += len(prompt) + len(written)
        return self.tokenizer.decode(written).strip()

    def __deepcopy__(self, memo: dict[int, Any]) -> Generator:
        """A copy shares the model: weights are never duplicated by copying a reranker."""
        return self

    def __reduce__(self) -> Any:
        """Weights are not pickled."""
        raise TypeError(
            f"a Generator holds the weights of {self.name} and is not pickled; pickle the GradReranker that was "
            "made from a model name, which loads it again, or make it from the name in the new process"
        )

    def _target_logits(
        self, memory: Memory, rows: Sequence[Continuation], gates: Sequence[Tensor], removal: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        """[rows, K, vocabulary] logits and [rows, K] labels of the K positions that predict a target."""
        length = max(map(len, rows))
        first = min(len(row.question) for row in rows) - 1
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        labels = torch.full((len(rows), length), _NONE)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = torch.tensor(row.question + row.target[:-1])
            labels[i, len(row.question) - 1 : len(row)] = torch.tensor(row.target)
        positions = memory.positions.max() + 1 + torch.arange(length, device=self.device)
        job = Reading(memory=memory, positions=positions, gates=list(gates), removal=removal)
        keep = torch.arange(first, length, device=self.device)
        return self.engine.logits(ids.to(self.device), job, keep), labels[:, first:].to(self.device)

    def _per_head(self, gates: Tensor) -> Tensor:
        """[rows, S] gates as [rows, heads, S], at least in float32."""
        # A copy, since gates that were made inside inference mode could not be saved for backward.
        wide = gates.to(self.device, self.engine.wide, copy=True)
        return wide[:, None, :].expand(-1, self.n_heads, -1)


def _behind(memory: Memory) -> str:
    return f"one question behind {len(memory)} tokens of documents"


# Label of a position that predicts nothing.
_NONE = -100


def _check_pair(model: object, tokenizer: object) -> None:
    for name, part, needed in (("model", model, "get_input_embeddings"), ("tokenizer", tokenizer, "decode")):
        if not hasattr(part, needed):
            raise InvalidTypeError(
                f"a (model, tokenizer) pair is a model and a tokenizer of transformers, but its {name} is a "
                f"{type(part).__name__}"
            )


def _first(ids: int | list[int] | None) -> int | None:
    return ids[0] if isinstance(ids, list) else ids
