"""Documents into caches: each read once, on its own, right after a prefix that all share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

import torch
from tqdm.auto import tqdm

from gradrerank.errors import ContextOverflowError, ScoringError, UnsupportedModelError
from gradrerank.lm.engine import Engine
from gradrerank.lm.gates import Reading
from gradrerank.lm.kv_store import DocumentCache, DocumentStore, store_key
from gradrerank.lm.limits import check_memory
from gradrerank.lm.memory import Memory
from gradrerank.lm.retrying import in_batches

# Tokens that pass through the model together at most, unless one document alone has more.
_TOKENS_AT_ONCE = 4096


class Reader:
    """Reads documents with one model behind one prefix.

    Args:
        engine: The model.
        prefix: Token ids before every document; at least one.
        limit: Most tokens of prefix and document together.
        store: Where caches are kept.
        batch_size: Documents that are read together; fewer where memory runs out.
        decode: Text of token ids, for messages.
        progress: Whether to show a progress bar on stderr while several batches are read; None shows it on
            a terminal.
    """

    def __init__(
        self,
        engine: Engine,
        prefix: Sequence[int],
        *,
        limit: int,
        store: DocumentStore,
        batch_size: int,
        decode: Callable[[Sequence[int]], str],
        progress: bool | None = False,
    ) -> None:
        self.engine = engine
        self.prefix_ids = tuple(prefix)
        self.limit = limit
        self.store = store
        self.batch_size = batch_size
        self._decode = decode
        self.progress = progress
        self._prefix: tuple[str, Memory] | None = None

    def prefix(self) -> Memory:
        """The caches of the prefix, read again when the weights changed.

        Raises:
            UnsupportedModelError: When no attention layer of the model asks for the gates.
        """
        version = self.engine.fingerprint()
        if self._prefix is None or self._prefix[0] != version:
            self._prefix = (version, self._read_prefix())
        return self._prefix[1]

    def _any_prefix(self) -> Memory:
        """The caches of the prefix for their shape, which no update of the weights changes."""
        return self.prefix() if self._prefix is None else self._prefix[1]

    @property
    def n_layers(self) -> int:
        """Number of attention layers."""
        return self._any_prefix().n_layers

    @property
    def bytes_per_token(self) -> int:
        """Bytes of keys and values of one token in all layers."""
        return self._any_prefix().parts[0].nbytes // len(self.prefix_ids)

    def read(self, documents: Sequence[Sequence[int]], tokens: Counter[str] | None = None) -> list[DocumentCache]:
        """Caches of documents; one that is in the store sends no token through the model.

        Args:
            documents: Token ids of n documents.
            tokens: Counts the tokens that pass through the model, under ``"documents"``.

        Returns:
            n caches in the same order.

        Raises:
            ContextOverflowError: When a document is longer than the context, or the caches of all are
                more than fits in memory.
            ScoringError: When the model makes numbers of a document that are not finite.
        """
        keys = self._keys(documents)
        ids = dict(zip(keys, documents, strict=True))
        found = {key: cache for key in ids if (cache := self._stored(key)) is not None}
        missing = [key for key in ids if key not in found]
        n_new = sum(len(ids[key]) for key in missing)
        check_memory(n_new, len(missing), self.bytes_per_token, self.engine.device)
        hidden = len(missing) <= self.batch_size or (None if self.progress is None else not self.progress)
        with tqdm(total=len(missing), desc="reading", unit="document", leave=False, disable=hidden) as bar:
            for batch in self._batches(missing, ids):
                found |= self._encoded(batch, ids)
                bar.update(len(batch))
        if tokens is not None:
            tokens["documents"] += n_new
        return [found[key] for key in keys]

    def store_missing(self, documents: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """Encode what the store lacks and keep nothing else, batch by batch.

        Args:
            documents: Token ids of n documents.

        Yields:
            For each batch the number of documents and of tokens that went through the model; the first
            item stands for the documents that were there already and has no tokens.
        """
        ids = dict(zip(self._keys(documents), documents, strict=True))
        # Read, not only looked up: a file that is there may be torn.
        missing = [key for key in ids if self.store.get(key) is None]
        yield len(documents) - len(missing), 0
        for batch in self._batches(missing, ids):
            self._encoded(batch, ids)
            yield len(batch), sum(len(ids[key]) for key in batch)

    def encode(self, sequences: Sequence[Sequence[int]]) -> list[DocumentCache]:
        """Encode one batch of documents, whatever the store holds.

        They pass through the model as one row without padding; in attention, each sees the prefix and
        itself.

        Args:
            sequences: Token ids of n documents, each at least one.

        Returns:
            n caches.

        Raises:
            ContextOverflowError: When a document is longer than the context.
        """
        first, longest = len(self.prefix_ids), max(map(len, sequences))
        if first + longest > self.limit:
            raise ContextOverflowError(
                f"a document of {longest} tokens and the template of {first} are more than the context of {self.limit}"
            )
        ends = list(accumulate(map(len, sequences)))
        texts = list(zip([0, *ends[:-1]], ends, strict=True))
        device, prefix = self.engine.device, self.prefix()
        with self.engine.exact_mode(grad=False):
            ids = torch.tensor([[token for sequence in sequences for token in sequence]], device=device)
            positions = torch.cat([torch.arange(first, first + len(sequence)) for sequence in sequences]).to(device)
            job = Reading(memory=prefix, positions=positions, texts=texts, record_layers=prefix.n_layers)
            self.engine.record(ids, job)
            return [
                DocumentCache(
                    keys=torch.stack([layer[0, :, start:end] for layer in job.keys]),
                    values=torch.stack([layer[0, :, start:end] for layer in job.values]),
                )
                for start, end in texts
            ]

    def assemble(self, caches: Sequence[DocumentCache], spans: Sequence[Sequence[int]] | None = None) -> Memory:
        """Lay caches side by side behind the prefix.

        Args:
            caches: n caches.
            spans: For each document the span index of each of its tokens; None makes every document
                one span, in order.

        Returns:
            The memory that a continuation attends to.
        """
        prefix, device = self.prefix(), self.engine.device
        if spans is None:
            spans = [[i] * len(c) for i, c in enumerate(caches)]
        n_spans = 1 + max((max(s) for s in spans if len(s)), default=-1)
        first = len(self.prefix_ids)
        positions = [torch.arange(first), *(torch.arange(first, first + len(c)) for c in caches)]
        owner = [n_spans] * first + [span for document in spans for span in document]
        with self.engine.exact_mode(grad=False):
            return Memory(
                parts=[*prefix.parts, *caches],
                positions=torch.cat(positions).to(device),
                spans=torch.tensor(owner, device=device),
                n_spans=n_spans,
            )

    def _encoded(self, batch: Sequence[str], ids: dict[str, Sequence[int]]) -> dict[str, DocumentCache]:
        """Encode a batch and put it into the store."""
        texts = [ids[key] for key in batch]
        caches = in_batches(texts, len(texts), self.encode, f"a document of {max(map(len, texts))} tokens")
        for text, cache in zip(texts, caches, strict=True):
            self._check_finite(cache, text)
        for key, cache in zip(batch, caches, strict=True):
            self.store.put(key, cache)
        return dict(zip(batch, caches, strict=True))

    def _check_finite(self, cache: DocumentCache, text: Sequence[int]) -> None:
        """Refuse what would spoil the scores of all documents that stand beside it, now and from the store."""
        if all(bool(part.isfinite().all()) for part in (cache.keys, cache.values)):
            return
        raise ScoringError(
            f"the document {self._decode(text)[:60].strip()!r} ({len(text)} tokens) becomes numbers that are not "
            f"finite in {self.engine.name} in {self.engine.dtype}; a dtype of wider range, such as 'bfloat16' or "
            "'float32', may help"
        )

    def _keys(self, documents: Sequence[Sequence[int]]) -> list[str]:
        fingerprint = self.engine.fingerprint()
        return [store_key(fingerprint, self.prefix_ids, ids) for ids in documents]

    def _batches(self, keys: Sequence[str], ids: dict[str, Sequence[int]]) -> Iterator[Sequence[str]]:
        """Batches of at most ``batch_size`` documents, and of a bounded number of tokens."""
        batch: list[str] = []
        for key in keys:
            if batch and (len(batch) == self.batch_size or sum(len(ids[k]) for k in [*batch, key]) > _TOKENS_AT_ONCE):
                yield batch
                batch = []
            batch.append(key)
        if batch:
            yield batch

    def _stored(self, key: str) -> DocumentCache | None:
        """A stored cache on the model's device."""
        cache = self.store.get(key)
        if cache is None or cache.keys.device == self.engine.device:
            return cache
        return DocumentCache(cache.keys.to(self.engine.device), cache.values.to(self.engine.device))

    def _read_prefix(self) -> Memory:
        with self.engine.exact_mode(grad=False):
            positions = torch.arange(len(self.prefix_ids), device=self.engine.device)
            job = Reading(memory=None, positions=positions, record_layers=None)
            self.engine.record(torch.tensor([self.prefix_ids], device=self.engine.device), job)
            if not job.layer:
                raise UnsupportedModelError("its attention does not go through transformers' AttentionInterface")
            keys, values = (torch.stack([layer[0] for layer in found]) for found in (job.keys, job.values))
            return Memory(
                parts=[DocumentCache(keys, values)],
                positions=positions,
                spans=torch.zeros_like(positions),
                n_spans=0,
            )
