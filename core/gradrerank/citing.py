"""Citations for an answer that was already given: which sentences of which source support it.

Every sentence of the answer is a target of its own, read behind the question and the sentences before it:

    u_k(s) = - dL_k/dz_s    at z = 1,    L_k = mean loss of the tokens of the k-th sentence of the answer

for every sentence s of the documents. The mean of u_k(s) over the answer's tokens is what the scorer ``gates``
gives with ``target="reference"``.

A short answer says little of what was asked, and a small model is easily pleased by any sentence with the right
kind of word. So the sentences with a positive u_k are cited by what they do for the log-likelihood of question
and sentence together, T_k u_k(s) + w T_q u_q(s), where u_q is the utility for the question as a target and T
counts the tokens of a target; w = 0 cites for the answer alone. Sentences that do next to nothing for the answer,
less than a tenth of what the most helpful one does, stand behind all others, however much they help the question.

Nearly every sentence moves the loss a little, one way or the other, and some always helps: a positive u_k alone does
not say that the answer is supported. On 36 questions with the answers of other questions, the embedded model still
found a sentence for each, by .10 nats in the median, as against .31 with the true answers; ``min_utility=0.1`` left
47% of those answers without support, and 6% of the true ones. The number is the model's own: fit it on a few answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gradrerank.documents import copied
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError
from gradrerank.explaining import as_dict, stripped
from gradrerank.lm.pieces import CharacterRange, sentence_ranges, split_into_pieces
from gradrerank.lm.prompt import Continuation
from gradrerank.scorers import GatesScorer, Scorer, Scores, ScoringJob, as_scorer
from gradrerank.scoring import scores_of
from gradrerank.validation import check_number, check_optional_count, is_blank

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gradrerank.call import Call
    from gradrerank.lm.generator import Generator
    from gradrerank.sources.pool import Candidate


# Share of the largest utility for a sentence of the answer below which another one is no reason to come first.
_NEXT_TO_NOTHING = 0.1


@dataclass(frozen=True, slots=True)
class Citation:
    """A sentence of a document that supports an answer.

    Args:
        number: Its number in the answer, from 1 in the order of first use.
        text: The sentence, without the white space around it.
        start: Its first character in the document's own text, as the caller passed it.
        end: One past its last character.
        utility: Its largest utility for a sentence of the answer that cites it, in nats of the mean loss of
            that sentence's tokens; what it does for the question is not in it.
        id: The document's id, or None.
        title: The document's title, or None.
        sources: Names of the sources that found the document, best rank first.
        metadata: A copy of the document's metadata.
    """

    number: int
    text: str
    start: int
    end: int
    utility: float
    id: str | None
    title: str | None
    sources: tuple[str, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AnswerSentence:
    """A sentence of the answer with what supports it.

    Args:
        text: The sentence, without the white space around it.
        start: Its first character in the answer.
        end: One past its last character.
        support: Numbers of its citations and their utilities for this sentence, in nats of the mean loss
            of its tokens, in the order of choice; empty when nothing supports it.
    """

    text: str
    start: int
    end: int
    support: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, repr=False)
class Citations:
    """An answer with numbered citations; a read-only sequence of them.

    Args:
        query: The query.
        answer: The answer as it was given.
        citations: The citations by number.
        sentences: The sentences of the answer, in order.
        tokens: Tokens that passed through the language model, by stage.
        timings: Seconds by stage; ``"total"`` covers them all.

    Example:
        >>> cited = reranker.cite("When does it leave?", sources, "At 8:40.")   # doctest: +SKIP
        >>> cited.text, cited[0].text                                          # doctest: +SKIP
        ('At 8:40. [1]', 'The ferry leaves at 8:40.')
    """

    query: str
    answer: str
    citations: tuple[Citation, ...]
    sentences: tuple[AnswerSentence, ...]
    tokens: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The answer with the marks of its citations behind each sentence, ``[1][2]``."""
        parts, last = [], 0
        for sentence in self.sentences:
            marks = "".join(f"[{number}]" for number, _ in sentence.support)
            parts += [self.answer[last : sentence.end], f" {marks}" if marks else ""]
            last = sentence.end
        return "".join([*parts, self.answer[last:]])

    @property
    def unsupported(self) -> tuple[AnswerSentence, ...]:
        """The sentences of the answer that nothing supports."""
        return tuple(s for s in self.sentences if not s.support)

    def __len__(self) -> int:
        """Number of citations."""
        return len(self.citations)

    def __iter__(self) -> Iterator[Citation]:
        """The citations by number."""
        return iter(self.citations)

    def __getitem__(self, index: int) -> Citation:
        """The citation at an index, which is its number less 1."""
        return self.citations[index]

    def to_dict(self) -> dict[str, Any]:
        """The citations as plain dicts, lists, strings and numbers (metadata stays as it came).

        Returns:
            A dict with the keys query, answer, text, citations, sentences, tokens and timings.
        """
        return {
            "query": self.query,
            "answer": self.answer,
            "text": self.text,
            "citations": [as_dict(c) for c in self.citations],
            "sentences": [{**as_dict(s), "support": [list(pair) for pair in s.support]} for s in self.sentences],
            "tokens": dict(self.tokens),
            "timings": dict(self.timings),
        }

    def __repr__(self) -> str:
        """The answer with its marks, and each citation on a line."""
        from gradrerank.display import one_line, signed

        largest = max((abs(c.utility) for c in self.citations), default=0.0)
        lines = [one_line(self.text)]
        for c in self.citations:
            found = "/".join([", ".join(c.sources), *([c.id] if c.id else [])])
            lines.append(f"  [{c.number}] {signed(c.utility, largest)} {one_line(found)}: {one_line(c.text)[:90]}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The answer and its citations, for a notebook."""
        from gradrerank.notebook import citations_html

        return citations_html(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Citing:
    """What is cited.

    Args:
        per_sentence: Whether each sentence of the answer has citations of its own; False cites for the
            answer as a whole.
        max_citations: Most citations of a sentence of the answer; None for no limit.
        min_share: Least worth of a citation as a share of the best one's for that sentence, between 0 and 1;
            its worth is its utility for question and sentence together.
        min_utility: Utility that a citation must exceed, in nats of the mean loss of the answer's sentence; 0
            leaves few sentences without support, as told at the top of this module.
        question_weight: How much the question counts in the choice beside the answer; 0 saves its row.

    Raises:
        InvalidArgumentError: When a value is out of range.
        InvalidTypeError: When per_sentence is not a bool.
    """

    per_sentence: bool = True
    max_citations: int | None = 3
    min_share: float = 0.25
    min_utility: float = 0.0
    question_weight: float = 1.0

    def __post_init__(self) -> None:
        """Check every value."""
        if not isinstance(self.per_sentence, bool):
            raise InvalidTypeError(f"per_sentence must be a bool, got {self.per_sentence!r}")
        check_optional_count("max_citations", self.max_citations)
        for name in ("min_utility", "question_weight"):
            check_number(name, getattr(self, name), minimum=0.0)
        if check_number("min_share", self.min_share, minimum=0.0) > 1:
            raise InvalidArgumentError(f"min_share must be between 0 and 1, got {self.min_share!r}")

    def best(self, utilities: Sequence[float], question: Sequence[float]) -> list[int]:
        """Which of n sentences are cited, the most worthy first, but for those that do next to nothing for the answer.

        Args:
            utilities: Their utilities for a sentence of the answer.
            question: Their utilities for the question, for each token of that sentence of the answer.
        """
        worth = [u + self.question_weight * q for u, q in zip(utilities, question, strict=True)]
        enough = _NEXT_TO_NOTHING * max(utilities, default=0.0)
        helping = (i for i, u in enumerate(utilities) if u > self.min_utility)
        order = sorted(helping, key=lambda i: (utilities[i] < enough, -worth[i]))
        least = self.min_share * max(worth[order[0]], 0.0) if order else 0.0
        return [i for i in order[: self.max_citations] if worth[i] >= least or i == order[0]]


def check_answer(answer: Any) -> str:
    """Refuse an answer that cannot be attributed.

    Args:
        answer: What the caller passed.

    Raises:
        InvalidTypeError: When it is not a str.
        InvalidArgumentError: When it is blank.
    """
    if not isinstance(answer, str):
        raise InvalidTypeError(f"answer must be a str, got {type(answer).__name__}")
    if is_blank(answer):
        raise InvalidArgumentError(f"answer must not be blank, got {answer!r}")
    return answer


def citing_scorer(given: Scorer | None, own: str | Scorer) -> Scorer:
    """The scorer to cite with: one that looks inside documents.

    Args:
        given: The scorer of the call, or None.
        own: The scorer of the reranker, which counts only where it has gates.

    Returns:
        The scorer; gates of whole documents become gates of sentences.
    """
    scorer = given if given is not None else own if isinstance(own, GatesScorer) else GatesScorer()
    if isinstance(scorer, GatesScorer) and scorer.pieces == "document":
        return replace(scorer, pieces="sentence")
    return as_scorer(scorer)


def cite_answer(call: Call, answer: str, generator: Generator, scorer: Scorer, citing: Citing) -> Citations:
    """Find the citations of an answer.

    Args:
        call: The call, with its candidates as documents.
        answer: The answer, already checked.
        generator: The model.
        scorer: A scorer that looks inside documents.
        citing: What is cited.

    Returns:
        The citations; without documents every sentence is unsupported.

    Raises:
        ScoringError: When the scorer does not look inside documents.
    """
    parts = answer_parts(generator, call.query, answer, per_sentence=citing.per_sentence)
    ranges, targets = [part for part, _ in parts], [target for _, target in parts]
    if not call.documents:
        return _numbered(call, answer, ranges, [[] for _ in parts], [[] for _ in parts], [], citing)
    if citing.question_weight:
        targets.append(generator.layout.query_continuation(call.query))
    jobs = [ScoringJob(call.query, call.documents, target, generator, tokens=call.tokens) for target in targets]
    with call.watch.stage("score"):
        scores = scores_of(scorer, jobs)
    if not all(found.spans for found in scores):
        raise ScoringError(
            f"there is nothing to cite: scorer {scorer.name!r} scored whole documents and did not look inside them; "
            "cite with scorer='gates', or with GatesScorer(pieces=...) for other pieces than sentences"
        )
    places, utilities = _pieces(scores)
    question = utilities[-1] if citing.question_weight else [0.0] * len(places)
    # The question's loss is a mean over its own tokens; the sum of them counts, for each token of the sentence.
    shared = [[len(targets[-1].target) / len(t.target) * q for q in question] for _, t in parts]
    return _numbered(call, answer, ranges, utilities[: len(parts)], shared, places, citing)


def answer_parts(
    generator: Generator, query: str, answer: str, *, per_sentence: bool
) -> list[tuple[CharacterRange, Continuation]]:
    """The sentences of an answer as targets, each behind the question and the sentences before it.

    Args:
        generator: The model.
        query: The query.
        answer: The answer.
        per_sentence: False makes the whole answer one part.

    Returns:
        For each part its characters in the answer, without white space around them, and its tokens. The
        tokens of all parts together are those of the answer as one target.
    """
    whole = generator.layout.answer_continuation(query, answer)
    spoken = generator.layout.spoken(answer)
    shift = len(spoken) - len(answer)
    (document,) = generator.layout.documents([(None, spoken)])
    pieces = split_into_pieces([document], sentence_ranges if per_sentence else "document", 1)
    owners = pieces.token_spans[0][: len(whole.target)]
    parts = []
    for piece, (start, end) in enumerate(pieces.characters):
        first = owners.index(piece)
        target = whole.target[first : first + owners.count(piece)]
        kept = stripped(answer, max(start - shift, 0), max(end - shift, 0))
        parts.append((kept, Continuation(whole.question + whole.target[:first], target)))
    return parts


def _pieces(scores: Sequence[Scores]) -> tuple[list[tuple[int, int, int]], list[list[float]]]:
    """Places (document, start, end) of all pieces, and their utilities for each part of the answer."""
    places = [(i, s.start, s.end) for i, spans in enumerate(scores[0].spans) for s in spans]
    utilities = [[s.score for spans in found.spans for s in spans] for found in scores]
    return places, utilities


def _numbered(
    call: Call,
    answer: str,
    parts: Sequence[CharacterRange],
    utilities: Sequence[Sequence[float]],
    question: Sequence[Sequence[float]],
    places: Sequence[tuple[int, int, int]],
    citing: Citing,
) -> Citations:
    """Choose what is cited and number it in the order of first use."""
    numbers: dict[int, int] = {}
    sentences = []
    for (start, end), values, asked in zip(parts, utilities, question, strict=True):
        chosen = citing.best(values, asked)
        for piece in chosen:
            numbers.setdefault(piece, len(numbers) + 1)
        support = tuple((numbers[piece], values[piece]) for piece in chosen)
        sentences.append(AnswerSentence(answer[start:end], start, end, support))
    citations = []
    for piece, number in numbers.items():
        utility = max(value for s in sentences for cited, value in s.support if cited == number)
        index, start, end = places[piece]
        citations.append(_citation(number, call.pool.candidates[index], start, end, utility))
    return Citations(call.query, answer, tuple(citations), tuple(sentences), dict(call.tokens), call.watch.seconds())


def _citation(number: int, candidate: Candidate, start: int, end: int, utility: float) -> Citation:
    document = candidate.document
    start, end = stripped(candidate.text, start, end)
    return Citation(
        number=number,
        text=candidate.text[start:end],
        start=start,
        end=end,
        utility=utility,
        id=document.id,
        title=document.title,
        sources=candidate.sources,
        metadata=copied(document.metadata),
    )
