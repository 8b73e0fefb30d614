"""The frozen language model: read documents once, then ask what they are worth.

``Generator`` reads documents into caches, gives the loss of a target behind them under any gates,
its gradient in the gates, and writes drafts. It knows nothing of ranking.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional

from gradrerank.errors import ContextOverflowError, UnsupportedModelError
from gradrerank.lm import gates as gated
from gradrerank.lm.check import check_gates
from gradrerank.lm.gates import Memory, Reading
from gradrerank.lm.kv_store import DocumentCache, DocumentStore, StoreKey
from gradrerank.lm.limits import check_memory, context_limit
from gradrerank.lm.prompt import Continuation, DocumentTokens, PromptLayout, PromptTexts
from gradrerank.lm.tokens import ContentTokenizer
from gradrerank.lm.view import private_view
from gradrerank.validation import check_count, check_optional_count

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class GateGradients:
    """The loss at some gates and its gradient in them.

    Args:
        loss: [rows], mean negative log-likelihood of the target's tokens, in nats.
        token_losses: [rows, target tokens].
        gradients: [rows, layers, heads, S] for the layers that were asked for.
    """

    loss: Tensor
    token_losses: Tensor
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
        cache_bytes: Most bytes of document caches that are kept for later calls.
        batch_size: Documents that are read together.

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
        cache_bytes: int = 1 << 30,
        batch_size: int = 16,
    ) -> None:
        self.name = name or getattr(model, "name_or_path", "") or type(model).__name__
        rows = int(_embedding(model).shape[0])
        self.tokenizer = ContentTokenizer(tokenizer, name=self.name, vocabulary=rows)
        self.layout = PromptLayout(self.tokenizer, texts, name=self.name, use_chat_template=use_chat_template)
        self.limit = context_limit(
            model.config, self.tokenizer.model_max_length, check_optional_count("max_context", max_context)
        )
        self.store = DocumentStore(cache_bytes)
        self.batch_size = check_count("batch_size", batch_size)
        gated.register()
        self.plain = private_view(model)
        self._gated = private_view(model, attention=gated.ATTENTION_NAME)
        self._identity = uuid.uuid4().hex
        self._prefix: tuple[str, Memory] | None = None
        check_gates(self)
        self.store.clear()

    @property
    def device(self) -> torch.device:
        """Device of the model's input embedding."""
        return _embedding(self.plain).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the model's input embedding."""
        return _embedding(self.plain).dtype

    @property
    def n_layers(self) -> int:
        """Number of attention layers."""
        return int(self.prefix().keys.shape[0])

    @property
    def n_heads(self) -> int:
        """Number of query heads of each layer."""
        heads: int = self.plain.config.get_text_config().num_attention_heads
        return heads

    def fingerprint(self) -> str:
        """Changes when another model, other weights or another dtype would give other caches.

        In-place updates of the weights are seen by the version counters of their tensors.
        """
        versions = sum(p._version for p in self.plain.parameters())
        return f"{self._identity}:{self.dtype}:{versions}"

    def exact_mode(self, *, grad: bool) -> AbstractContextManager[Any]:
        """Gradient mode for one computation, whatever mode the caller's thread is in.

        Inference mode must be left, since its tensors cannot be saved for a backward pass, and
        autocast would make the numbers depend on the caller.
        """
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad() if grad else torch.no_grad())
        stack.enter_context(torch.autocast(self.device.type, enabled=False))
        return stack

    # -- reading documents ---------------------------------------------------------------------

    def read(self, documents: Sequence[DocumentTokens], tokens: Counter[str] | None = None) -> list[DocumentCache]:
        """Encode documents into caches, each on its own right after the prefix.

        Args:
            documents: n documents; one that is in the store sends no token through the model.
            tokens: Counts the tokens that did, under ``"documents"``.

        Returns:
            n caches in the same order.

        Raises:
            ContextOverflowError: When a document is longer than the context, or all of them are more
                than fits in memory.
        """
        prefix, fingerprint = self.prefix(), self.fingerprint()
        keys: list[StoreKey] = [(fingerprint, self.layout.prefix, d.ids) for d in documents]
        found = {key: cache for key in dict.fromkeys(keys) if (cache := self.store.get(key)) is not None}
        missing = sorted(set(keys) - set(found), key=lambda key: (len(key[2]), key[2]))
        n_new = sum(len(key[2]) for key in missing)
        per_token = (prefix.keys.nbytes + prefix.values.nbytes) // max(len(self.layout.prefix), 1)
        check_memory(n_new + sum(map(len, documents)), len(documents), per_token, self.device)
        for start in range(0, len(missing), self.batch_size):
            batch = missing[start : start + self.batch_size]
            for key, cache in zip(batch, self._encode([key[2] for key in batch], prefix), strict=True):
                found[key] = cache
                self.store.put(key, cache)
        if tokens is not None:
            tokens["documents"] += n_new
        return [found[key] for key in keys]

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
            tokens: See :meth:`read`.

        Returns:
            The memory that a continuation attends to.
        """
        caches = self.read(documents, tokens)
        prefix = self.prefix()
        if spans is None:
            spans = [[i] * len(d) for i, d in enumerate(documents)]
        n_spans = 1 + max((max(s) for s in spans if len(s)), default=-1)
        first = len(self.layout.prefix)
        positions = [torch.arange(first), *(torch.arange(first, first + len(d)) for d in documents)]
        owner = [n_spans] * first + [span for document in spans for span in document]
        with self.exact_mode(grad=False):
            return Memory(
                keys=torch.cat([prefix.keys, *(c.keys for c in caches)], dim=2),
                values=torch.cat([prefix.values, *(c.values for c in caches)], dim=2),
                positions=torch.cat(positions).to(self.device),
                spans=torch.tensor(owner, device=self.device),
                n_spans=n_spans,
            )

    # -- the loss behind the documents ---------------------------------------------------------

    def losses(self, memory: Memory, continuation: Continuation, gates: Tensor) -> Tensor:
        """Loss of the target under several settings of the gates, without gradient.

        Args:
            memory: What the model has read.
            continuation: Question and target.
            gates: [rows, S], the same for all layers and heads.

        Returns:
            [rows, target tokens] negative log-likelihoods in nats, float32 or wider.
        """
        with self.exact_mode(grad=False):
            return self._token_losses(memory, continuation, [self._per_head(gates)] * self.n_layers)

    def logits(self, memory: Memory, continuation: Continuation, gates: Tensor) -> Tensor:
        """Logits that predict the target, without gradient.

        Args:
            memory: What the model has read.
            continuation: Question and target.
            gates: [rows, S], the same for all layers and heads.

        Returns:
            [rows, target tokens, vocabulary] logits in the model's dtype.
        """
        with self.exact_mode(grad=False):
            return self._target_logits(memory, continuation, [self._per_head(gates)] * self.n_layers)

    def gate_gradients(
        self, memory: Memory, continuation: Continuation, gates: Tensor, layers: Sequence[int] | None = None
    ) -> GateGradients:
        """Loss of the target and its gradient in the gate of every layer, head and span.

        The backward pass stops at the lowest of the layers that are asked for.

        Args:
            memory: What the model has read.
            continuation: Question and target.
            gates: [rows, S], the point at which the gradient is taken.
            layers: Layers whose gates get a gradient; None for all.

        Returns:
            Loss and gradients; the gradient of a row's loss in its own gates.
        """
        chosen = list(range(self.n_layers)) if layers is None else list(layers)
        with self.exact_mode(grad=True):
            shared = self._per_head(gates.detach())
            leaves = {i: shared.clone().requires_grad_() for i in chosen}
            token_losses = self._token_losses(
                memory, continuation, [leaves.get(i, shared) for i in range(self.n_layers)]
            )
            loss = token_losses.mean(-1)
            slopes = torch.autograd.grad(loss.sum(), list(leaves.values()))
        return GateGradients(loss.detach(), token_losses.detach(), torch.stack(slopes, dim=1))

    def check_fits(self, documents: Sequence[DocumentTokens], continuation: Continuation, names: Sequence[str]) -> None:
        """Check the lengths before anything passes through the model.

        Args:
            documents: n documents.
            continuation: Question and target.
            names: What to call each of the n documents in the message.

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
        raise ContextOverflowError(
            f"document {names[at]!r} is longer than the model's context: {longest} tokens with "
            f"{frame} tokens are more than {self.limit}; pass max_document_tokens to read only its beginning"
        )

    # -- writing -------------------------------------------------------------------------------

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
        with self.exact_mode(grad=False):
            ids = torch.tensor([prompt], device=self.device)
            generate: Any = self.plain.generate
            output = generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        written = output[0, len(prompt) :].tolist()
        if tokens is not None:
            tokens["draft"] += len(prompt) + len(written)
        return self.tokenizer.decode(written).strip()

    # -- inside --------------------------------------------------------------------------------

    def _per_head(self, gates: Tensor) -> Tensor:
        """[rows, S] gates as [rows, heads, S], at least in float32."""
        # A copy, since gates that were made inside inference mode could not be saved for backward.
        wide = gates.to(self.device, torch.promote_types(self.dtype, torch.float32), copy=True)
        return wide[:, None, :].expand(-1, self.n_heads, -1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Generator:
        """A copy shares the model: weights are never duplicated by copying a reranker."""
        return self

    def __reduce__(self) -> Any:
        """Weights are not pickled."""
        raise TypeError(
            f"a Generator holds the weights of {self.name} and is not pickled; pickle the GradReranker that was "
            "made from a model name, which loads it again, or make it from the name in the new process"
        )

    def _token_losses(self, memory: Memory, continuation: Continuation, gates: list[Tensor]) -> Tensor:
        """[rows, target tokens] losses."""
        logits = self._target_logits(memory, continuation, gates)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        goal = torch.tensor(continuation.target, device=self.device).expand(len(wide), -1)
        return functional.cross_entropy(wide.flatten(0, 1), goal.flatten(), reduction="none").view(goal.shape)

    def _target_logits(self, memory: Memory, continuation: Continuation, gates: list[Tensor]) -> Tensor:
        """[rows, target tokens, vocabulary]; only positions that predict the target are projected."""
        ids = torch.tensor(continuation.question + continuation.target[:-1], device=self.device)
        positions = memory.positions.max() + 1 + torch.arange(len(ids), device=self.device)
        job = Reading(memory=memory, positions=positions, gates=list(gates))
        return self.forward(ids.expand(len(gates[0]), -1), job, n_logits=len(continuation.target))

    def forward(self, ids: Tensor, job: Reading, *, n_logits: int) -> Tensor:
        """Run the gated view over new tokens.

        Args:
            ids: [rows, T] token ids.
            job: What the attention layers do.
            n_logits: Number of last positions to project on the vocabulary; 0 projects none.

        Returns:
            [rows, n_logits, vocabulary] logits, or the last hidden states when n_logits is 0.
        """
        positions = job.positions.expand(ids.shape[0], -1)
        with gated.reading(job):
            if not n_logits:
                base: Any = self._gated.base_model
                hidden: Tensor = base(input_ids=ids, position_ids=positions, use_cache=False)[0]
                return hidden
            output = self._gated(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=n_logits)
        logits: Tensor = output.logits
        return logits

    def _encode(self, sequences: list[tuple[int, ...]], prefix: Memory) -> list[DocumentCache]:
        """Caches of a batch of documents.

        Padding stands on the right, where causal attention keeps it out of every real token's sight.
        """
        first, longest = len(self.layout.prefix), max(map(len, sequences))
        if first + longest > self.limit:
            raise ContextOverflowError(
                f"a document of {longest} tokens and the template of {first} are more than the context of {self.limit}"
            )
        with self.exact_mode(grad=False):
            ids = torch.zeros(len(sequences), longest, dtype=torch.long)
            for row, sequence in enumerate(sequences):
                ids[row, : len(sequence)] = torch.tensor(sequence)
            positions = torch.arange(first, first + longest, device=self.device)
            job = Reading(memory=prefix, positions=positions, record=True)
            self.forward(ids.to(self.device), job, n_logits=0)
            return [
                DocumentCache(
                    keys=torch.stack([layer[row, :, : len(sequence)] for layer in job.keys]),
                    values=torch.stack([layer[row, :, : len(sequence)] for layer in job.values]),
                )
                for row, sequence in enumerate(sequences)
            ]

    def prefix(self) -> Memory:
        """The caches of the prefix that all documents share, encoded again when the weights changed."""
        version = self.fingerprint()
        if self._prefix is None or self._prefix[0] != version:
            self._prefix = (version, self._encode_prefix())
        return self._prefix[1]

    def _encode_prefix(self) -> Memory:
        with self.exact_mode(grad=False):
            positions = torch.arange(len(self.layout.prefix), device=self.device)
            job = Reading(memory=None, positions=positions, record=True)
            self.forward(torch.tensor([self.layout.prefix], device=self.device), job, n_logits=0)
            if not job.layer:
                raise UnsupportedModelError("its attention does not go through transformers' AttentionInterface")
            return Memory(
                keys=torch.stack([layer[0] for layer in job.keys]),
                values=torch.stack([layer[0] for layer in job.values]),
                positions=positions,
                spans=torch.zeros_like(positions),
                n_spans=0,
            )


def _embedding(model: PreTrainedModel) -> Tensor:
    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    return weight


def _first(ids: int | list[int] | None) -> int | None:
    return ids[0] if isinstance(ids, list) else ids
