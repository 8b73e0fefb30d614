"""Citations of a given answer: the right targets, numbers in the order of use, places in the caller's own text."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import Document, GatesScorer, GradReranker
from gradrerank.citing import AnswerSentence, Citing, answer_parts
from gradrerank.errors import InvalidArgumentError, InvalidTypeError, ScoringError

ANSWER = "The ferry leaves at nine. Kettles boil water! Nobody knows why."
SOURCES = {
    "wiki": [Document(t, id=f"d{i}", metadata={"url": f"u{i}"}) for i, t in enumerate(DOCUMENTS[:3])],
    "web": DOCUMENTS[2:],
}


@pytest.fixture(scope="module", params=[True, False], ids=["chat", "plain"])
def reranker(request: Any) -> GradReranker:
    return GradReranker(tiny("llama"), use_chat_template=request.param)


@pytest.mark.parametrize("answer", [ANSWER, f"  {ANSWER}\n", "One", "é\u0301👩\u200d👧. 次。終", "Hm . . . yes."])
def test_C21_parts_of_an_answer_are_its_sentences_and_its_tokens(reranker: GradReranker, answer: str) -> None:
    generator = reranker.generator
    parts = answer_parts(generator, QUERY, answer, per_sentence=True)
    whole = generator.layout.answer_continuation(QUERY, answer)
    assert sum((c.target for _, c in parts), ()) == whole.target
    for i, (_, continuation) in enumerate(parts):
        assert continuation.question == whole.question + sum((c.target for _, c in parts[:i]), ())
    pieces = [answer[a:b] for (a, b), _ in parts]
    assert all(p == p.strip() for p in pieces) and "".join("".join(pieces).split()) == "".join(answer.split())
    (only,) = answer_parts(generator, QUERY, answer, per_sentence=False)
    assert only[1] == whole and answer[slice(*only[0])] == answer.strip()


def test_citations_of_the_whole_answer_are_those_of_the_reference_target(reranker: GradReranker) -> None:
    cited = reranker.cite(
        QUERY, SOURCES, ANSWER, per_sentence=False, max_citations=None, min_share=0.0, question_weight=0
    )
    result = reranker.rerank(QUERY, SOURCES, target="reference", reference=ANSWER, select_sources=False)
    truth = {(s.text, s.start): s.utility for s in result.explain()}
    assert len(cited) == sum(utility > 0 for utility in truth.values()) > 1
    for c in cited:
        assert c.utility == pytest.approx(truth[c.text, c.start], rel=1e-3, abs=1e-5)


def test_the_support_of_a_sentence_is_the_gradient_of_its_own_loss(reranker: GradReranker) -> None:
    cited = reranker.cite(QUERY, DOCUMENTS, ANSWER, max_citations=1, min_share=0.0, question_weight=0)
    generator = reranker.generator
    documents = generator.layout.documents([(None, t) for t in DOCUMENTS])
    for sentence, (_, target) in zip(
        cited.sentences, answer_parts(generator, QUERY, ANSWER, per_sentence=True), strict=True
    ):
        for number, utility in sentence.support:
            citation = cited[number - 1]
            index = next(i for i, text in enumerate(DOCUMENTS) if citation.text in text)
            if citation.text != DOCUMENTS[index]:
                continue  # a part of a document: its own gate is not that of the document
            memory = generator.remember(documents)
            step = 1e-2
            gates = torch.ones(2, len(documents))
            gates[0, index], gates[1, index] = 1 + step, 1 - step
            losses = generator.losses(memory, target, gates).mean(-1)
            assert utility == pytest.approx(float(losses[1] - losses[0]) / (2 * step), rel=2e-2, abs=2e-4)


def test_numbers_follow_first_use_and_marks_stand_behind_each_sentence(reranker: GradReranker) -> None:
    cited = reranker.cite(QUERY, SOURCES, ANSWER, max_citations=2, question_weight=0)
    used = [number for s in cited.sentences for number, _ in s.support]
    assert list(dict.fromkeys(used)) == list(range(1, len(cited) + 1)) == [c.number for c in cited]
    for sentence in cited.sentences:
        assert len(sentence.support) <= 2 and ANSWER[sentence.start : sentence.end] == sentence.text
        assert [u for _, u in sentence.support] == sorted((u for _, u in sentence.support), reverse=True)
    text = cited.text
    for n in range(1, len(cited) + 1):
        text = text.replace(f"[{n}]", "")
    assert text.replace(" ", "") == ANSWER.replace(" ", "")
    first = "".join(f"[{n}]" for n, _ in cited.sentences[0].support)
    assert cited.text.startswith(f"The ferry leaves at nine. {first}")


def test_C21_C10_a_citation_says_where_it_stands_and_changes_nothing(reranker: GradReranker) -> None:
    before = copy.deepcopy(SOURCES)
    cited = reranker.cite(QUERY, SOURCES, ANSWER, max_citations=None, min_share=0.0)
    texts = set(DOCUMENTS)
    for c in cited:
        assert any(text[c.start : c.end] == c.text for text in texts)
        assert set(c.sources) <= {"wiki", "web"}
    known = [c for c in cited if c.id == "d0"]
    assert all(c.metadata == {"url": "u0"} for c in known)
    for c in known:
        c.metadata["url"] = "changed"  # type: ignore[index]
    assert before == SOURCES


def test_what_supports_nothing_is_not_cited(reranker: GradReranker) -> None:
    cited = reranker.cite(QUERY, SOURCES, ANSWER, min_utility=1e6)
    assert len(cited) == 0 and cited.text == ANSWER and len(cited.unsupported) == 3
    assert reranker.cite(QUERY, {}, ANSWER).unsupported[0] == AnswerSentence("The ferry leaves at nine.", 0, 25, ())
    assert len(reranker.cite(QUERY, {"a": ["  "]}, ANSWER, per_sentence=False).sentences) == 1


@pytest.mark.parametrize(
    ("options", "utilities", "expected"),
    [
        ({}, [0.1, 1.0, 0.3, 0.24, -2.0], [1, 2]),
        ({"max_citations": 1}, [0.1, 1.0, 0.3], [1]),
        ({"min_share": 0.0, "max_citations": None}, [0.1, 0.0, -1.0, 0.2], [3, 0]),
        ({"min_utility": 0.2, "min_share": 0.0}, [0.2, 0.3], [1]),
        ({}, [-1.0, -0.1], []),
        ({}, [], []),
    ],
)
def test_which_utilities_are_cited(options: dict[str, Any], utilities: list[float], expected: list[int]) -> None:
    assert Citing(**options).best(utilities, [0.0] * len(utilities)) == expected


def test_the_question_orders_what_supports_the_answer_and_cites_nothing_else(reranker: GradReranker) -> None:
    assert Citing().best([0.2, 0.3, -0.1, 0.1], [0.5, -0.2, 9.0, 0.0]) == [0]
    assert Citing(min_share=0.0).best([0.2, 0.3, -0.1, 0.1], [0.5, -0.2, 9.0, -0.5]) == [0, 1]
    assert Citing(question_weight=0.1).best([0.2, 0.3], [0.5, -0.2]) == [1, 0]
    assert Citing().best([0.1], [-5.0]) == [0]
    # What helps the question alone does not come first, however much it does.
    assert Citing().best([1.0, 0.09, 0.4], [0.0, 9.0, 2.0]) == [2, 0, 1]
    asked = {(s.text, s.start): s.utility for s in reranker.rerank(QUERY, SOURCES, select_sources=False).explain()}
    cited = reranker.cite(QUERY, SOURCES, ANSWER, max_citations=None, min_share=0.0)
    length = len(reranker.generator.layout.query_continuation(QUERY).target)
    parts = answer_parts(reranker.generator, QUERY, ANSWER, per_sentence=True)
    for sentence, (_, target) in zip(cited.sentences, parts, strict=True):
        share = length / len(target.target)
        tenth = max(u for _, u in sentence.support) / 10
        placed = [(u >= tenth, u + share * asked[cited[n - 1].text, cited[n - 1].start]) for n, u in sentence.support]
        best_first = sorted(placed, reverse=True)
        assert [enough for enough, _ in placed] == [enough for enough, _ in best_first]
        assert [worth for _, worth in placed] == pytest.approx([worth for _, worth in best_first], abs=1e-5)
        assert all(u > 0 for _, u in sentence.support)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"answer": " "}, InvalidArgumentError, "answer must not be blank"),
        ({"answer": None}, InvalidTypeError, "answer must be a str, got NoneType"),
        ({"max_citations": 0}, InvalidArgumentError, "max_citations"),
        ({"min_share": 1.5}, InvalidArgumentError, "min_share must be between 0 and 1, got 1.5"),
        ({"min_utility": -1}, InvalidArgumentError, "min_utility"),
        ({"question_weight": -1}, InvalidArgumentError, "question_weight"),
        ({"per_sentence": "no"}, InvalidTypeError, "per_sentence"),
        ({"scorer": "ablation"}, ScoringError, "nothing to cite: scorer 'ablation' scored whole documents"),
        ({"scorer": "gate"}, InvalidArgumentError, "did you mean 'gates'"),
    ],
)
def test_what_cannot_be_cited_is_refused_by_name(
    reranker: GradReranker, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        reranker.cite(QUERY, SOURCES, **{"answer": ANSWER, **options})


@pytest.mark.parametrize("own", ["mixture", GatesScorer(pieces="document"), GatesScorer(layers=[2])])
def test_a_reranker_of_any_scorer_can_cite(own: Any) -> None:
    cited = GradReranker(tiny("llama"), scorer=own).cite(QUERY, SOURCES, ANSWER)
    assert len(cited) and all(c.utility for c in cited)
    assert cited.tokens["question"] > 0 and cited.timings["total"] > 0


def test_plain_forms(reranker: GradReranker) -> None:
    cited = reranker.cite(QUERY, SOURCES, ANSWER)
    plain = json.loads(json.dumps(cited.to_dict()))
    assert plain["text"] == cited.text and plain["citations"][0]["number"] == 1
    assert plain["sentences"][0]["support"][0][0] == 1
    lines = repr(cited).splitlines()
    assert lines[0] == cited.text and len(lines) == 1 + len(cited) and lines[1].startswith("  [1] +")


@pytest.mark.real_model
def test_the_sentence_that_holds_the_answer_is_cited_first() -> None:
    sources = {
        "timetable": ["The island is small. The ferry leaves at 8:40 from pier two. Dogs are allowed."],
        "news": ["The ferry was painted blue last year. A gull stole a sandwich."],
    }
    cited = GradReranker().cite("When does the ferry leave?", sources, "At 8:40, from pier two.")
    assert cited[0].text == "The ferry leaves at 8:40 from pier two." and cited[0].sources == ("timetable",)
    assert cited.text.startswith("At 8:40, from pier two. [1]")
