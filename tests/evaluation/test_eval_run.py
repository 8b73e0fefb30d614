"""A whole run: resumed after a stop, never fooled by old lines, and reported as it was measured."""

from __future__ import annotations

import dataclasses
import io
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eval_helpers import letters
from rich.console import Console
from transformers import GenerationConfig

from gradrerank import GradReranker
from gradrerank.documents import Document
from gradrerank.errors import GradRerankWarning, InvalidArgumentError
from gradrerank.evaluation import (
    Answerer,
    Configuration,
    Ledger,
    Question,
    Ranked,
    Report,
    Task,
    answers,
    combination,
    evaluate,
    parse,
    save_reports,
)
from gradrerank.evaluation import behind as behind_module
from gradrerank.evaluation import ledger as ledger_module
from gradrerank.evaluation.answers import answering
from gradrerank.evaluation.behind import BehindPrompt
from gradrerank.evaluation.native import target_losses
from gradrerank.lm.generator import Generator
from gradrerank.sources.embedding import FunctionEncoder


class Counting:
    """Ranks by length, counts its calls, and stops the run at one of them."""

    def __init__(self, stop_at: str = "") -> None:
        self.calls: Counter[str] = Counter()
        self.stop_at = stop_at

    def __call__(self, task: Task) -> Ranked:
        if task.query == self.stop_at:
            raise KeyboardInterrupt
        self.calls[task.query] += 1
        order = sorted(task.documents, key=lambda d: -len(d.text))
        return Ranked({str(d.id): float(len(d.text)) for d in order}, {"question": 7}, 0.5)


def greedy(generator: Generator, prompt: Sequence[int], n: int) -> str:
    """What transformers writes behind a prompt that it reads anew, past any line break."""
    end = generator.plain.generation_config.eos_token_id
    settings = GenerationConfig(max_new_tokens=n, do_sample=False, eos_token_id=end, pad_token_id=end)
    ids = torch.tensor([prompt])
    output = generator.plain.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
    return generator.tokenizer.decode(output[0, len(prompt) :].tolist()).strip()


def run(questions: list[Question], configurations: dict[str, Any], path: Path | None = None, **more: Any) -> Report:
    return evaluate(questions, configurations, resume=path, progress=False, **more)


def test_a_stopped_run_goes_on_where_it_was(questions: list[Question], tmp_path: Path) -> None:
    path = tmp_path / "sub" / "lines.jsonl"
    first, second = Counting(), Counting(stop_at=questions[1].text)
    with pytest.raises(KeyboardInterrupt):
        run(questions, {"a": Configuration("a", first, "A"), "b": Configuration("b", second, "B")}, path)
    assert len(path.read_text("utf-8").splitlines()) == 3  # a and b on q0, a on q1
    again, other = Counting(), Counting()
    report = run(questions, {"a": Configuration("a", again, "A"), "b": Configuration("b", other, "B")}, path)
    assert again.calls == {questions[2].text: 1}
    assert other.calls == {questions[1].text: 1, questions[2].text: 1}
    assert report.rows["a"].values == report.rows["b"].values
    whole = run(questions, {"a": Configuration("a", Counting(), "A"), "b": Configuration("b", Counting(), "B")})
    assert whole.to_dict() == report.to_dict()


def test_old_lines_of_something_else_are_not_reused(questions: list[Question], tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    run(questions, {"a": Configuration("a", Counting(), "A")}, path)
    one = questions[0]
    changes: list[Question] = [
        dataclasses.replace(one, text="Another question?"),
        dataclasses.replace(one, names=("web",) * 5),
        dataclasses.replace(one, documents=one.documents[::-1]),
        dataclasses.replace(one, documents=(dataclasses.replace(one.documents[0], title="T"), *one.documents[1:])),
        dataclasses.replace(one, documents=(dataclasses.replace(one.documents[0], text="x"), *one.documents[1:])),
    ]
    for changed in changes:
        counting = Counting()
        run([changed], {"a": Configuration("a", counting, "A")}, path)
        assert counting.calls.total() == 1
    for identity, expected in (("A2", 3), ("A", 0), (None, 3)):
        counting = Counting()
        run(questions, {"renamed": Configuration("b", counting, identity)}, path)
        assert counting.calls.total() == expected, identity
    # Gold and answers are not seen by a ranker: other labels need no other ranking.
    counting = Counting()
    report = run([dataclasses.replace(one, gold={"01": 1})], {"a": Configuration("a", counting, "A")}, path)
    assert counting.calls.total() == 0 and report.rows["a"].values["RR"]["q0"] != 0


def test_the_reference_answer_is_part_of_what_is_seen(questions: list[Question], tmp_path: Path) -> None:
    path, calls = tmp_path / "lines.jsonl", []

    def rank(task: Task) -> Ranked:
        calls.append(task.reference)
        return Ranked(dict.fromkeys(task.ids, 0.0))

    reading = Configuration("a", rank, "A", with_reference=True)
    run(questions[:1], {"a": reading}, path)
    run([dataclasses.replace(questions[0], answers=("ten",))], {"a": reading}, path)
    run(questions[:1], {"a": reading}, path)
    assert calls == ["at nine", "ten"]


def test_a_torn_last_line_is_dropped(questions: list[Question], tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    run(questions, {"a": Configuration("a", Counting(), "A")}, path)
    content = path.read_bytes()
    for cut in (1, 30, len(content.splitlines()[-1])):
        path.write_bytes(content[:-cut])
        counting = Counting()
        run(questions, {"a": Configuration("a", counting, "A")}, path)
        assert counting.calls == {questions[2].text: 1}
        assert [json.loads(line)["question"] for line in path.read_text("utf-8").splitlines()] == ["q0", "q1", "q2"]


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    for bad in ("torn {", "[1]", '{"value": 1}', "3"):
        path.write_text('{"key": "a", "code": "b", "x": 1}\n' + bad + "\n")
        with pytest.raises(InvalidArgumentError, match=r"lines\.jsonl, line 2: not a line of a ledger"):
            Ledger(path)


def test_lines_of_other_code_are_reused_with_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines.jsonl"
    monkeypatch.setattr(ledger_module, "code_version", lambda: "old")
    for key in "ab":
        Ledger(path).put(key, {"x": key})
    monkeypatch.undo()
    ledger = Ledger(path)
    with pytest.warns(GradRerankWarning, match="other code") as caught:
        assert [ledger.get(key) for key in "abz"] == [{"x": "a"}, {"x": "b"}, None]
    assert len(caught) == 1
    ledger.put("a", {"x": "new"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Ledger(path).get("a") == {"x": "new"}


def test_parts_of_a_sum_are_ranked_once(questions: list[Question], tmp_path: Path) -> None:
    part, other = Counting(), Counting()
    one, two = Configuration("one", part, "1"), Configuration("two", other, "2")
    rows = {"one": one, "sum": combination("sum", [(1.0, one), (0.5, two)]), "sum2": combination("s", [(2.0, two)])}
    report = run(questions, rows, tmp_path / "lines.jsonl")
    assert part.calls.total() == other.calls.total() == 3
    assert report.rows["sum"].values["seconds"]["q0"] == 1.0


def test_answers_are_read_from_the_best_documents_in_the_order_asked_for(
    questions: list[Question], reranker: GradReranker
) -> None:
    question, best = questions[0], {"mine": lambda task: Ranked(dict(zip(task.ids, range(9, 0, -1), strict=False)))}
    asked = {"score": question.task().ids[:2], "ascending": question.task().ids[1::-1]}
    for order, other in (("score", "ascending"), ("ascending", "score")):
        ledger = Ledger()
        evaluate([question], best, reranker=reranker, resume=ledger, answers=2, answer_order=order, progress=False)
        known = len(ledger)
        Answerer(reranker, ledger).answer(question, asked[order])
        assert len(ledger) == known
        Answerer(reranker, ledger).answer(question, asked[other])
        assert len(ledger) == known + 1
    with pytest.raises(InvalidArgumentError, match="answer_order must be one of"):
        evaluate([question], best, reranker=reranker, answers=2, answer_order="last")


def test_plain_functions_rank_without_being_remembered(questions: list[Question], tmp_path: Path) -> None:
    counting = Counting()
    for _ in range(2):
        run(questions, {"mine": counting}, tmp_path / "lines.jsonl")
    assert counting.calls.total() == 6


def test_an_error_names_configuration_and_question(questions: list[Question]) -> None:
    def fail(task: Task) -> Ranked:
        raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError, match="out of luck") as caught:
        run(questions, {"mine": fail})
    assert caught.value.__notes__ == ["while configuration 'mine' ranked question 'q0'"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"configurations": {}}, "configurations must name at least one"),
        ({"answers": 5}, "need reranker="),
        ({"drops": [1]}, "need reranker="),
        ({"k": 0}, "k must be"),
        ({"configurations": {"all documents": Counting()}}, "must not be called 'all documents'"),
    ],
)
def test_impossible_runs_are_refused(questions: list[Question], change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        evaluate(questions, **{"configurations": {"a": Counting()}, "progress": False, **change})


def test_a_question_may_not_occur_twice(questions: list[Question]) -> None:
    with pytest.raises(InvalidArgumentError, match="'q1' occurs twice"):
        run([*questions, questions[1]], {"a": Counting()})


def test_questions_without_gold_or_answers_have_fewer_values(reranker: GradReranker, questions: list[Question]) -> None:
    bare = dataclasses.replace(questions[1], gold={}, answers=())
    report = run([questions[0], bare], {"a": Counting()}, reranker=reranker, answers=2, drops=[1])
    values = report.rows["a"].values
    assert set(values["nDCG@10"]) == set(values["F1"]) == set(values["drop@1"]) == {"q0"}
    assert set(values["tokens"]) == {"q0", "q1"}
    told = dataclasses.replace(questions[1], gold={})
    unsure = run([questions[0], told], {"a": Counting()}, reranker=reranker, answers=2, answer_tokens=2)
    assert set(unsure.rows["gold documents"].values["F1"]) == {"q0"}
    assert set(unsure.rows["all documents"].values["F1"]) == {"q0", "q1"}
    assert report.estimate("a", "nDCG@10").n == 1 and "n=1" in shown(report)


def test_agreement_is_measured_with_each_truth(questions: list[Question]) -> None:
    def backwards(task: Task) -> Ranked:
        found = Counting()(task).scores
        return Ranked({name: -value for name, value in reversed(found.items())})

    report = run(questions, {"a": Counting()}, truths={"loo": Configuration("t", backwards)})
    assert report.rows["a"].values["rho loo"] == pytest.approx({"q0": -1.0, "q1": -1.0, "q2": -1.0})


def test_no_label_reaches_a_ranker(questions: list[Question]) -> None:
    seen: list[Task] = []

    def look(task: Task) -> Ranked:
        seen.append(task)
        return Counting()(task)

    run(questions, {"mine": look})
    assert all("gold" not in repr(task) and "secret" not in repr(task) for task in seen)
    assert all(task.reference is None for task in seen)


def shown(report: Report) -> str:
    out = io.StringIO()
    Console(width=250, file=out).print(report.table())
    return out.getvalue()


def test_the_report_says_what_was_measured(questions: list[Question], tmp_path: Path) -> None:
    def by_id(task: Task) -> Ranked:
        return Ranked({name: -float(name) for name in task.ids}, seconds=0.25)

    report = run(questions, {"length": Counting(), "by id": by_id}, data="three")
    # By id the gold is at 1 and 5, 2, 4; by length at 1 (q0: "04", "00" is 4th), 2 and 5.
    assert report.rows["by id"].values["RR"] == {"q0": 1.0, "q1": 0.5, "q2": 0.25}
    content = report.to_dict()
    row = content["configurations"]["by id"]
    assert row["measures"]["RR"]["mean"] == pytest.approx((1 + 0.5 + 0.25) / 3)
    lengths = report.rows["length"].values["RR"]
    assert row["measures"]["RR"]["difference"]["mean"] == pytest.approx(
        np.mean([row["values"]["RR"][q] - lengths[q] for q in lengths])
    )
    assert "difference" not in content["configurations"]["length"]["measures"]["RR"]
    assert row["measures"]["seconds"] == {"mean": 0.25, "median": 0.25, "p95": 0.25, "n": 3}
    text = shown(report)
    assert "three: 3 questions" in text and "0.583 [" in text and "difference from length" in text
    save_reports([report, report], tmp_path / "new" / "out.json", settings={"k": 5})
    saved = json.loads((tmp_path / "new" / "out.json").read_text("utf-8"))
    assert saved["settings"] == {"k": 5} and saved["reports"][0] == json.loads(json.dumps(content))


def test_answers_are_written_once_for_each_prompt(
    reranker: GradReranker, questions: list[Question], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    prompts: list[str] = []

    class Counted(BehindPrompt):
        def __init__(self, generator: Generator, prompt: Sequence[int]) -> None:
            prompts.append(generator.tokenizer.decode(prompt))
            super().__init__(generator, prompt)

    monkeypatch.setattr(answers, "BehindPrompt", Counted)
    twins = {"a": Counting(), "b": Counting()}
    path = tmp_path / "lines.jsonl"
    report = run(questions, twins, path, reranker=reranker, answers=2, answer_tokens=4)
    # For each question: the best two, all, gold and none.
    assert len(prompts) == 12
    texts = [d.text for d in sorted(questions[0].documents, key=lambda d: -len(d.text))]
    assert [text in prompts[0] for text in texts] == [True, True, False, False, False]
    assert prompts[0].index(texts[0]) < prompts[0].index(texts[1])
    assert [sum(text in prompt for text in texts) for prompt in prompts[:4]] == [2, 5, len(questions[0].gold), 0]
    assert list(report.rows) == ["a", "b", "all documents", "gold documents", "no documents"]
    run(questions, twins, path, reranker=reranker, answers=2, answer_tokens=4)
    assert len(prompts) == 12
    run(questions, twins, path, reranker=reranker, answers=2, answer_tokens=5)
    assert len(prompts) == 24


def test_an_answer_is_what_the_generator_writes(reranker: GradReranker, questions: list[Question]) -> None:
    answerer = Answerer(reranker, Ledger(), 6)
    one = questions[0]
    documents = reranker.generator.layout.documents([("Note 2", one.documents[2].text)])
    prompt = answering(reranker.generator).ordinary_prompt(one.text, documents, limit=10_000)
    written = greedy(reranker.generator, prompt, 6)
    expected = written.split("\n")[0].strip()
    assert answerer.answer(one, ["02"]) == expected
    told = dataclasses.replace(one, answers=("x", expected))
    assert answerer.quality(told, ["02"])["F1"] == 1.0


def test_the_right_answer_is_weighed_where_the_model_would_write_its_own(
    reranker: GradReranker, questions: list[Question]
) -> None:
    generator, layout = reranker.generator, answering(reranker.generator)
    told = dataclasses.replace(questions[0], answers=("at nine", "x"))
    documents = layout.documents([(d.title, d.text) for d in (told.documents[2], told.documents[0])])
    prompt = layout.ordinary_prompt(told.text, documents, limit=10_000)
    target = generator.tokenizer.content([" at nine"])[0].ids
    with torch.no_grad():
        logits = generator.plain(torch.tensor([[*prompt, *target]])).logits[0].double().log_softmax(-1)
    expected = sum(float(logits[len(prompt) - 1 + i, token]) for i, token in enumerate(target))
    answerer = Answerer(reranker, Ledger(), 20)
    assert answerer.quality(told, ["02", "00"])["log p"] == pytest.approx(expected, rel=1e-4)
    assert answerer.log_probability(told, ["02"]) != answerer.log_probability(told, [])
    blank = dataclasses.replace(told, answers=("", "at nine"))
    assert answerer.log_probability(blank, ["02", "00"]) == answerer.log_probability(told, ["02", "00"])
    assert answerer.quality(dataclasses.replace(told, answers=(" ",)), ["02"]) == {}
    short = Answerer(reranker, Ledger(), 1)
    assert short.log_probability(told, ["02", "00"]) == pytest.approx(
        float(logits[len(prompt) - 1, target[0]]), rel=1e-4
    )


def test_what_is_written_and_weighed_behind_a_prompt_read_once_is_what_reading_it_each_time_gives(
    reranker: GradReranker, questions: list[Question]
) -> None:
    generator = reranker.generator
    for question in questions:
        prompt = answering(generator).ordinary_prompt(question.text, [], limit=10_000)
        behind, target = BehindPrompt(generator, prompt), generator.tokenizer.content([" at nine, or ten"])[0].ids
        for n in (1, 5, 40, 3):
            whole = greedy(generator, prompt, n)
            assert behind.write(n) == whole.partition("\n")[0].strip()
            expected = target_losses(generator, prompt, target[:n])
            torch.testing.assert_close(behind.losses(target[:n]), expected, rtol=1e-4, atol=1e-5)


def test_writing_ends_with_the_line_or_the_text(reranker: GradReranker, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = reranker.generator
    ids = generator.tokenizer.content(["\n\n one two\n three"])[0].ids
    passes: list[int] = []
    passed = BehindPrompt._pass

    def dictated(self: BehindPrompt, tokens: Sequence[int], cache: Any = None, **options: Any) -> Any:
        output = passed(self, tokens, cache, **options)
        at = min(len(passes), len(ids) - 1)
        passes.append(len(tokens))
        output.logits[..., -1, :] = torch.nn.functional.one_hot(torch.tensor(ids[at]), output.logits.shape[-1])
        return output

    monkeypatch.setattr(BehindPrompt, "_pass", dictated)
    assert BehindPrompt(generator, [1, 2, 3]).write(50) == "one two"
    assert len(passes) < len(ids)
    passes.clear()
    monkeypatch.setattr(behind_module, "_ends", lambda generator: {ids[4]})
    assert BehindPrompt(generator, [1, 2, 3]).write(50) == generator.tokenizer.decode(ids[:4]).strip()


def test_an_answer_follows_examples_of_short_ones_whatever_the_words_of_the_ranking(reranker: GradReranker) -> None:
    layout = answering(reranker.generator)
    prompt = reranker.generator.tokenizer.decode(layout.ordinary_prompt("When?", [], limit=10_000))
    assert prompt.startswith("Questions about documents, and their short answers.")
    assert prompt.endswith("Question: When?\nAnswer:")
    assert layout.prefix != reranker.generator.layout.prefix


def test_a_drop_is_the_fall_of_the_log_probability(reranker: GradReranker, questions: list[Question]) -> None:
    one, layout = questions[0], reranker.generator.layout
    documents = layout.documents([(d.title, d.text) for d in one.documents])
    asked = layout.answer_continuation(one.text, "at nine")

    def log_p(kept: list[int]) -> float:
        memory = reranker.generator.reader.encode([[i for d in kept for i in documents[d].ids]])

        assembled = reranker.generator.reader.assemble(memory)
        return -float(reranker.generator.losses(assembled, asked, torch.ones(1, 1)).sum())

    found = Answerer(reranker, Ledger()).drops(one, ["03", "01", "00", "02", "04"], [1, 3])
    full = log_p([0, 1, 2, 3, 4])
    assert found == pytest.approx({"drop@1": full - log_p([0, 1, 2, 4]), "drop@3": full - log_p([2, 4])}, abs=1e-4)


def test_library_scorers_read_each_document_once(questions: list[Question]) -> None:
    from tiny import tiny

    fresh = GradReranker(tiny(), encoder=letters, select_sources=False)
    specs = ("gates", "likelihood", "ablation", "gates:z=0.5")
    encoder = FunctionEncoder(letters)
    rows = {spec: parse(spec, lambda: fresh, encoder=encoder) for spec in specs}
    task = questions[0].task()
    tokens = [rows[spec].rank(task).tokens.get("documents", 0) for spec in specs]
    assert tokens[0] > 0 and tokens[1:] == [0, 0, 0]


def test_a_question_without_documents_is_no_failure(reranker: GradReranker) -> None:
    bare = Question("q", "ferry?", ("nine",), (), (), {"gone": 1}, "q")
    encoder = FunctionEncoder(letters)
    specs = ("gates", "bm25", "minilm", "random", "gates+bm25")
    report = run([bare], {spec: parse(spec, lambda: reranker, encoder=encoder) for spec in specs})
    assert {report.rows[spec].values["nDCG@10"]["q"] for spec in specs} == {0.0}


def test_unusual_texts_are_remembered(tmp_path: Path) -> None:
    odd = Document("lone \ud800 surrogate", id="\u2028id")
    task = Question("q", "line\u2028break?", (), (odd,), ("s",), {"\u2028id": 1}, "q")
    path = tmp_path / "lines.jsonl"
    for expected in (1, 0):
        counting = Counting()
        run([task], {"a": Configuration("a", counting, "A")}, path)
        assert counting.calls.total() == expected
