"""A killed writer, a full disk, a file with wrong bytes: never a wrong score, and nothing lost."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import examples
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny

from gradrerank import GradReranker
from gradrerank.errors import ModelLoadError, StoreWarning, UnsupportedModelError
from gradrerank.lm.disk_store import DiskStore
from gradrerank.lm.kv_store import DocumentCache

NAME = "ab" * 20


def ranked(reranker: GradReranker) -> list[tuple[str, Any]]:
    return [(d.text, pytest.approx(d.score, abs=1e-5)) for d in reranker.rerank(QUERY, {"a": DOCUMENTS})]


def plain(reranker: GradReranker) -> list[tuple[str, float]]:
    return [(d.text, d.score) for d in reranker.rerank(QUERY, {"a": DOCUMENTS})]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[DiskStore, Path, bytes, DocumentCache]:
    store = DiskStore(tmp_path_factory.mktemp("store"))
    cache = DocumentCache(torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4))
    store.put(NAME, cache)
    (path,) = store.folder.rglob("*.safetensors")
    return store, path, path.read_bytes(), cache


def equal(one: DocumentCache, other: DocumentCache) -> bool:
    pairs = ((one.keys, other.keys), (one.values, other.values))
    return all(a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b) for a, b in pairs)


@examples(150)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4), st.none() | st.floats(0, 1)
)
def test_fuzz_a_file_with_wrong_bytes_gives_nothing_or_the_very_numbers(
    whole: tuple[DiskStore, Path, bytes, DocumentCache], changes: list[tuple[int, int]], cut: float | None
) -> None:
    store, path, good, cache = whole
    data = bytearray(good)
    for at, value in changes:
        # Where the header is, as often as where the numbers are.
        data[at % (400 if at % 2 else len(data))] = value
    path.write_bytes(bytes(data) if cut is None else bytes(data[: int(cut * len(data))]))
    found = store.get(NAME)
    assert found is None or equal(found, cache)


@pytest.mark.parametrize("what", ["type", "shape", "names"])
def test_bytes_that_are_whole_are_not_read_as_other_numbers(
    whole: tuple[DiskStore, Path, bytes, DocumentCache], what: str
) -> None:
    store, path, good, _ = whole
    other = {
        "type": good.replace(b'"F32"', b'"I32"'),
        "shape": good.replace(b"[2,2,5,4]", b"[2,2,4,5]"),
        "names": good.replace(b'"keys"', b'"KEYS"'),
    }[what]
    assert other != good
    path.write_bytes(other)
    try:
        assert store.get(NAME) is None
    finally:
        path.write_bytes(good)


@pytest.mark.parametrize("instead", ["folder", "link to nowhere", "pickle", "other"])
def test_what_is_no_cache_is_ignored_and_ranking_goes_on(tmp_path: Path, instead: str) -> None:
    expected = ranked(GradReranker(tiny(), cache_folder=tmp_path))
    for path in sorted(tmp_path.rglob("*.safetensors"))[:2]:
        path.unlink()
        if instead == "folder":
            path.mkdir()
        elif instead == "link to nowhere":
            path.symlink_to(tmp_path / "nowhere")
        elif instead == "pickle":
            torch.save({"keys": torch.zeros(1), "values": torch.zeros(1)}, path)
        else:
            path.write_text("{}")
    reranker = GradReranker(tiny(), cache_folder=tmp_path)
    if instead == "folder":
        with pytest.warns(StoreWarning):
            assert plain(reranker) == expected
    else:
        assert plain(reranker) == expected


_WRITER = """
import sys
sys.path.insert(0, {tests!r})
from tiny import tiny
from gradrerank import GradReranker
reranker = GradReranker(tiny(), cache_folder={folder!r}, batch_size=1)
print("ready", flush=True)
reranker.index([f"The tram number {{i}} runs over the hill. " * 20 for i in range(3000)])
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="there is no SIGKILL here")
def test_a_process_that_is_killed_while_it_writes_leaves_whole_files(tmp_path: Path) -> None:
    code = _WRITER.format(tests=os.path.dirname(__file__), folder=str(tmp_path))
    n = 0
    for wait in (0.05, 0.2):
        writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
        deadline = time.monotonic() + 60
        while len(list(tmp_path.rglob("*.safetensors"))) <= n and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(wait)
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
        writer.stdout.close()
        files = list(tmp_path.rglob("*.safetensors"))
        store = DiskStore(tmp_path)
        assert len(files) > n and all(store.get(file.stem) is not None for file in files)
        n = len(files)
    documents = [f"The tram number {i} runs over the hill. " * 20 for i in range(5)]
    after = GradReranker(tiny(), cache_folder=tmp_path).rerank(QUERY, {"a": documents})
    fresh = GradReranker(tiny()).rerank(QUERY, {"a": documents})
    assert after.tokens["documents"] < fresh.tokens["documents"], "what was written serves"
    assert {d.text: d.score for d in after} == pytest.approx({d.text: d.score for d in fresh}, abs=1e-5)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_a_warning_and_the_scores_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = ranked(GradReranker(tiny()))
    write = Path.write_bytes

    def to_a_full_disk(path: Path, data: Any) -> int:
        write(path, b"")
        with open("/dev/full", "wb") as full:  # a real ENOSPC, from the kernel
            return full.write(data)

    monkeypatch.setattr(Path, "write_bytes", to_a_full_disk)
    reranker = GradReranker(tiny(), cache_folder=tmp_path)
    with pytest.warns(StoreWarning, match="No space left"):
        assert plain(reranker) == expected
    assert not [p for p in tmp_path.rglob("*") if p.is_file()], "nothing half written"
    assert plain(reranker) == expected, "from memory"
    monkeypatch.undo()
    assert GradReranker(tiny(), cache_folder=tmp_path).index(DOCUMENTS).read == len(DOCUMENTS)


def test_a_folder_that_vanishes_is_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "caches"
    reranker = GradReranker(tiny(), cache_folder=folder)
    expected = ranked(GradReranker(tiny()))
    folder.rmdir()
    with pytest.warns(StoreWarning):
        assert plain(reranker) == expected


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["cut", "emptied", "junk", "gone"])
def test_a_damaged_model_folder_is_an_error_that_names_it_never_another_model(
    tmp_path: Path, file: str, damage: str
) -> None:
    for part in tiny():
        part.save_pretrained(tmp_path)
    path = tmp_path / file
    data = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes({"cut": data[: len(data) // 2], "emptied": b"", "junk": b"\xff" * len(data)}[damage])
    with pytest.raises((ModelLoadError, UnsupportedModelError), match=re.escape(str(tmp_path))):
        GradReranker(str(tmp_path))


def test_the_disk_holds_no_pickle(tmp_path: Path) -> None:
    GradReranker(tiny(), cache_folder=tmp_path).index(DOCUMENTS)
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert path.suffix == ".safetensors" and not data.startswith((b"PK", b"\x80"))
