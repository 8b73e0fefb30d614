"""Questions from JSON Lines and from BEIR-style files, and what rankers may see of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from eval_helpers import ROWS

from gradrerank.errors import InvalidArgumentError
from gradrerank.evaluation import Question, read_beir, read_questions


def test_questions_are_read_as_they_stand(questions: list[Question]) -> None:
    first = questions[0]
    assert [q.id for q in questions] == ["q0", "q1", "q2"]
    assert first.text == ROWS[0]["question"] and first.answers == ("at nine", "nine")
    assert first.gold == {"00": 1, "04": 1} and first.group == "q0"
    assert [d.id for d in first.documents] == ["00", "01", "02", "03", "04"]
    assert {name: [d.id for d in found] for name, found in first.sources.items()} == {
        "wiki": ["00", "02", "04"],
        "web": ["01", "03"],
    }


def test_a_ranker_sees_no_label(questions: list[Question]) -> None:
    task = questions[0].task()
    assert {f.name for f in dataclasses.fields(task)} == {"query", "documents", "names", "reference"}
    assert task.reference is None
    assert all(d.metadata == {} and d.score is None for d in task.documents)
    assert questions[0].task(with_reference=True).reference == "at nine"


def test_an_answer_that_is_missing_cannot_be_the_reference(questions: list[Question]) -> None:
    bare = dataclasses.replace(questions[0], answers=())
    with pytest.raises(InvalidArgumentError, match="'q0' has no answer"):
        bare.task(with_reference=True)


def test_reading_stops_at_the_limit(data: Path) -> None:
    data.write_text(data.read_text("utf-8") + "broken\n", encoding="utf-8")
    assert len(list(read_questions(data, 3))) == 3


def test_questions_of_one_context_are_one_group(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [{**ROWS[0], "id": str(i), "meta": {"context": 7}} for i in range(2)]
    path.write_text("\n\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert {q.group for q in read_questions(path)} == {"context 7"}


def broken(change: Callable[[dict[str, Any]], Any]) -> str:
    row = json.loads(json.dumps(ROWS[1]))
    made = change(row)
    return json.dumps(row if made is None else made)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": ', "line 2: not JSON"),
        ("[1]", "line 2: expected an object, got list"),
        (broken(lambda r: r.pop("answers") and None), "line 2: the key 'answers' is missing"),
        (broken(lambda r: r["documents"][1].pop("text") and None), r"documents\[1\]: the key 'text' is missing"),
        (broken(lambda r: r.update(question="  ")), "line 2: the question is blank"),
        (broken(lambda r: r.update(answers=[1])), "answers must be texts"),
        (broken(lambda r: r["documents"][0].update(id=3)), "id must be a str, got 3"),
        (broken(lambda r: r["documents"][1].update(id="00")), "several documents have the id '00'"),
        (broken(lambda r: r["documents"].append("x")), r"documents\[5\]: expected an object, got str"),
        (broken(lambda r: r["documents"][0].update(title=3)), "title must be a str"),
        (broken(lambda r: r.update(id="q0")), "line 2: the id 'q0' stands in line 1 too"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=r"bad\.jsonl, line 2.*" + message.removeprefix("line 2: ")):
        list(read_questions(path))


@pytest.fixture
def beir(tmp_path: Path) -> dict[str, Path]:
    files = {name: tmp_path / name for name in ("queries", "corpus", "qrels", "run")}
    files["queries"].write_text(
        '{"_id": "q1", "text": "ferry?"}\n{"_id": "q2", "text": "tram?", "answers": ["hourly"]}\n'
        '{"_id": "q3", "text": "nothing relevant"}\n'
    )
    files["corpus"].write_text(
        "".join(f'{{"_id": "d{i}", "title": "{"T" if i else ""}", "text": "text {i}"}}\n' for i in range(4))
    )
    files["qrels"].write_text("query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td3\t0\nq2\td2\t1\nq2\td9\t1\n")
    files["run"].write_text("q1 Q0 d0 1 0.5 x\nq1 Q0 d1 2 0.9 x\nq1 Q0 d2 3 0.5 x\nq2 Q0 d3 1 2 x\nq3 Q0 d0 1 1 x\n")
    return files


def test_beir_files_become_questions(beir: dict[str, Path]) -> None:
    one, two = read_beir(**beir)
    # By score, equal ones in the order of the run; the query without anything relevant is left out.
    assert (one.id, [d.id for d in one.documents], one.gold) == ("q1", ["d1", "d0", "d2"], {"d1": 2})
    assert one.documents[1].title is None and one.documents[0].title == "T"
    # What the run did not find stays gold.
    assert (two.answers, two.gold) == (("hourly",), {"d2": 1, "d9": 1})
    assert list(two.sources) == ["corpus"]
    assert [len(q.documents) for q in read_beir(**beir, depth=1)] == [1, 1]
    assert len(list(read_beir(**beir, limit=1))) == 1


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("qrels", "q1\td1\n", "qrels, line 6: expected 3 fields, got 2"),
        ("qrels", "q1\td1\tgood\n", "qrels, line 6: 'good' is not a number"),
        ("run", "q1 Q0 d1 9 0.1 x\n", "run, line 6: document 'd1' stands twice for query 'q1'"),
        ("run", "q1 Q0 d7 9 0.1 x\n", "run names document 'd7', which .*corpus lacks"),
        ("corpus", '{"_id": "d1", "text": ""}\n', "corpus, line 5: the id 'd1' occurs twice"),
        ("corpus", '{"text": ""}\n', "corpus, line 5: the key '_id' is missing"),
    ],
)
def test_a_bad_line_of_beir_files_is_named(beir: dict[str, Path], name: str, line: str, message: str) -> None:
    beir[name].write_text(beir[name].read_text() + line)
    with pytest.raises(InvalidArgumentError, match=message):
        list(read_beir(**beir))
