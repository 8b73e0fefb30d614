"""The gradient score of GRO-RAG (ICLR 2026) as the paper has it: one soft token for all documents.

    hbar(pi) = sum_i pi_i h_i                  the mixture, one vector in the model's input space
    phi_i    = < h_i , - dL/d hbar >           the utility of document i
    pi      <- P_k(pi + eta phi)               the iterated form, P_k the k-sparse simplex projection

h_i is the mean of the document's input embeddings; the prompt is (q, hbar). The cost does not grow
with the number or the length of the documents, and neither does what the model learns of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from gradrerank.context.simplex import project_simplex
from gradrerank.errors import InvalidArgumentError
from gradrerank.scorers.base import Scores, ScoringJob
from gradrerank.scorers.checking import check_finite
from gradrerank.validation import check_count, check_number, check_optional_count

if TYPE_CHECKING:
    from torch import Tensor

    from gradrerank.lm.generator import Generator
    from gradrerank.lm.prompt import DocumentTokens


@dataclass(frozen=True, slots=True)
class MixtureScorer:
    """Score documents by the gradient in one mixed soft token.

    Args:
        steps: Gradient steps on the mixture before the utilities are read; 0 is the one-step score at
            the uniform mixture.
        step_size: Length of a step on the simplex: eta is chosen so that the largest weight moves by
            this much before the projection.
        k: Documents that a mixture may hold after a step; None takes the call's ``top_n``, or all.
        layer: 0 represents documents by their input embeddings; l > 0 by their hidden states after l
            layers, put in at the input.

    Raises:
        InvalidArgumentError: When an argument is out of range.

    Example:
        >>> MixtureScorer(steps=5, k=3).step_size
        0.5
    """

    steps: int = 0
    step_size: float = 0.5
    k: int | None = None
    layer: int = 0
    name: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        """Check every argument that needs no model."""
        for name in ("steps", "layer"):
            check_count(name, getattr(self, name), minimum=0)
        check_number("step_size", self.step_size, minimum=0.0)
        check_optional_count("k", self.k)

    def score(self, job: ScoringJob) -> Scores:
        """Score at the last mixture.

        Where the iteration has converged, documents inside the mixture share the largest utility
        and those outside have a smaller one (the optimality condition on the simplex), so utility
        and mixture tell the same order.

        Returns:
            Utilities in nats of the target's mean loss per unit of weight; ``details`` holds the
            mixture as ``"weights"``, the loss at every mixture as ``"losses"`` and ``"passes"``.
        """
        import torch

        vectors = _representations(job.generator, job.documents, self.layer)
        job.tokens["documents"] += sum(map(len, job.documents)) if self.layer else 0
        weights = torch.full((len(vectors),), 1 / len(vectors), dtype=torch.float64)
        losses = []
        for step in range(self.steps + 1):
            mixture = (weights.to(vectors.device, vectors.dtype)[:, None] * vectors).sum(0)
            loss, slope = _loss_and_slope(job, mixture)
            losses.append(loss)
            # On the CPU, since not every device has float64.
            utilities = -(vectors.cpu().double() @ slope.cpu().double())
            check_finite(utilities.numpy(), f"the score that scorer {self.name!r} gave document")
            if step < self.steps:
                weights = self._moved(weights, utilities, self.k or job.top_n)
        details = {"loss": losses[-1], "losses": losses, "weights": weights.tolist(), "passes": len(losses)}
        return Scores(utilities.tolist(), details=details)

    def _moved(self, weights: Tensor, utilities: Tensor, k: int | None) -> Tensor:
        import torch

        # A common shift of all utilities moves nothing on the simplex, so it must not set the scale.
        centred = utilities - utilities.mean()
        largest = centred.abs().max()
        # Differences at the rounding of float32 are none; scaled up they would be a random step.
        eta = self.step_size / largest if largest > 1e-6 * utilities.abs().max() else 0.0
        return torch.from_numpy(project_simplex((weights + eta * centred).numpy(), k))


def _representations(generator: Generator, documents: Sequence[DocumentTokens], layer: int) -> Tensor:
    """[n, hidden] one vector for each document."""
    import torch

    depth = generator.plain.config.get_text_config().num_hidden_layers
    if layer > depth:
        raise InvalidArgumentError(f"layer must be at most {depth}, the model's number of layers, got {layer}")
    vectors = []
    with generator.exact_mode(grad=False):
        embed = generator.plain.get_input_embeddings()
        for document in documents:
            ids = torch.tensor([document.ids], device=generator.device)
            if layer:
                output = generator.plain.base_model(input_ids=ids, use_cache=False, output_hidden_states=True)
                hidden = output.hidden_states[layer]
            else:
                hidden = embed(ids)
            vectors.append(hidden[0].to(torch.promote_types(hidden.dtype, torch.float32)).mean(0))
        return torch.stack(vectors)


def _loss_and_slope(job: ScoringJob, mixture: Tensor) -> tuple[float, Tensor]:
    """Mean loss of the target behind the soft token, and its gradient in the soft token."""
    import torch
    from torch.nn import functional

    model, continuation = job.generator.plain, job.continuation
    n_target = len(continuation.target)
    with job.generator.exact_mode(grad=True):
        embed = model.get_input_embeddings()
        device = job.generator.device
        soft = mixture.detach().clone().requires_grad_()
        before = embed(torch.tensor(job.generator.layout.prefix, device=device))
        after = embed(torch.tensor(continuation.question + continuation.target[:-1], device=device))
        inputs = torch.cat([before, soft[None].to(before.dtype), after])[None]
        logits = model(inputs_embeds=inputs, use_cache=False, logits_to_keep=n_target).logits[0]
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = functional.cross_entropy(wide, torch.tensor(continuation.target, device=device))
        (slope,) = torch.autograd.grad(loss, [soft])
    job.tokens["question"] += inputs.shape[1]
    return float(loss.detach()), slope.detach()
