"""What the generator answers with some documents in an ordinary prompt, and how far an answer hangs on them.

Measures of answers count words, so answers must be short. A small model writes a sentence that says the question again
however it is asked, and its share of right words is noise; examples of short answers before the documents it follows.
They are words of the answering prompt alone: documents are ranked in the words of the reranker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from gradrerank.evaluation.behind import BehindPrompt
from gradrerank.evaluation.configurations import model_name
from gradrerank.evaluation.ledger import Ledger, key_of
from gradrerank.evaluation.measures import answer_f1, exact_match
from gradrerank.evaluation.native import Ordinary, fitting, ordinary
from gradrerank.evaluation.questions import Question
from gradrerank.lm.prompt import DocumentTokens, PromptLayout, PromptTexts
from gradrerank.validation import is_blank

if TYPE_CHECKING:
    from gradrerank.lm.generator import Generator
    from gradrerank.reranker import GradReranker


SHORT_ANSWERS = PromptTexts(
    system="""Questions about documents, and their short answers.

Question: In which country is the city of Lyon?
Answer: France

Question: When was the singer Maria Callas born?
Answer: 2 December 1923

Question: Are Venus and Sirius both planets?
Answer: no""",
    question="Question:",
)


def short_answer(generator: Generator, query: str, documents: Sequence[DocumentTokens], max_new_tokens: int) -> str:
    """The first line that the model writes behind documents and examples of short answers, greedily.

    Args:
        generator: The model.
        query: The question.
        documents: In the order in which they stand in the prompt; as many as fit are used.
        max_new_tokens: Most tokens of the answer.
    """
    prompt = answering(generator).ordinary_prompt(query, documents, limit=generator.limit - max_new_tokens)
    return BehindPrompt(generator, prompt).write(max_new_tokens)


def answering(generator: Generator) -> PromptLayout:
    """The words around documents and question where a short answer follows; no chat template."""
    return PromptLayout(generator.tokenizer, SHORT_ANSWERS, name=generator.name, use_chat_template=False)


@dataclass(frozen=True)
class _Asked:
    """A question and its prompt, which passes through the model once, and only if something is not known yet."""

    generator: Generator
    layout: PromptLayout
    question: Question
    prompt: tuple[int, ...]

    @cached_property
    def behind(self) -> BehindPrompt:
        """What the model makes of the prompt."""
        return BehindPrompt(self.generator, self.prompt)


@dataclass(frozen=True, slots=True)
class Answerer:
    """Writes answers and weighs them; what was asked once is remembered by its exact prompt.

    Args:
        reranker: Gives the model.
        ledger: Where answers are remembered.
        max_new_tokens: Most tokens of an answer, written or weighed.
    """

    reranker: GradReranker
    ledger: Ledger
    max_new_tokens: int = 16

    def quality(self, question: Question, ids: Sequence[str]) -> dict[str, float]:
        """Exact match and F1 of the answer behind some documents.

        Args:
            question: The question; without answers there is nothing to compare with.
            ids: Documents in the order in which they stand in the prompt, whole where they fit.

        Returns:
            ``EM``, ``F1`` and ``log p``, the log-probability in nats of the first right answer, as far as an answer
            of the model may reach; nothing where no answer is known. The last one tells documents apart where the
            model writes no answer that is right.
        """
        if all(map(is_blank, question.answers)):
            return {}
        asked = self._asked(question, ids)
        answer = self._written(asked)
        return {
            "EM": exact_match(answer, question.answers),
            "F1": answer_f1(answer, question.answers),
            "log p": self._weighed(asked),
        }

    def answer(self, question: Question, ids: Sequence[str]) -> str:
        """The greedy answer of the model behind some documents.

        Args:
            question: The question.
            ids: Documents in the order in which they stand in the prompt.
        """
        return self._written(self._asked(question, ids))

    def log_probability(self, question: Question, ids: Sequence[str]) -> float:
        """Log-probability of the first right answer where the model would write its own, in nats.

        Args:
            question: The question, with at least one answer that is not blank.
            ids: Documents in the order in which they stand in the prompt.
        """
        return self._weighed(self._asked(question, ids))

    def _asked(self, question: Question, ids: Sequence[str]) -> _Asked:
        """The prompt in which documents stand, cut to one length where they do not fit."""
        generator, limit = self.reranker.generator, self.reranker.generator.limit - self.max_new_tokens
        layout, by_id = answering(generator), {d.id: d for d in question.documents}
        pairs = [(by_id[name].title, by_id[name].text) for name in ids]
        room = limit - len(layout.ordinary_prompt(question.text, [], limit=generator.limit))
        documents = fitting(generator, pairs, layout.documents(pairs), room)
        return _Asked(generator, layout, question, layout.ordinary_prompt(question.text, documents, limit=limit))

    def _written(self, asked: _Asked) -> str:
        key = key_of("answer", model_name(self.reranker), asked.prompt, self.max_new_tokens)
        known = self.ledger.get(key)
        if known is None:
            known = {"kind": "answer", "question": asked.question.id, "answer": asked.behind.write(self.max_new_tokens)}
            self.ledger.put(key, known)
        return str(known["answer"])

    def _weighed(self, asked: _Asked) -> float:
        right = next(answer for answer in asked.question.answers if not is_blank(answer))
        target = asked.generator.tokenizer.content([asked.layout.spoken(right)])[0].ids[: self.max_new_tokens]
        key = key_of("answer log-probability", model_name(self.reranker), asked.prompt, target)
        known = self.ledger.get(key)
        if known is None:
            value = -float(asked.behind.losses(target).double().sum())
            known = {"kind": "answer log-probability", "question": asked.question.id, "log_probability": value}
            self.ledger.put(key, known)
        return float(known["log_probability"])

    def drops(self, question: Question, order: Sequence[str], depths: Sequence[int]) -> dict[str, float]:
        """How much the log-probability of the answer falls without the first k documents of a ranking.

        Both are read from one ordinary prompt with all (other) documents in their given order.

        Args:
            question: The question; its first answer is read.
            order: Ids, best first.
            depths: Values of k.

        Returns:
            ``drop@k`` in nats of the whole answer for each k, or nothing without an answer.
        """
        if not question.answers:
            return {}
        use = self.reranker.settings.override(target="reference")
        prompt = ordinary(self.reranker, question.task(with_reference=True), use)
        names = question.task().ids
        full = self._log_probability(question, prompt, range(len(names)))
        found = {}
        for k in depths:
            rest = [i for i, name in enumerate(names) if name not in order[:k]]
            found[f"drop@{k}"] = full - self._log_probability(question, prompt, rest)
        return found

    def _log_probability(self, question: Question, prompt: Ordinary, kept: Sequence[int]) -> float:
        ids = [prompt.documents[i].ids for i in kept]
        key = key_of("log-probability", model_name(self.reranker), ids, prompt.continuation.target, question.text)
        known = self.ledger.get(key)
        if known is None:
            value = prompt.log_probability(kept)
            known = {"kind": "log-probability", "question": question.id, "log_probability": value}
            self.ledger.put(key, known)
        return float(known["log_probability"])
