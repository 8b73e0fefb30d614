r"""Methods of others in their own form: the plain model on one ordinary prompt that holds all documents.

| method        | computes                                                                   | prompts |
|---------------|----------------------------------------------------------------------------|---------|
| leave-one-out | L(all but i) - L(all)                                                      | n + 1   |
| surrogate     | weights of a Lasso fit to random subsets (ContextCite, NeurIPS 2024)       | samples |
| icr           | attention to i, minus that of a content-free query (ICR, ICLR 2025)        | 2       |
| gradient      | \|\|dL / d input embeddings of i\|\|_2 (AttriBoT's gradient norm, unsigned)    | 1 + 1   |
| upr           | -L of the query behind document i alone (UPR, EMNLP 2022)                  | n       |

L is the mean negative log-likelihood of the target's tokens, in nats. Documents that together do not
fit the model's context are cut to one length, the largest that fits, so that none is left out.
"""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradrerank.errors import ContextOverflowError
from gradrerank.evaluation.configurations import Configuration, Ranked, model_name, ranked
from gradrerank.evaluation.ledger import key_of
from gradrerank.evaluation.questions import Task
from gradrerank.lm.prompt import Continuation, DocumentTokens
from gradrerank.scorers.lasso import fit_lasso
from gradrerank.scorers.surrogate import random_masks
from gradrerank.targets import check_reference, resolve_target
from gradrerank.validation import check_choice

if TYPE_CHECKING:
    from torch import Tensor

    from gradrerank.lm.generator import Generator
    from gradrerank.reranker import GradReranker
    from gradrerank.settings import Settings


@dataclass(frozen=True, slots=True)
class Ordinary:
    """All documents of a task and a target, to be read as ordinary prompts.

    Args:
        generator: The model.
        query: The query.
        documents: n documents that fit one prompt together with the target.
        continuation: Question and target.
        tokens: Counts the tokens that pass through the model.
    """

    generator: Generator
    query: str
    documents: Sequence[DocumentTokens]
    continuation: Continuation
    tokens: Counter[str] = field(default_factory=Counter)

    def losses(self, kept: Sequence[int], continuation: Continuation | None = None) -> Tensor:
        """Loss of every token of the target behind some of the documents.

        Args:
            kept: Positions of documents, in the order in which they stand.
            continuation: Question and target; None for the own ones.

        Returns:
            [T] negative log-likelihoods in nats.
        """
        asked = continuation or self.continuation
        ids = [*self.generator.layout.prefix, *(i for d in kept for i in self.documents[d].ids), *asked.question]
        self.tokens["prompts"] += len(ids) + len(asked.target) - 1
        return target_losses(self.generator, ids, asked.target)

    def log_probability(self, kept: Sequence[int]) -> float:
        """Log-probability of the whole target behind some of the documents, in nats."""
        return -float(self.losses(kept).double().sum())


def target_losses(generator: Generator, prompt: Sequence[int], target: Sequence[int]) -> Tensor:
    """Loss of every token of a target behind one ordinary prompt.

    Args:
        generator: The model.
        prompt: Token ids before the target; at least one.
        target: Token ids whose loss is read; at least one.

    Returns:
        [T] negative log-likelihoods in nats.
    """
    import torch
    from torch.nn import functional

    with generator.exact_mode(grad=False):
        row = torch.tensor([[*prompt, *target[:-1]]], device=generator.device)
        logits = generator.plain(row, use_cache=False, logits_to_keep=len(target)).logits[0]
        labels = torch.tensor(target, device=generator.device)
        return functional.cross_entropy(logits.to(generator.engine.wide), labels, reduction="none")


def leave_one_out(prompt: Ordinary) -> list[float]:
    """How much the mean loss rises when each document is taken out of the prompt."""
    everything = range(len(prompt.documents))
    full = float(prompt.losses(everything).mean())
    return [float(prompt.losses([j for j in everything if j != i]).mean()) - full for i in everything]


def surrogate(prompt: Ordinary, samples: int = 32, alpha: float = 0.01, seed: int = 0) -> list[float]:
    """Weights of a Lasso from which documents were kept to the logit of the target's probability per token."""
    masks = random_masks(samples, len(prompt.documents), seed)
    logits = []
    for mask in masks:
        # A target that is certain has no finite logit.
        log_p = min(prompt.log_probability(np.flatnonzero(mask).tolist()), -1e-12)
        logits.append((log_p - np.log(-np.expm1(log_p))) / len(prompt.continuation.target))
    return [float(weight) for weight in fit_lasso(masks.astype(np.float64), logits, alpha).weights]


def upr(prompt: Ordinary, wording: str = "own") -> list[float]:
    """Mean log-likelihood of the query behind each document alone, whatever the target is.

    With ``wording="authors"`` it is the model's answer to the instruction of the UPR paper, else it stands
    behind the words that this package puts before every query.
    """
    layout = prompt.generator.layout
    asked = layout.query_continuation(prompt.query)
    if check_choice("wording", wording, ("own", "authors")) == "authors":
        instruction = prompt.generator.tokenizer.content([_UPR_INSTRUCTION])[0].ids + layout.tail
        asked = Continuation(instruction, layout.answer_continuation(prompt.query, prompt.query).target)
    return [-float(prompt.losses([i], asked).mean()) for i in range(len(prompt.documents))]


def gradient(prompt: Ordinary) -> list[float]:
    """Norm of the gradient of the mean loss in the input embeddings of each document's tokens."""
    import torch
    from torch.nn import functional

    generator, asked = prompt.generator, prompt.continuation
    before = [*generator.layout.prefix, *(i for d in prompt.documents for i in d.ids)]
    ids = before + [*asked.question, *asked.target[:-1]]
    prompt.tokens["prompts"] += len(ids)
    with generator.exact_mode(grad=True):
        embed = generator.plain.get_input_embeddings()
        inputs = embed(torch.tensor([ids], device=generator.device)).detach().requires_grad_()
        logits = generator.plain(inputs_embeds=inputs, use_cache=False, logits_to_keep=len(asked.target)).logits[0]
        target = torch.tensor(asked.target, device=generator.device)
        loss = functional.cross_entropy(logits.to(generator.engine.wide), target)
        (slope,) = torch.autograd.grad(loss, [inputs])
    return [float(slope[0, start:end].double().norm()) for start, end in _ranges(prompt)]


def icr(prompt: Ordinary, content_free: str = "N/A", outliers: float = 2.0) -> list[float]:
    """Attention that the tokens after the documents give each, minus that of a content-free query.

    Mean over those tokens, sum over layers, heads and the document's tokens, of which those are left out
    whose difference lies more than ``outliers`` deviations below the document's mean.
    """
    questions = [prompt.generator.layout.answer_continuation(q, "-").question for q in (prompt.query, content_free)]
    found, without = _attention_behind(prompt, questions)
    scores = []
    for start, end in _ranges(prompt):
        difference = (found - without)[start:end]
        spread = difference.std(ddof=1) if len(difference) > 1 else 0.0
        scores.append(float(difference[difference >= difference.mean() - outliers * spread].sum()))
    return scores


def _attention_behind(prompt: Ordinary, questions: Sequence[Sequence[int]]) -> NDArray[np.float64]:
    """[questions, tokens before] attention of each question to every token of the prompt before it."""
    import torch

    from gradrerank.lm.attending import attention_mass

    generator = prompt.generator
    # All documents as a single one: read apart from the question, this is the ordinary prompt.
    documents = [i for d in prompt.documents for i in d.ids]
    prompt.tokens["prompts"] += len(generator.layout.prefix) + len(documents) + sum(map(len, questions))
    memory = generator.reader.assemble(generator.reader.encode([documents]))
    heads = torch.ones(generator.n_layers, generator.n_heads, dtype=torch.bool)
    masses = [attention_mass(generator, memory, [question], [0], heads) for question in questions]
    return torch.cat(masses).double().cpu().numpy()


def _ranges(prompt: Ordinary) -> list[tuple[int, int]]:
    """Where in the prompt the tokens of every document are, the separator after it left out."""
    first, found = len(prompt.generator.layout.prefix), []
    for document in prompt.documents:
        found.append((first, first + document.body_start + len(document.body)))
        first += len(document)
    return found


def ordinary(reranker: GradReranker, task: Task, use: Settings) -> Ordinary:
    """The documents and the target of a task.

    Args:
        reranker: Gives model and layout.
        task: The task.
        use: Target and most tokens of a document.

    Raises:
        ContextOverflowError: When documents cut to 8 tokens each do not fit one prompt.
    """
    generator, tokens = reranker.generator, Counter[str]()
    pairs = [(d.title, d.text) for d in task.documents]
    documents = generator.layout.documents(pairs, max_tokens=use.max_document_tokens)
    check_reference(use.target, task.reference)
    target = resolve_target(
        use.target,
        task.query,
        reference=task.reference,
        generator=generator,
        documents=documents,
        drafting=use.drafting,
        tokens=tokens,
    )
    longest = max(len(target.continuation), len(generator.layout.query_continuation(task.query)))
    documents = fitting(generator, pairs, documents, generator.limit - len(generator.layout.prefix) - longest)
    return Ordinary(generator, task.query, documents, target.continuation, tokens)


def fitting(
    generator: Generator, pairs: Sequence[tuple[str | None, str]], documents: list[DocumentTokens], room: int
) -> list[DocumentTokens]:
    """Documents cut to one length, the largest at which all of them fit.

    Args:
        generator: Gives the layout.
        pairs: n titles and texts.
        documents: The same as tokens.
        room: Tokens that they may take together.

    Raises:
        ContextOverflowError: When they do not fit at 8 tokens each.
    """
    if sum(map(len, documents)) <= room:
        return documents
    lengths, cap = [len(d) for d in documents], 8
    if sum(min(length, cap) for length in lengths) > room:
        raise ContextOverflowError(f"{len(lengths)} documents do not fit one prompt with room for {room} tokens")
    while sum(min(length, cap + 1) for length in lengths) <= room:
        cap += 1
    return generator.layout.documents(pairs, max_tokens=cap)


# Sachan et al. 2022, "Improving passage retrieval with zero-shot question generation".
_UPR_INSTRUCTION = "Please write a question based on this passage."

METHODS: dict[str, Callable[..., list[float]]] = {
    "native-leave-one-out": leave_one_out,
    "native-surrogate": surrogate,
    "native-icr": icr,
    "native-gradient": gradient,
    "native-upr": upr,
}


def native(
    name: str, reranker: GradReranker, method: str, *, settings: dict[str, Any] | None = None, **options: Any
) -> Configuration:
    """One of :data:`METHODS` as a configuration.

    Args:
        name: The configuration's name.
        reranker: Gives the model and the settings.
        method: Name of the method.
        settings: Fields of :class:`~gradrerank.settings.Settings` that differ from the reranker's own.
        **options: Options of the method.
    """
    use = reranker.settings.override(**(settings or {}))

    def rank(task: Task) -> Ranked:
        start = time.perf_counter()
        prompt = ordinary(reranker, task, use)
        scores = METHODS[method](prompt, **options)
        return ranked(task, scores, tokens=dict(prompt.tokens), seconds=time.perf_counter() - start)

    reads = [use.target, use.max_document_tokens, repr(use.drafting)]
    defaults = {p.name: p.default for p in list(inspect.signature(METHODS[method]).parameters.values())[1:]}
    identity = key_of(method, defaults | options, reads, model_name(reranker))
    return Configuration(name, rank, identity, with_reference=use.target == "reference")
