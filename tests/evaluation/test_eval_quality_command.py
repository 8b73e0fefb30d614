"""``benchmarks/quality.py`` from its arguments to its files, on three questions and a tiny model."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradrerank import GradReranker

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "quality.py"


@pytest.fixture(scope="module")
def quality() -> ModuleType:
    spec = importlib.util.spec_from_file_location("quality", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(quality: ModuleType, reranker: GradReranker, *arguments: str | Path) -> None:
    quality.main([*map(str, arguments), "--width", "400", "--no-progress"], reranker)


EVERYTHING = (
    "gates,gates:z=0.3,gates:pieces=sentence,best=2,likelihood:target=query,mixture,attention,surrogate:samples=4,ablation,bm25,"
    "minilm,rrf,random,longest,shortest,as-given,native-icr,native-upr,native-surrogate:samples=4,native-gradient,"
    "native-leave-one-out,gates+likelihood,gates:retrieval=rrf"
)


def test_everything_in_one_run(
    quality: ModuleType, reranker: GradReranker, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, out = tmp_path / "lines.jsonl", tmp_path / "out.json"
    arguments = [data, "--configurations", EVERYTHING, "--resume", lines, "--out", out, "--target", "reference"]
    arguments += ["--answers", "2", "--leave-one-out", "--drops", "1", "2", "--answer-tokens", "4", "--questions", "2"]
    call(quality, reranker, *arguments)
    text = capsys.readouterr().out
    assert "three: 2 questions" in text and "rho loo caches" in text and "drop@2" in text
    saved = json.loads(out.read_text("utf-8"))
    (report,) = saved["reports"]
    assert len(report["configurations"]) == 22 + 3 and report["first"] == "gates"
    rows: dict[str, Any] = {name: row["measures"] for name, row in report["configurations"].items()}
    assert rows["ablation"]["rho loo caches"]["mean"] == pytest.approx(1.0)
    assert rows["native-leave-one-out"]["rho loo prompt"]["mean"] == pytest.approx(1.0)
    assert rows["native-upr"]["nDCG@10"]["mean"] == pytest.approx(rows["likelihood:target=query"]["nDCG@10"]["mean"])
    assert (
        report["configurations"]["native-upr"]["values"]["RR"]
        == report["configurations"]["likelihood:target=query"]["values"]["RR"]
    )
    assert {"EM", "F1", "log p", "drop@1", "drop@2", "tokens", "seconds"} <= set(rows["gates"])
    assert saved["settings"]["target"] == "reference" and saved["settings"]["data"] == ["three.jsonl"]
    # Once more: nothing is computed, everything is said again.
    before = lines.read_bytes()
    call(quality, reranker, *arguments)
    assert lines.read_bytes() == before
    assert json.loads(out.read_text("utf-8")) == saved


def test_a_folder_in_beir_form(quality: ModuleType, reranker: GradReranker, tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "When does the ferry leave?"}\n')
    (tmp_path / "corpus.jsonl").write_text(
        "".join(f'{{"_id": "d{i}", "text": "{t}"}}\n' for i, t in enumerate(["The tram.", "The ferry leaves."]))
    )
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td1\t1\n")
    (tmp_path / "run.trec").write_text("q Q0 d0 1 2 x\nq Q0 d1 2 1 x\n")
    out = tmp_path / "out.json"
    arguments = (tmp_path, "--run", tmp_path / "run.trec", "--configurations", "bm25,as-given", "--out", out)
    call(quality, reranker, *arguments)
    rows = json.loads(out.read_text("utf-8"))["reports"][0]["configurations"]
    assert [rows[name]["measures"]["RR"]["mean"] for name in ("bm25", "as-given")] == [1.0, 0.5]
    with pytest.raises(SystemExit, match="--run must name"):
        call(quality, reranker, tmp_path, "--configurations", "bm25")


def test_several_files_and_questions_that_are_passed_over(
    quality: ModuleType, reranker: GradReranker, data: Path, tmp_path: Path
) -> None:
    twin, out = tmp_path / "twin.jsonl", tmp_path / "out.json"
    twin.write_bytes(data.read_bytes())
    call(quality, reranker, data, twin, "--configurations", "bm25", "--out", out, "--skip", "1")
    reports = json.loads(out.read_text("utf-8"))["reports"]
    assert [report["data"] for report in reports] == ["three", "twin"]
    assert list(reports[0]["groups"]) == ["q1", "q2"]


def test_names_are_listed(quality: ModuleType, reranker: GradReranker, capsys: pytest.CaptureFixture[str]) -> None:
    call(quality, reranker, "--list")
    assert "native-icr" in capsys.readouterr().out


def test_wordings_of_the_prompt(quality: ModuleType, tmp_path: Path) -> None:
    assert quality._prompt("plain") == {"use_chat_template": False}
    assert quality._prompt('{"question": "Q:"}')["prompt"].question == "Q:"
    (tmp_path / "p.json").write_text('{"query": "About:"}')
    assert quality._prompt(str(tmp_path / "p.json"))["prompt"].query == "About:"
    with pytest.raises(SystemExit, match="no field 'questoin'"):
        quality._prompt('{"questoin": "Q:"}')
