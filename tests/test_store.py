"""Caches of documents: names, bytes, disk, and what survives damage."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny import DOCUMENTS, QUERY, tiny, tiny_model, tiny_tokenizer

from gradrerank import DocumentStore, Generator, GradReranker
from gradrerank.errors import InvalidArgumentError, StoreWarning
from gradrerank.lm.disk_store import DiskStore
from gradrerank.lm.kv_store import DocumentCache, store_key


def cache_of(n_bytes: int, fill: int = 0) -> DocumentCache:
    half = torch.full((1, 1, n_bytes // 2, 1), fill, dtype=torch.uint8)
    return DocumentCache(half, half.clone())


def ranked(reranker: GradReranker) -> list[tuple[str, float]]:
    return [(d.text, d.score) for d in reranker.rerank(QUERY, {"a": DOCUMENTS})]


def test_store_counts_its_bytes_and_lets_the_least_recently_used_go() -> None:
    store = DocumentStore(capacity=100)
    for name in "abc":
        store.put(name, cache_of(30))
    assert (len(store), store.nbytes) == (3, 90)
    assert store.get("a") is not None
    store.put("d", cache_of(40))
    assert store.get("b") is None, "b was used least recently"
    assert store.get("a") is not None
    assert store.nbytes == 100
    store.put("e", cache_of(200))
    assert store.get("e") is None, "larger than the store"
    assert store.nbytes <= 100
    store.clear()
    assert (len(store), store.nbytes) == (0, 0)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 30)), max_size=40))
def test_store_never_holds_more_than_its_capacity(puts: list[tuple[str, int]]) -> None:
    store = DocumentStore(capacity=60)
    for name, half in puts:
        store.put(name, cache_of(2 * half))
        assert store.nbytes == sum(c.nbytes for c in store._entries.values()) <= 60


def test_store_shared_by_threads_keeps_its_count() -> None:
    store = DocumentStore(capacity=500)

    def work(seed: int) -> None:
        for i in range(300):
            store.put(f"{(seed * i) % 37}", cache_of(2 * (1 + i % 20)))
            store.get(f"{i % 37}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.nbytes == sum(c.nbytes for c in store._entries.values()) <= 500


def test_keys_differ_with_everything_that_changes_the_numbers() -> None:
    keys = {
        store_key(fingerprint, prefix, document)
        for fingerprint in ("a", "ab")
        for prefix in ((), (1,), (1, 2))
        for document in ((1,), (2,), (1, 2), (2, 1))
    }
    assert len(keys) == 24


def test_fingerprints_differ_with_weights_and_type_and_not_with_the_object() -> None:
    def name_of(seed: int, dtype: torch.dtype) -> str:
        generator = Generator(tiny_model(seed=seed, dtype=dtype), tiny_tokenizer(), store=DocumentStore())
        return generator.engine.fingerprint()

    kinds = [(seed, dtype) for seed in (0, 1) for dtype in (torch.float32, torch.bfloat16)]
    names = [name_of(*kind) for kind in kinds]
    assert len(set(names)) == 4
    assert [name_of(*kind) for kind in kinds] == names


def test_two_rows_that_changed_places_make_another_model(tmp_path: Path) -> None:
    swapped = tiny_model()
    with torch.no_grad():
        rows = swapped.get_input_embeddings().weight
        rows[[300, 301]] = rows[[301, 300]].clone()
    first = GradReranker(tiny(), cache_folder=tmp_path)
    first.rerank(QUERY, {"a": DOCUMENTS})
    other = GradReranker((swapped, tiny_tokenizer()), cache_folder=tmp_path).rerank(QUERY, {"a": DOCUMENTS})
    assert other.tokens["documents"] > 0
    assert other.documents == GradReranker((swapped, tiny_tokenizer())).rerank(QUERY, {"a": DOCUMENTS}).documents


@pytest.mark.parametrize("how", ["in place", "through .data", "load_state_dict"])
def test_weights_that_change_are_noticed(how: str) -> None:
    model, tokenizer = tiny()
    reranker = GradReranker((model, tokenizer))
    before = ranked(reranker)
    weight = model.model.layers[0].self_attn.k_proj.weight
    if how == "in place":
        with torch.no_grad():
            weight.mul_(2)
    elif how == "through .data":
        weight.data.mul_(2)
    else:
        model.load_state_dict({k: v * 2 if "k_proj" in k else v for k, v in model.state_dict().items()})
    assert ranked(reranker) == ranked(GradReranker((model, tokenizer))) != before


def test_a_store_too_small_for_the_documents_changes_no_score() -> None:
    assert ranked(GradReranker(tiny(), cache_bytes=0)) == ranked(GradReranker(tiny()))


def test_rerankers_of_the_same_weights_share_a_store_and_others_do_not_mix() -> None:
    store = DocumentStore()
    first = GradReranker(tiny(), store=store)
    expected = ranked(first)
    n = len(store)
    second = GradReranker(tiny(), store=store)
    result = second.rerank(QUERY, {"a": DOCUMENTS})
    assert result.tokens["documents"] == 0
    assert [(d.text, d.score) for d in result] == expected
    other = GradReranker((tiny_model(seed=5), tiny_tokenizer()), store=store)
    assert ranked(other) == ranked(GradReranker((tiny_model(seed=5), tiny_tokenizer())))
    assert len(store) == 2 * n


def test_store_and_a_description_of_another_are_refused_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="store is ready made"):
        GradReranker(tiny(), store=DocumentStore(), cache_folder=tmp_path)
    with pytest.raises(InvalidArgumentError, match="capacity must be"):
        DocumentStore(-1)


# -- on disk ------------------------------------------------------------------------------------------------


def test_what_is_on_disk_is_bit_equal_and_sends_no_token(tmp_path: Path) -> None:
    expected = ranked(GradReranker(tiny(), cache_folder=tmp_path))
    later = GradReranker(tiny(), cache_folder=tmp_path)
    result = later.rerank(QUERY, {"a": DOCUMENTS})
    assert result.tokens["documents"] == 0
    assert [(d.text, d.score) for d in result] == expected
    assert len(DiskStore(tmp_path)) == len(DOCUMENTS)
    assert not list(tmp_path.rglob(".writing-*"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_every_type_survives_the_disk(tmp_path: Path, dtype: torch.dtype) -> None:
    model = (tiny_model(dtype=dtype), tiny_tokenizer())
    assert ranked(GradReranker(model, cache_folder=tmp_path)) == ranked(GradReranker(model, cache_folder=tmp_path))


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "junk", "another document"])
def test_a_damaged_file_is_ignored_and_written_again(tmp_path: Path, damage: str) -> None:
    expected = ranked(GradReranker(tiny(), cache_folder=tmp_path))
    files = sorted(tmp_path.rglob("*.safetensors"))
    good = [file.read_bytes() for file in files]
    for file, data in zip(files, good, strict=True):
        if damage == "cut":
            file.write_bytes(data[:-7])
        elif damage == "flipped":
            file.write_bytes(data[:-9] + bytes([data[-9] ^ 4]) + data[-8:])
        elif damage == "emptied":
            file.write_bytes(b"")
        elif damage == "junk":
            file.write_bytes(b"\xff" * len(data))
        else:
            file.write_bytes(good[0])
    again = GradReranker(tiny(), cache_folder=tmp_path).rerank(QUERY, {"a": DOCUMENTS})
    # Not bit-equal: documents that are read again stand in another batch than the first time.
    assert [(d.text, pytest.approx(d.score, abs=1e-6)) for d in again] == expected
    assert again.tokens["documents"] > 0
    assert all(DiskStore(tmp_path).get(file.stem) is not None for file in files), "whole again"


def test_a_write_that_fails_leaves_nothing_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(path: Path, data: Any) -> int:
        write(path, data[: len(data) // 2])
        raise OSError(28, "No space left on device")

    store = DiskStore(tmp_path)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        store.put("ab" * 20, cache_of(10))
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    with pytest.warns(StoreWarning, match="could not be written to disk: .*No space left"):
        result = GradReranker(tiny(), cache_folder=tmp_path).rerank(QUERY, {"a": DOCUMENTS})
    assert [(d.text, d.score) for d in result] == ranked(GradReranker(tiny()))


@pytest.mark.parametrize("folder", ["", 5, "/proc/nowhere/at/all"])
def test_a_folder_that_cannot_be_is_named(folder: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="DiskStore"):
        GradReranker(tiny(), cache_folder=folder)


def test_what_a_killed_writer_left_is_swept_and_what_is_being_written_stays(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    old, new = tmp_path / "ab" / ".writing-1", tmp_path / "ab" / ".writing-2"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (0, 0))
    DiskStore(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_files_can_be_read_by_whom_the_folder_is_shared_with(tmp_path: Path) -> None:
    DiskStore(tmp_path).put("ab" * 20, cache_of(10))
    plain = tmp_path / "plain"
    plain.write_bytes(b"")
    (file,) = tmp_path.rglob("*.safetensors")
    assert file.stat().st_mode == plain.stat().st_mode


def write_many(folder: str, seed: int) -> None:
    store = DiskStore(folder)
    for i in range(60):
        store.put(f"{(i * seed) % 13:040x}", cache_of(64, fill=(i * seed) % 13))


def test_processes_that_write_the_same_files_leave_whole_ones(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=write_many, args=(str(tmp_path), seed)) for seed in (1, 5)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    store = DiskStore(tmp_path)
    for name in range(13):
        cache = store.get(f"{name:040x}")
        assert cache is not None
        assert set(cache.keys.flatten().tolist()) == {name}


def test_a_store_is_pickled_by_its_description(tmp_path: Path) -> None:
    store = DocumentStore(77, DiskStore(tmp_path))
    store.put("ab" * 20, cache_of(10))
    twin = pickle.loads(pickle.dumps(store))
    assert (twin.capacity, len(twin)) == (77, 0)
    assert twin.get("ab" * 20) is not None


# -- indexing -----------------------------------------------------------------------------------------------


def test_index_reads_once_and_reranking_reads_nothing_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reranker = GradReranker(tiny(), cache_folder=tmp_path)
    report = reranker.index({"a": [*DOCUMENTS, " "], "b": DOCUMENTS[:2]})
    assert (report.documents, report.read) == (5, 5)
    assert report.tokens > 0
    again = GradReranker(tiny(), cache_folder=tmp_path).index(DOCUMENTS)
    assert (again.documents, again.read, again.tokens) == (5, 0, 0)
    assert GradReranker(tiny(), cache_folder=tmp_path).rerank(QUERY, {"a": DOCUMENTS}).tokens["documents"] == 0
    assert capsys.readouterr().err == "", "no bar where there is no terminal"
    reranker.index(DOCUMENTS, progress=True)
    assert "reading" in capsys.readouterr().err


def test_an_interrupted_index_is_taken_up_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reranker = GradReranker(tiny(), cache_folder=tmp_path, batch_size=1)
    original, done = reranker.generator.reader.encode, []

    def interrupted(sequences: Any) -> Any:
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(1)
        return original(sequences)

    monkeypatch.setattr(reranker.generator.reader, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reranker.index(DOCUMENTS)
    assert len(DiskStore(tmp_path)) == 3
    later = GradReranker(tiny(), cache_folder=tmp_path).index(DOCUMENTS)
    assert (later.documents, later.read) == (5, 2)
    next(iter(tmp_path.rglob("*.safetensors"))).write_bytes(b"torn")
    assert GradReranker(tiny(), cache_folder=tmp_path).index(DOCUMENTS).read == 1


@pytest.mark.parametrize(("show", "n", "bar"), [(True, 5, True), (True, 2, False), (False, 5, False), (None, 5, False)])
def test_a_bar_is_shown_where_it_is_asked_for_and_reading_takes_long(
    capsys: pytest.CaptureFixture[str], show: bool | None, n: int, bar: bool
) -> None:
    GradReranker(tiny(), batch_size=2, show_progress=show).rerank(QUERY, {"a": DOCUMENTS[:n]})
    assert ("reading" in capsys.readouterr().err) == bar
