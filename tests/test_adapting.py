"""What both framework packages share: the concurrent fetch, checks, the way back, the reranker loaded on demand."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import json
import pickle
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import tiny

from gradrerank import Document, GradReranker, PromptTexts, ScoreCalibration
from gradrerank.adapting import (
    LazyReranker,
    Occurrence,
    Occurrences,
    OnLoop,
    afetch_all,
    check_on_source_error,
    check_setting,
    check_sources,
    check_timeout,
    draft_prompt,
    fetch_all,
    merged_pool,
    occurrences_of,
    run_blocking,
    source_names,
)
from gradrerank.errors import (
    AllSourcesFailedError,
    InvalidArgumentError,
    InvalidTypeError,
    ModelLoadError,
    SourceWarning,
)

POLICIES = ("warn", "raise", "ignore")


def fail(error: BaseException) -> Any:
    raise error


async def aok(value: Any, seconds: float = 0.0) -> Any:
    await asyncio.sleep(seconds)
    return value


async def afail(error: BaseException) -> Any:
    raise error


def both(calls: dict[str, Any], **options: Any) -> list[Any]:
    """The fetch in threads, and the same on a loop: each source is a value to give or an exception to raise."""

    def call(value: Any) -> Any:
        return lambda: fail(value) if isinstance(value, BaseException) else value

    def acall(value: Any) -> Any:
        return lambda: afail(value) if isinstance(value, BaseException) else aok(value)

    return [
        lambda: fetch_all({name: call(v) for name, v in calls.items()}, **options),
        lambda: asyncio.run(afetch_all({name: acall(v) for name, v in calls.items()}, **options)),
    ]


# -- fetching --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [0, 1])
def test_fetch_answers_in_the_order_of_the_calls_and_runs_together(way: int) -> None:
    barrier, start = threading.Barrier(3), time.perf_counter()

    def meet(name: str) -> Any:
        barrier.wait(5)  # passes only when all three run at once
        return name

    if way == 0:
        fetched = fetch_all({name: (lambda name=name: meet(name)) for name in "cab"})
    else:
        fetched = asyncio.run(afetch_all({name: (lambda name=name: asyncio.to_thread(meet, name)) for name in "cab"}))
    assert list(fetched.results.items()) == [("c", "c"), ("a", "a"), ("b", "b")]
    assert fetched.errors == {}
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize("policy", POLICIES)
def test_fetch_of_no_source_is_empty(policy: Any) -> None:
    for fetch in both({}, on_error=policy):
        assert fetch().results == {}


@pytest.mark.parametrize("way", [0, 1])
def test_C13_warn_names_source_and_cause_and_goes_on(way: int) -> None:
    with pytest.warns(SourceWarning, match=r"source 'crm' failed and was left out: ConnectionError: down") as caught:
        fetched = both({"crm": ConnectionError("down"), "wiki": [1]})[way]()
    assert len(caught) == 1
    assert fetched.results == {"wiki": [1]}
    assert isinstance(fetched.errors["crm"], ConnectionError)


@pytest.mark.parametrize("way", [0, 1])
def test_C13_ignore_is_silent_and_still_tells(way: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fetched = both({"crm": ConnectionError("down"), "wiki": [1]}, on_error="ignore")[way]()
    assert list(fetched.results) == ["wiki"]
    assert list(fetched.errors) == ["crm"]


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("policy", ["warn", "ignore"])
def test_C13_all_failed_lists_every_cause(policy: str, way: int) -> None:
    with pytest.raises(AllSourcesFailedError, match=r"'crm': ConnectionError: down; 'web': KeyError: 'x'") as caught:
        both({"crm": ConnectionError("down"), "web": KeyError("x")}, on_error=policy)[way]()
    assert list(caught.value.causes) == ["crm", "web"]


@pytest.mark.parametrize("way", [0, 1])
def test_C13_raise_is_prompt_and_names_the_source(way: int) -> None:
    release, start = threading.Event(), time.perf_counter()
    with pytest.raises(ConnectionError, match="down") as caught:
        if way == 0:
            fetch_all({"slow": release.wait, "crm": lambda: fail(ConnectionError("down"))}, on_error="raise")
        else:
            asyncio.run(
                afetch_all(
                    {"slow": lambda: aok(1, 60), "crm": lambda: afail(ConnectionError("down"))}, on_error="raise"
                )
            )
    release.set()
    assert time.perf_counter() - start < 3
    assert caught.value.__notes__ == ["raised by source 'crm'"]


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_C13_what_is_no_error_of_a_source_ends_the_call(kind: type[BaseException], policy: str, way: int) -> None:
    with pytest.raises(kind):
        both({"wiki": [1], "crm": kind()}, on_error=policy)[way]()


@pytest.mark.parametrize("policy", POLICIES)
def test_C13_a_source_that_is_cancelled_from_within_cancels_the_call(policy: Any) -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(afetch_all({"a": lambda: afail(asyncio.CancelledError()), "b": lambda: aok(1)}, on_error=policy))


@pytest.mark.parametrize("way", [0, 1])
def test_timeout_is_an_error_of_that_source_alone(way: int) -> None:
    release, start = threading.Event(), time.perf_counter()
    with pytest.warns(SourceWarning, match=r"'slow' failed.*TimeoutError: source 'slow' gave no answer within 0.2 s"):
        if way == 0:
            fetched = fetch_all({"slow": lambda: release.wait(30), "quick": lambda: True}, timeout=0.2)
        else:
            fetched = asyncio.run(afetch_all({"slow": lambda: aok(1, 60), "quick": lambda: aok(True)}, timeout=0.2))
    release.set()
    assert fetched.results == {"quick": True}
    assert time.perf_counter() - start < 3


def test_timeout_under_raise_is_raised() -> None:
    with pytest.raises(TimeoutError, match="'slow'"):
        asyncio.run(afetch_all({"slow": lambda: aok(1, 60)}, timeout=0.1, on_error="raise"))


def test_a_hanging_source_does_not_keep_the_interpreter_alive() -> None:
    program = (
        "import threading, warnings; warnings.simplefilter('ignore')\n"
        "from gradrerank.adapting import fetch_all\n"
        "hang = threading.Event()\n"
        "print(fetch_all({'slow': hang.wait, 'quick': lambda: 1}, timeout=0.2).results)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "{'quick': 1}\n"


def test_importing_brings_no_torch() -> None:
    program = "import sys, gradrerank.adapting; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_sources_see_the_context_of_the_caller() -> None:
    user: contextvars.ContextVar[str] = contextvars.ContextVar("user", default="nobody")
    user.set("ada")
    assert fetch_all({"a": user.get, "b": user.get}).results == {"a": "ada", "b": "ada"}


def test_C13_cancelling_a_fetch_cancels_its_sources_and_waits_for_them() -> None:
    ended: list[str] = []

    async def source(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append(name)

    async def main() -> set[str]:
        task = asyncio.create_task(afetch_all({"a": lambda: source("a"), "b": lambda: source("b")}))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return {t.get_name() for t in asyncio.all_tasks()} - {asyncio.current_task().get_name()}  # type: ignore[union-attr]

    assert asyncio.run(main()) == set()
    assert sorted(ended) == ["a", "b"]


def test_C13_no_exception_is_left_unretrieved(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        calls = {"a": lambda: afail(ValueError("a")), "b": lambda: afail(ValueError("b")), "c": lambda: aok(1, 5)}
        with pytest.raises(ValueError, match="a"):
            await afetch_all(calls, on_error="raise")

    asyncio.run(main(), debug=False)
    assert "never retrieved" not in caplog.text


def test_a_source_that_refuses_to_end_is_left_behind() -> None:
    async def stubborn(release: asyncio.Event) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async def main() -> float:
        release, start = asyncio.Event(), time.perf_counter()
        with pytest.warns(SourceWarning, match="'stubborn'"):
            await afetch_all({"stubborn": lambda: stubborn(release), "ok": lambda: aok(1)}, timeout=0.1)
        release.set()
        return time.perf_counter() - start

    assert asyncio.run(main()) < 5


# -- beside an event loop --------------------------------------------------------------------------


def test_C17_run_blocking_lets_the_loop_tick_and_hands_over_results_and_errors() -> None:
    async def main() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticker = asyncio.create_task(tick())
        assert await run_blocking(lambda a, b: (time.sleep(0.3), a + b)[1], 1, 2) == 3
        ticker.cancel()
        with pytest.raises(KeyError, match="gone"):
            await run_blocking(fail, KeyError("gone"))
        return ticks

    assert asyncio.run(main()) > 15


def test_C17_a_call_that_is_cancelled_while_it_waits_never_starts() -> None:
    started: list[int] = []
    release = threading.Event()

    def work(i: int) -> None:
        started.append(i)
        release.wait(20)

    async def main() -> float:
        tasks = [asyncio.create_task(run_blocking(work, i)) for i in range(6)]
        await asyncio.sleep(0.2)
        begin = time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        took = time.perf_counter() - begin
        release.set()
        await run_blocking(str)  # the slots are free again
        return took

    assert asyncio.run(main()) < 1
    assert len(started) == 2


def test_C17_work_that_waits_for_more_work_does_not_lock_up() -> None:
    """Three calls at once, each of which starts a loop of its own and reranks there once more."""

    def outer(i: int) -> int:
        return asyncio.run(run_blocking(lambda: i * 2))

    async def main() -> list[int]:
        return list(await asyncio.wait_for(asyncio.gather(*(run_blocking(outer, i) for i in range(3))), 20))

    assert asyncio.run(main()) == [0, 2, 4]


def test_C13_leaving_cancels_what_a_thread_awaits_whenever_it_began() -> None:
    """Also what begins in the very moment of leaving, and after it."""
    ended: list[BaseException] = []

    async def main() -> None:
        begun = threading.Event()

        def work(loop: OnLoop) -> None:
            begun.wait(10)
            for _ in range(3):
                try:
                    loop.wait_for(asyncio.sleep(60))
                except CancelledError as error:
                    ended.append(error)

        for pause in (0.0, 0.001, 0.05):
            begun.clear()
            with pytest.raises(asyncio.TimeoutError), OnLoop() as loop:
                waiting = asyncio.ensure_future(run_blocking(work, loop))
                await asyncio.sleep(0.05)
                begun.set()
                await asyncio.wait_for(waiting, pause)
        await asyncio.wait_for(run_blocking(str), 10)
        await asyncio.sleep(0.1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no coroutine is left that was never awaited
        asyncio.run(main())
    assert len(ended) == 9


# -- checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "2"])
def test_C04_check_setting_names_setting_and_value(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"top_n must be a whole number >= 1 or None, got {value!r}"):
        check_setting("top_n", value)


def test_check_setting_gives_plain_numbers_and_one_kind_of_error() -> None:
    import numpy as np

    assert type(check_setting("top_n", np.int64(3))) is int
    assert type(check_setting("min_score", np.float32(0.5))) is float
    with pytest.raises(InvalidArgumentError, match="select_sources"):
        check_setting("select_sources", "yes")


def test_check_setting_takes_a_calibration_as_it_is_and_as_dumps_hold_it() -> None:
    curve = ScoreCalibration(method="platt", scorer="gates", target="query", coefficients=(1.0, 0.5, -1.0))
    assert check_setting("calibration", curve) is curve
    assert check_setting("calibration", json.loads(json.dumps(curve.to_dict()))) == curve
    for wrong in ({"method": "platt"}, "platt", 3):
        with pytest.raises(InvalidArgumentError, match="calibration"):
            check_setting("calibration", wrong)


@pytest.mark.parametrize("sources", [{}, [], None, "wiki", {"": 1}, {" ": 1}, {1: 1}])
def test_check_sources_refuses(sources: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="source"):
        check_sources(sources)


def test_check_sources_copies() -> None:
    given_sources = {"wiki": object()}
    assert check_sources(given_sources) == given_sources
    assert check_sources(given_sources) is not given_sources


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "3"])
def test_check_timeout_refuses(timeout: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout"):
        check_timeout(timeout)


def test_checks_accept() -> None:
    assert (check_timeout(None), check_timeout(3)) == (None, 3.0)
    assert [check_on_source_error(p) for p in POLICIES] == list(POLICIES)
    with pytest.raises(InvalidArgumentError, match="on_source_error must be one of .* got 'warm'; did you mean 'warn'"):
        check_on_source_error("warm")


@pytest.mark.parametrize("value", [3, {"a"}, ["a", 1], {"a": 1}])
def test_source_names_refuses_what_is_no_name(value: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"documents\[3\]"):
        source_names(value, "documents[3]")


def test_source_names_refuses_a_blank_name() -> None:
    with pytest.raises(InvalidArgumentError, match="blank"):
        source_names(["a", " "], "documents[3]")


# -- there and back --------------------------------------------------------------------------------


class Item:
    """Stands for a framework's document."""

    def __init__(self, text: str, **metadata: Any) -> None:
        self.text, self.metadata = text, metadata


@given(st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from(["x", "y", "z", " ", "x "]), max_size=6)))
def test_C03_every_candidate_leads_back_to_the_object_with_its_best_rank(texts: dict[str, list[str]]) -> None:
    items = {name: [Item(text) for text in found] for name, found in texts.items()}
    found = Occurrences({n: [Occurrence(i, Document(i.text)) for i in own] for n, own in items.items()})
    for candidate in merged_pool(found.sources).candidates:
        item = found.item(candidate.provenance)
        assert item.text == candidate.text
        record = found.record(candidate.provenance)
        for name, rank in record["ranks"].items():
            same = [r for r, i in enumerate(items[name], start=1) if i.text.strip() == item.text.strip()]
            assert rank == same[0]


def test_C08_record_keeps_every_source_and_the_metadata_of_duplicates() -> None:
    wiki, notes = Item("Trams run hourly."), Item("Trams run hourly.")
    found = Occurrences(
        {
            "wiki": [Occurrence(wiki, Document(wiki.text, id="w1", metadata={"file": "a"}, score=0.5))],
            "notes": [
                Occurrence(Item("other"), Document("other")),
                Occurrence(notes, Document(notes.text, id="n9", metadata={"file": "b", "tags": ["x"]})),
            ],
        }
    )
    first = merged_pool(found.sources).candidates[0]
    assert found.item(first.provenance) is wiki
    record = found.record(first.provenance, {"gates": 0.25})
    assert record == {
        "sources": ["wiki", "notes"],
        "ranks": {"wiki": 1, "notes": 2},
        "scores": {"wiki": 0.5, "notes": None},
        "ids": {"wiki": "w1", "notes": "n9"},
        "metadata": {"notes": {"file": "b", "tags": ["x"]}},
        "stages": {"gates": 0.25},
    }
    record["metadata"]["notes"]["tags"].append("y")
    assert first.provenance[1].metadata["tags"] == ["x"]


def test_C08_a_record_survives_regrouping() -> None:
    """Merged once, the record is all that is left; grouped again by it, nothing is lost, in whatever order."""
    sources = {
        "wiki": [Document("a", id="w1", metadata={"f": 1}, score=2.0), Document("b", id="w2"), Document("c", id="w3")],
        "web": [Document("c", id="x1", metadata={"f": 9}), Document("a", id="x2", metadata={"f": 8}, score=0.5)],
    }
    once = Occurrences({n: [Occurrence(Item(d.text, **d.metadata), d) for d in ds] for n, ds in sources.items()})
    records = []
    for candidate in reversed(merged_pool(once.sources).candidates):
        item, record = once.item(candidate.provenance), once.record(candidate.provenance)
        records.append((item, Document(item.text, metadata=item.metadata), record))
    again: dict[str, list[Any]] = {}
    for item, document, record in records:
        for name, occurrence in occurrences_of(item, document, record["sources"], record):
            again.setdefault(name, []).append(occurrence)
    found = Occurrences(again)
    pool = merged_pool(found.sources)
    assert {c.text: found.record(c.provenance) for c in pool.candidates} == {i.text: r for i, _, r in records}
    assert [c.text for c in pool.candidates] == [c.text for c in merged_pool(sources).candidates]


@pytest.mark.parametrize("record", [None, 3, "x", {}, {"ranks": None}, {"sources": ["a"]}])
def test_what_is_no_record_is_not_read_as_one(record: Any) -> None:
    document = Document("x", id="i", score=1.0)
    assert list(occurrences_of("item", document, ["a", "b"], record)) == [
        ("a", Occurrence("item", document)),
        ("b", Occurrence("item", document)),
    ]


def test_C15_a_source_of_weight_zero_is_not_in_the_merged_pool() -> None:
    sources = {"a": [Document("x")], "b": [Document("y"), Document("x")]}
    assert [c.text for c in merged_pool(sources, {"a": 1, "b": 0}).candidates] == ["x"]
    with pytest.raises(InvalidArgumentError, match="'c', which is no source"):
        merged_pool(sources, {"c": 1})


def test_C12_a_record_is_json() -> None:
    import numpy as np

    found = Occurrences({"a": [Occurrence(1, Document("x", score=np.float32(0.5)))]})
    record = found.record(merged_pool(found.sources).candidates[0].provenance)
    assert json.loads(json.dumps(record))["scores"] == {"a": 0.5}


def test_draft_prompt_holds_the_query_and_every_text_in_order() -> None:
    prompt = draft_prompt(PromptTexts(), "When?", ["one", "two"])
    assert prompt.index("one") < prompt.index("two") < prompt.index("When?")
    assert prompt.endswith("Question: When?")


# -- the reranker ----------------------------------------------------------------------------------


def test_a_named_model_is_loaded_once_by_many_threads(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path)
    lazy = LazyReranker(model=folder)
    assert not lazy.loaded
    found: list[GradReranker] = []
    threads = [threading.Thread(target=lambda: found.append(lazy.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lazy.loaded
    assert len({id(reranker) for reranker in found}) == 1


def test_a_model_that_is_not_there_fails_when_it_is_needed_and_not_before() -> None:
    lazy = LazyReranker(model="/no/such/folder")
    for _ in range(2):
        with pytest.raises(ModelLoadError, match="/no/such/folder"):
            lazy.get()
    assert not lazy.loaded


def test_a_ready_reranker_is_shared_and_goes_alone() -> None:
    reranker = GradReranker(tiny())
    assert LazyReranker(reranker).get() is reranker
    with pytest.raises(InvalidArgumentError, match="device has no effect beside a ready reranker"):
        LazyReranker(reranker, device="cpu")
    with pytest.raises(InvalidTypeError, match="reranker must be a GradReranker or None, got str"):
        LazyReranker("gpt2")  # type: ignore[arg-type]


def test_C20_copies_share_and_pickles_hold_configuration(tmp_path: Path) -> None:
    lazy = LazyReranker(model=save_tiny(tmp_path))
    lazy.get()
    assert copy.deepcopy(lazy).get() is lazy.get()
    pickled = pickle.dumps(lazy)
    assert len(pickled) < 2000
    twin = pickle.loads(pickled)
    assert not twin.loaded
    documents = ["The ferry leaves at nine.", "The tram is green."]
    first, second = (r.get().rerank("When?", documents).to_dict()["documents"] for r in (lazy, twin))
    assert first == second


@pytest.mark.parametrize("make", [lambda pair: LazyReranker(model=pair), lambda pair: LazyReranker(GradReranker(pair))])
def test_C20_a_ready_model_is_not_pickled_and_the_error_says_what_to_do(make: Any) -> None:
    with pytest.raises(TypeError, match="make it from a model name or folder to pickle it"):
        pickle.dumps(make(tiny()))


def save_tiny(folder: Path) -> str:
    model, tokenizer = tiny()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
