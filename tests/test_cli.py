"""The command line: what it reads, what it prints where, and how it fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gradrerank
from gradrerank import Document, GradReranker
from gradrerank.cli import app
from gradrerank.demo import NEEDED, QUESTION, demo_sources
from gradrerank.errors import InvalidArgumentError
from gradrerank.reading import read_documents, read_named_files
from tests.tiny import DOCUMENTS, QUERY, tiny

ROOT = Path(__file__).resolve().parents[1]
TIMES = ("timings", "tokens")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a tiny model, to be named as --model."""
    folder = tmp_path_factory.mktemp("model")
    weights, tokenizer = tiny("llama")
    weights.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def notes(tmp_path: Path) -> str:
    path = tmp_path / "notes.txt"
    path.write_text("\n\n".join(DOCUMENTS), encoding="utf-8")
    return f"notes={path}"


def run(*arguments: str, **options: Any) -> Any:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False, **options)


def rank(*arguments: str, query: str = QUERY) -> Any:
    return run("rank", "--query", query, *arguments)


def assert_refused(result: Any, *words: str, code: int = 2) -> None:
    """One clear line on stderr, nothing on stdout, no traceback."""
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("gradrerank: error: ") and result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    for word in words:
        assert word in result.stderr, result.stderr


# --- reading files


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    return path


def test_a_jsonl_line_is_an_object_or_a_string(tmp_path: Path) -> None:
    lines = [
        {"text": "a", "id": "x", "title": "T", "metadata": {"page": 3}, "score": 0.5, "lang": "en", "tags": ["b"]},
        {"text": "b", "id": 7, "title": None, "metadata": None},
        "plain \u2028 text",
    ]
    text = "\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    assert read_documents(write(tmp_path / "wiki.JSONL", "\ufeff" + text + "\n")) == [
        Document("a", id="x", title="T", metadata={"page": 3, "lang": "en", "tags": ["b"]}, score=0.5),
        Document("b", id="7"),
        Document("plain \u2028 text", id="wiki.JSONL:5"),
    ]


def test_windows_line_ends_are_line_ends(tmp_path: Path) -> None:
    assert [d.text for d in read_documents(write(tmp_path / "a.jsonl", '"a"\r\n{"text": "b"}\r\n'))] == ["a", "b"]
    assert [d.text for d in read_documents(write(tmp_path / "a.txt", "a\r\nb\r\n\r\n \t\r\nc"))] == ["a\nb", "c"]


def test_a_json_file_is_a_list_of_the_same(tmp_path: Path) -> None:
    found = read_documents(write(tmp_path / "w.json", '[{"text": "a", "page": 1},\n "b"]'))
    assert found == [Document("a", id="w.json:1", metadata={"page": 1}), Document("b", id="w.json:2")]


def test_any_other_file_is_one_document_a_paragraph(tmp_path: Path) -> None:
    found = read_documents(write(tmp_path / "notes.txt", "\n\n first\nline \n\n\n \nsecond\n\n\n"))
    assert found == [Document("first\nline", id="notes.txt:1"), Document("second", id="notes.txt:2")]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_C01_an_empty_file_has_no_documents(tmp_path: Path, name: str) -> None:
    assert read_documents(write(tmp_path / name, "\n \n")) == []


def test_C02_blank_texts_are_kept_for_the_report(tmp_path: Path) -> None:
    assert [d.text for d in read_documents(write(tmp_path / "a.jsonl", '""\n{"text": " "}'))] == ["", " "]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '"a"\n\n{"text": }', ("a.jsonl line 3", "not JSON", "column 10")),
        ("a.jsonl", '{"text": NaN}', ("a.jsonl line 1", "NaN")),
        ("a.jsonl", "[" * 100_000, ("a.jsonl line 1", "not JSON")),
        ("a.jsonl", '"a"\n[1, 2]', ("a.jsonl line 2", "got a list")),
        ("a.jsonl", "null", ("a.jsonl line 1", "got null")),
        ("a.jsonl", '{"body": "a", "id": "x"}', ("a.jsonl line 1", "'text'", "'body', 'id'")),
        ("a.jsonl", "{}", ("a.jsonl line 1", "'text'", "none")),
        ("a.jsonl", '{"text": null}', ("a.jsonl line 1", "text must be a str", "NoneType")),
        ("a.jsonl", '{"text": "a", "id": true}', ("a.jsonl line 1", "id must be a str")),
        ("a.jsonl", '{"text": "a", "title": 3}', ("a.jsonl line 1", "title must be a str")),
        ("a.jsonl", '{"text": "a", "score": "high"}', ("a.jsonl line 1", "score must be a number", "'high'")),
        ("a.jsonl", '{"text": "a", "score": 1e999}', ("a.jsonl line 1", "score must be finite")),
        ("a.jsonl", '{"text": "a", "metadata": [1]}', ("a.jsonl line 1", "metadata", "a list")),
        ("a.jsonl", '{"text": "a", "metadata": {"p": 1}, "p": 2}', ("a.jsonl line 1", "'p'", "which one")),
        ("a.json", '{"text": "a"}', ("a.json", "list", "an object")),
        ("a.json", '["a",\n"b"', ("a.json line 2", "not JSON")),
        ("a.json", '["a", 3]', ("a.json item 2", "a number")),
        ("a.txt", b"caf\xe9", ("a.txt", "not UTF-8", "byte 3")),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(
    tmp_path: Path, name: str, text: str | bytes, words: tuple[str, ...]
) -> None:
    path = write(tmp_path / name, text)
    with pytest.raises(InvalidArgumentError) as caught:
        read_documents(path)
    for word in words:
        assert word in str(caught.value)
    assert_refused(rank("--source", f"a={path}"), *words)


def test_a_name_ends_at_the_first_equals_sign(tmp_path: Path) -> None:
    path = write(tmp_path / "a=b.txt", "one")
    assert read_named_files([f"x={path}"]) == {"x": [Document("one", id="a=b.txt:1")]}


# --- errors


@pytest.mark.parametrize("argument", ["wiki.jsonl", "=wiki.jsonl", "wiki=", "", " =x"])
def test_a_source_must_have_a_name_and_a_path(argument: str) -> None:
    assert_refused(rank("--source", argument), "NAME=PATH", repr(argument))


def test_a_name_given_twice_is_refused(notes: str) -> None:
    assert_refused(rank("--source", notes, "--source", notes), "'notes' twice")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert_refused(rank("--source", f"a={tmp_path / 'no.txt'}"), "no.txt", "No such file")
    assert_refused(rank("--source", f"a={tmp_path}"), str(tmp_path), "cannot be read")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--scorer", "gate"], ("scorer", "'gate'", "did you mean 'gates'?")),
        (["--target", "answer"], ("target", "'answer'")),
        (["--target", "reference"], ("reference",)),
        (["--target", "query", "--reference", "At nine."], ("reference", "'query'")),
        (["--reference", " "], ("reference", "blank")),
        (["--top-n", "0"], ("top_n", "0")),
        (["--min-score", "nan"], ("min_score", "nan")),
        (["--max-document-tokens", "2"], ("max_document_tokens", "2")),
        (["--token-budget", "0"], ("token_budget", "0")),
        (["--selection", "best"], ("selection", "'best'")),
        (["--order", "random"], ("order", "'random'")),
        (["--fusion", "all"], ("fusion", "'all'")),
        (["--device", "toaster"], ("device 'toaster'",)),
        (["--dtype", "int8"], ("dtype", "'int8'")),
    ],
)
def test_C12_an_option_that_cannot_be_meant_is_refused(
    notes: str, arguments: list[str], words: tuple[str, ...]
) -> None:
    assert_refused(rank("--source", notes, *arguments), *words)


@pytest.mark.parametrize("query", ["", "  ", "\u200b"])
def test_an_empty_query_is_refused(notes: str, query: str) -> None:
    assert_refused(rank("--source", notes, query=query), "query")


def test_a_model_that_is_not_there_is_a_failure_of_one_line(notes: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert_refused(rank("--source", notes, "--model", str(tmp_path / "empty")), "could not be loaded", code=1)


def test_C27_a_document_beyond_the_context_is_a_failure_of_one_line(tmp_path: Path, model: str) -> None:
    path = write(tmp_path / "long.txt", "tram " * 2000)
    refused = rank("--source", f"long={path}", "--model", model)
    assert_refused(refused, "document 'long.txt:1' is longer", "(source 'long')", "2003 tokens", "512", code=1)


def test_missing_and_malformed_options_leave_no_traceback(notes: str) -> None:
    for arguments in (
        ["rank"],
        ["rank", "--query", "q"],
        ["rank", "-q", "q", "-s", notes, "--top-n", "five"],
        ["sort"],
    ):
        result = run(*arguments)
        assert result.exit_code == 2 and result.stdout == ""
        assert "Error" in result.stderr and "Traceback" not in result.stderr


def test_escape_sequences_in_arguments_do_not_reach_the_terminal() -> None:
    result = rank("--source", "\x1b[31mx=\x1b[2J/no\nfile")
    assert_refused(result, "cannot be read")
    assert "\x1b" not in result.stderr


# --- results


def test_json_is_the_result_of_the_library(notes: str, model: str) -> None:
    result = rank("--source", notes, "--model", model, "--top-n", "2", "--json")
    assert result.exit_code == 0 and result.stderr == ""
    printed = json.loads(result.stdout)
    expected = GradReranker(model).rerank(QUERY, read_named_files([notes]), top_n=2).to_dict()
    expected = json.loads(json.dumps(expected, default=str))
    assert set(printed) == set(expected)
    assert [d["id"] for d in printed["documents"]] == [d["id"] for d in expected["documents"]]
    for whole in (printed, expected):
        for name in TIMES:
            del whole[name]
    assert printed == expected


@pytest.mark.parametrize("scorer", ["gates", "mixture", "ablation"])
def test_every_scorer_and_option_reaches_the_library(tmp_path: Path, notes: str, model: str, scorer: str) -> None:
    path = write(tmp_path / "w.jsonl", json.dumps({"text": "The tram is late.", "day": "Sunday"}))
    arguments = ["-s", notes, "-s", f"w={path}", "--model", model, "--scorer", scorer, "--json", "--all-sources"]
    result = rank(*arguments, "--reference", "At nine.", "--device", "cpu", "--dtype", "float64")
    assert result.exit_code == 0, result.stderr
    printed = json.loads(result.stdout)
    assert (printed["scorer"], printed["target"], printed["target_text"]) == (scorer, "reference", "At nine.")
    assert [s["gain"] for s in printed["sources"]] == [None, None]
    assert {"day": "Sunday"} in [d["metadata"] for d in printed["documents"]]
    expected = GradReranker(model, dtype="float64").rerank(
        QUERY,
        read_named_files([notes, f"w={path}"]),
        scorer=scorer,
        target="reference",
        reference="At nine.",
        select_sources=False,
    )
    assert [d["score"] for d in printed["documents"]] == pytest.approx([d.score for d in expected], abs=1e-9)


def test_min_score_is_a_bound_that_may_be_negative(notes: str, model: str) -> None:
    everything = json.loads(rank("--source", notes, "--model", model, "--json").stdout)["documents"]
    bound = everything[2]["score"]
    kept = json.loads(rank("--source", notes, "--model", model, "--json", f"--min-score={bound!r}").stdout)
    assert [d["id"] for d in kept["documents"]] == [d["id"] for d in everything[:3]]
    assert {d["reason"] for d in kept["dropped"]} == {"min_score"}


def test_a_table_goes_to_stdout_without_colour_codes_when_piped(notes: str, model: str) -> None:
    result = rank("--source", notes, "--model", model, "--top-n", "3", "--scorer", "ablation")
    assert result.exit_code == 0 and result.stderr == ""
    assert f"Question: {QUERY}" in result.stdout and "Dropped: 2 beyond top_n" in result.stdout
    assert result.stdout.count("notes.txt:") == 3 and "Scorer ablation" in result.stdout
    assert "\x1b" not in result.stdout and "\r" not in result.stdout


def test_C26_a_cut_document_gives_one_line_of_warning(notes: str, model: str) -> None:
    result = rank("--source", notes, "--model", model, "--max-document-tokens", "8", "--json")
    assert result.exit_code == 0
    assert result.stderr.startswith("gradrerank: warning: ") and result.stderr.count("\n") == 1
    assert "max_document_tokens=8" in result.stderr and "notes.txt:1" in result.stderr
    assert any(d["truncated"] for d in json.loads(result.stdout)["documents"])


def test_C01_nothing_to_rank_is_a_result(tmp_path: Path, model: str) -> None:
    path = write(tmp_path / "a.jsonl", '""\n" "')
    result = rank("--source", f"a={path}", "--model", model)
    assert result.exit_code == 0 and result.stderr == ""
    assert "No document was ranked." in result.stdout and "Dropped: 2 blank" in result.stdout


def test_hostile_texts_are_printed_as_text(tmp_path: Path, model: str) -> None:
    texts = ["[/] [bold]x", "\x1b[31mred\x1b[0m \x1b]0;t\x07", "lone \ud800 surrogate", "\u202egnp.exe"]
    path = write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, texts)))
    table = rank("--source", f"a={path}", "--model", model)
    assert table.exit_code == 0, table.stderr
    assert "[/] [bold]x" in table.stdout and not set(table.stdout) & set("\x1b\x07\u202e\ud800")
    printed = json.loads(rank("--source", f"a={path}", "--model", model, "--json").stdout)
    assert sorted(d["text"] for d in printed["documents"]) == sorted(texts)


def test_warnings_filters_and_verbosity_are_given_back(notes: str, model: str) -> None:
    import warnings

    from transformers.utils import logging

    before = (list(warnings.filters), warnings.showwarning, logging.get_verbosity(), logging.is_progress_bar_enabled())
    assert rank("--source", notes, "--model", model).exit_code == 0
    after = (list(warnings.filters), warnings.showwarning, logging.get_verbosity(), logging.is_progress_bar_enabled())
    assert after == before


# --- the command itself


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT / "core"), str(ROOT)])
    plain = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS")}
    return subprocess.run(
        [sys.executable, "-m", "gradrerank", *arguments],
        env={**plain, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
    )


def test_version_and_help() -> None:
    assert run("--version").stdout == f"gradrerank {gradrerank.__version__}\n"
    shown = run("rank", "--help")
    assert shown.exit_code == 0 and "NAME=PATH" in shown.stdout and "metadata" in shown.stdout
    assert all(name in run("--help").stdout for name in ("demo", "rank"))


def test_help_does_not_load_torch() -> None:
    code = "import sys; import gradrerank.cli; print('torch' in sys.modules or 'transformers' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "core")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "False\n", done.stderr
    done = process("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gradrerank {gradrerank.__version__}\n", "")


def test_the_demo_needs_two_documents_from_two_sources_and_holds_a_duplicate() -> None:
    sources = demo_sources()
    by_id = {d.id: (name, d) for name, documents in sources.items() for d in documents}
    first, second = (by_id[name] for name in NEEDED)
    assert first[0] != second[0]
    assert "Ada Morland" in QUESTION and "Ada Morland" in first[1].text and "Grey Holm" in first[1].text
    assert "Grey Holm" in second[1].text and "Morland" not in second[1].text
    twins = [name for name, d in by_id.values() if d.text == second[1].text and d.title == second[1].title]
    assert twins == ["timetable", "forum"]
    assert demo_sources() is not sources and all(len(documents) >= 3 for documents in sources.values())


@pytest.mark.real_model
def test_the_demo_ranks_both_needed_documents_on_top() -> None:
    done = process("demo", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if re.match(r"\d+ +[+-]?\d\.", line)]
    assert {name for name in NEEDED if any(f"({name})" in row for row in rows[:2])} == set(NEEDED)
    assert all(row.split()[1].startswith("+") for row in rows[:2])
    assert len(rows) == 8
    assert all(row.split()[1].startswith("-") for row in rows[2:])
    assert "timetable #2" in done.stdout and "forum #3" in done.stdout and "Dropped: 1 blank" in done.stdout
    assert "\x1b" not in done.stdout and max(map(len, done.stdout.splitlines())) <= 80
    # The first run on a machine shows a bar of the one-off conversion; nothing else is ever there.
    rest = [part for part in done.stderr.replace("\r", "\n").split("\n") if part.strip()]
    assert all("Converting and de-quantizing" in part for part in rest), done.stderr


def test_the_context_alone_within_a_budget(notes: str, model: str) -> None:
    arguments = ["--source", notes, "--model", model, "--token-budget", "40", "--order", "edges"]
    printed = rank(*arguments, "--context")
    result = json.loads(rank(*arguments, "--json").stdout)
    assert printed.exit_code == 0 and printed.stdout == "\n\n".join(d["text"] for d in result["documents"]) + "\n"
    assert 0 < result["context_tokens"] <= 40 and {d["reason"] for d in result["dropped"]} == {"token_budget"}
    assert "tokens kept" in rank(*arguments).stdout


def test_the_context_stands_in_the_json_where_both_are_asked_for(notes: str, model: str) -> None:
    arguments = ["--source", notes, "--model", model, "--top-n", "2"]
    both = json.loads(rank(*arguments, "--json", "--context").stdout)
    assert both["context"] + "\n" == rank(*arguments, "--context").stdout
    assert len(both["documents"]) == 2 and "context" not in json.loads(rank(*arguments, "--json").stdout)


def test_what_is_added_to_the_utility_is_a_choice(notes: str, model: str) -> None:
    arguments = ["--source", notes, "--model", model, "--scorer", "gates", "--json"]
    alone, by_rank = (json.loads(rank(*arguments, "--fusion", how).stdout)["documents"] for how in ("off", "rrf"))
    assert {d["text"]: d["score"] for d in alone} != {d["text"]: d["score"] for d in by_rank}
    assert {d["text"]: d["scores"]["gates"] for d in alone} == {d["text"]: d["scores"]["gates"] for d in by_rank}


def test_C15_a_limit_on_no_source_is_refused_before_a_model_is_loaded(notes: str) -> None:
    refused = rank("--source", notes, "--model", "no-such-model", "--per-source", "nodes=1")
    assert_refused(refused, "per_source names 'nodes', which is no source; sources are notes")


def test_limits_by_source_and_compression_reach_the_library(notes: str, model: str) -> None:
    arguments = ["--source", notes, "--model", model, "--json", "--compress", "--selection", "knapsack"]
    result = json.loads(rank(*arguments, "--per-source", "notes=:2").stdout)
    assert {"per_source", "selection"} >= {d["reason"] for d in result["dropped"]} != set()
    assert len(json.loads(rank(*arguments, "--per-source", "notes=1:").stdout)["documents"]) >= 1


@pytest.mark.parametrize("value", ["notes", "=3", "notes=", "notes=x", "notes=-1", "notes=1:2:3", "notes=3:2", "no=1"])
def test_a_limit_that_cannot_be_meant_is_refused(notes: str, model: str, value: str) -> None:
    assert_refused(rank("--source", notes, "--model", model, "--per-source", value), "per", "source")
