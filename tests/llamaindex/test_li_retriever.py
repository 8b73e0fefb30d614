"""The retriever over named sources: provenance, errors, weights, and objects behind index nodes."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import pickle
import time
import warnings
from typing import Any

import pytest
from li_helpers import EventRecorder, FixedRetriever, LengthScorer, as_nodes
from llama_index.core.callbacks import CallbackManager
from llama_index.core.retrievers import BaseRetriever, RecursiveRetriever
from llama_index.core.schema import ImageNode, IndexNode, NodeWithScore, QueryBundle, TextNode
from tiny import DOCUMENTS, QUERY

from gradrerank import Document, GradReranker
from gradrerank.errors import AllSourcesFailedError, SourceWarning
from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever, RankedNode


async def both(retriever: MultiSourceRetriever, query: Any = QUERY) -> list[RankedNode]:
    """The same from the sync and the async method."""
    found = retriever.retrieve(query)
    again = await retriever.aretrieve(query)
    assert [(n.text, n.score, n.gradrerank) for n in found] == [(n.text, n.score, n.gradrerank) for n in again]
    return found


def node(text: str, id_: str, score: float | None = None, **metadata: Any) -> NodeWithScore:
    return NodeWithScore(node=TextNode(text=text, id_=id_, metadata=metadata), score=score)


@pytest.fixture
def postprocessor(reranker: GradReranker) -> GradRerankPostprocessor:
    return GradRerankPostprocessor(reranker=reranker, select_sources=False)


async def test_the_ranking_is_that_of_the_core(reranker: GradReranker, postprocessor: GradRerankPostprocessor) -> None:
    sources = {"a": FixedRetriever(*DOCUMENTS[:3]), "b": FixedRetriever(*DOCUMENTS[2:])}
    expected = reranker.rerank(QUERY, {"a": DOCUMENTS[:3], "b": DOCUMENTS[2:]}, select_sources=False, top_n=4)
    found = await both(MultiSourceRetriever(sources, postprocessor=postprocessor, top_n=4))
    assert [(n.text, n.score) for n in found] == [(d.text, d.score) for d in expected]
    assert [n.gradrerank["sources"] for n in found] == [list(d.sources) for d in expected]


async def test_without_postprocessor_the_merged_pool_comes_back() -> None:
    sources = {"a": FixedRetriever("one", "two"), "b": FixedRetriever("two", "three", "")}
    found = await both(MultiSourceRetriever(sources, postprocessor=None))
    assert [n.text for n in found] == ["two", "one", "three"]
    assert found[0].gradrerank["ranks"] == {"b": 1, "a": 2}
    assert found[0].gradrerank["scores"] == {"b": 1.0, "a": 0.9}
    assert found[0].score == 1 / 61 + 1 / 62
    assert len(await both(MultiSourceRetriever(sources, postprocessor=None, top_n=1))) == 1


async def test_the_merged_pool_can_be_ranked_later_with_all_its_provenance(
    postprocessor: GradRerankPostprocessor,
) -> None:
    sources = {"a": FixedRetriever(*DOCUMENTS[:3]), "b": FixedRetriever(*DOCUMENTS[2:])}
    at_once = await both(MultiSourceRetriever(sources, postprocessor=postprocessor))
    merged = await both(MultiSourceRetriever(sources, postprocessor=None))
    later = postprocessor.postprocess_nodes(merged, query_str=QUERY)
    assert [(n.text, n.score, n.gradrerank) for n in later] == [(n.text, n.score, n.gradrerank) for n in at_once]


async def test_C01_empty_sources(postprocessor: GradRerankPostprocessor) -> None:
    scorer = LengthScorer()
    nothing = GradRerankPostprocessor(model="/no/such/model", scorer=scorer)
    empty = MultiSourceRetriever({"a": FixedRetriever(), "b": FixedRetriever()}, postprocessor=nothing)
    assert await both(empty) == [] and scorer.jobs == []
    full = await both(MultiSourceRetriever({"a": FixedRetriever(*DOCUMENTS)}, postprocessor=postprocessor))
    sources = {"a": FixedRetriever(*DOCUMENTS), "b": FixedRetriever()}
    assert await both(MultiSourceRetriever(sources, postprocessor=postprocessor)) == full


@pytest.mark.parametrize("query", ["", " ", QueryBundle(None, embedding=[0.1])])  # type: ignore[arg-type]
async def test_C06_a_query_without_text_is_refused(query: Any) -> None:
    retriever = MultiSourceRetriever({"a": FixedRetriever(error=AssertionError("asked"))}, postprocessor=None)
    with pytest.raises(ValueError, match="query must hold some text"):
        retriever.retrieve(query)
    with pytest.raises(ValueError, match="query must hold some text"):
        await retriever.aretrieve(query)


@pytest.mark.parametrize("ranked", [True, False])
async def test_C07_an_image_of_two_sources_comes_once_and_last(
    postprocessor: GradRerankPostprocessor, ranked: bool
) -> None:
    image = NodeWithScore(node=ImageNode(id_="image", image_url="http://127.0.0.1/a.png"), score=0.9)
    sources = {"a": FixedRetriever(image, *as_nodes("one")), "b": FixedRetriever(*as_nodes("two"), image)}
    retriever = MultiSourceRetriever(sources, postprocessor=postprocessor if ranked else None, top_n=1)
    found = await both(retriever)
    assert len(found) == 2 and (found[1].node_id, found[1].score) == ("image", None)
    assert found[1].gradrerank["ranks"] == {"a": 1, "b": 2}
    without = MultiSourceRetriever(
        {"a": FixedRetriever(image), "b": FixedRetriever("two")},
        postprocessor=postprocessor if ranked else None,
        weights={"a": 0, "b": 1},
    )
    assert [n.text for n in await both(without)] == ["two"]


@pytest.mark.parametrize("ranked", [True, False])
async def test_C08_one_identity_rule(reranker: GradReranker, ranked: bool) -> None:
    wiki = [node("Trams run hourly.", "w1", file="a"), node("Trams are red.", "s1", file="c")]
    notes = [node("Trams run hourly.", "n9", file="b"), node("Trams are blue.", "s1", file="d")]
    # The metadata are read by the model and are no part of the identity.
    postprocessor = GradRerankPostprocessor(reranker=reranker, select_sources=False) if ranked else None
    sources = {"wiki": FixedRetriever(*wiki), "notes": FixedRetriever(*notes)}
    found = {n.text: n for n in await both(MultiSourceRetriever(sources, postprocessor=postprocessor))}
    assert set(found) == {"Trams run hourly.", "Trams are red.", "Trams are blue."}  # also through retrieve()
    merged = found["Trams run hourly."]
    assert merged.gradrerank["ids"] == {"notes": "n9", "wiki": "w1"} and merged.node_id == "n9"
    assert merged.metadata == {"file": "b"} and merged.gradrerank["metadata"] == {"wiki": {"file": "a"}}
    expected = reranker.rerank(
        "q",
        {"wiki": [Document(n.text, id=n.node_id) for n in wiki], "notes": [Document(n.text) for n in notes]},
        select_sources=False,
    )
    assert {d.text for d in expected} == set(found)


async def test_C11_C14_scores_of_any_scale_are_kept_and_decide_nothing(postprocessor: GradRerankPostprocessor) -> None:
    def retriever(factor: float, ranker: Any) -> MultiSourceRetriever:
        bm25 = [node(DOCUMENTS[0], "x", 31.0 * factor), node(DOCUMENTS[1], "y", 12.0 * factor)]
        dense = [node(DOCUMENTS[0], "x", 0.82), node(DOCUMENTS[2], "z", None), node(DOCUMENTS[3], "u", -0.5)]
        sources = {"bm25": FixedRetriever(*bm25), "dense": FixedRetriever(*dense)}
        return MultiSourceRetriever(dict(reversed(sources.items())) if factor > 1 else sources, postprocessor=ranker)

    for ranker in (postprocessor, None):
        once, hundredfold = await both(retriever(1, ranker)), await both(retriever(100, ranker))
        assert [(n.text, n.score) for n in once] == [(n.text, n.score) for n in hundredfold]
        first = next(n for n in once if n.node_id == "x")
        assert first.gradrerank["scores"] == {"bm25": 31.0, "dense": 0.82}
        assert next(n for n in once if n.node_id == "z").gradrerank["scores"] == {"dense": None}


@pytest.mark.parametrize("ranked", [True, False])
async def test_C02_how_many_nodes_are_blank_is_told(
    postprocessor: GradRerankPostprocessor, recorder: EventRecorder, ranked: bool
) -> None:
    sources = {"a": FixedRetriever("", "real", "\u200b"), "b": FixedRetriever("other")}
    retriever = MultiSourceRetriever(sources, postprocessor=postprocessor if ranked else None)
    assert {node.text for node in await both(retriever)} == {"real", "other"}
    assert [(e.found, e.blank) for e in recorder.named("SourcesEvent")] == [({"a": 3, "b": 1}, {"a": 2})] * 2


async def test_C13_one_source_fails(postprocessor: GradRerankPostprocessor, recorder: EventRecorder) -> None:
    sources = {"wiki": FixedRetriever(*DOCUMENTS), "crm": FixedRetriever(error=ConnectionError("down"))}
    retriever = MultiSourceRetriever(sources, postprocessor=postprocessor, weights=[1, 2])
    with pytest.warns(SourceWarning, match="'crm' failed.*ConnectionError: down"):
        found = retriever.retrieve(QUERY)
    with pytest.warns(SourceWarning, match="'crm' failed.*ConnectionError: down"):
        assert await retriever.aretrieve(QUERY) == found
    assert len(found) == len(DOCUMENTS)
    told = recorder.named("SourcesEvent")
    assert [(e.found, e.errors) for e in told] == [({"wiki": 5}, {"crm": "ConnectionError: down"})] * 2
    retriever.on_source_error = "ignore"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert await both(retriever) == found
    retriever.on_source_error = "raise"
    with pytest.raises(ConnectionError, match="down"):
        retriever.retrieve(QUERY)
    with pytest.raises(ConnectionError, match="down"):
        await retriever.aretrieve(QUERY)


@pytest.mark.parametrize("policy", ["warn", "ignore"])
async def test_C13_all_sources_fail(policy: Any) -> None:
    sources = {"wiki": FixedRetriever(error=ValueError("odd")), "crm": FixedRetriever(error=ConnectionError("down"))}
    retriever = MultiSourceRetriever(sources, postprocessor=None, on_source_error=policy)
    for call in (lambda: retriever.retrieve(QUERY), lambda: asyncio.run(retriever.aretrieve(QUERY))):
        with pytest.raises(AllSourcesFailedError, match="'wiki': ValueError: odd; 'crm': ConnectionError: down"):
            await asyncio.to_thread(call)


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_C13_what_is_no_error_of_a_source_ends_the_call(end: type[BaseException]) -> None:
    sources = {"wiki": FixedRetriever(*DOCUMENTS), "crm": FixedRetriever(error=end())}
    with pytest.raises(end):
        MultiSourceRetriever(sources, postprocessor=None, on_source_error="ignore").retrieve(QUERY)


class Slow(FixedRetriever):
    """Takes its time, in a thread or on the loop."""

    def __init__(self, *found: Any, seconds: float = 5.0) -> None:
        self.seconds = seconds
        self.ended = False
        super().__init__(*found)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        time.sleep(self.seconds)
        return self.found


class SlowOnLoop(Slow):
    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.ended = True
        return self.found


@pytest.mark.parametrize("kind", [Slow, SlowOnLoop])
def test_C13_a_source_that_hangs_is_left_behind_at_its_timeout(kind: type[Slow]) -> None:
    sources = {"wiki": FixedRetriever("one"), "crm": kind("two")}
    retriever = MultiSourceRetriever(sources, postprocessor=None, timeout=0.1)
    begin = time.monotonic()
    with pytest.warns(SourceWarning, match="'crm' gave no answer within 0.1 s"):
        assert [n.text for n in retriever.retrieve(QUERY)] == ["one"]
    with pytest.warns(SourceWarning, match="'crm' gave no answer within 0.1 s"):
        assert [n.text for n in asyncio.run(retriever.aretrieve(QUERY))] == ["one"]
    assert time.monotonic() - begin < 2.0  # asyncio.run waits for its executor, which holds no source


async def test_C13_a_cancellation_reaches_the_sources() -> None:
    slow = SlowOnLoop("one")
    task = asyncio.create_task(MultiSourceRetriever({"a": slow}, postprocessor=None).aretrieve(QUERY))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert slow.ended


@pytest.mark.parametrize("kind", [Slow, SlowOnLoop])
def test_sources_are_asked_at_the_same_time(kind: type[Slow]) -> None:
    sources = {str(i): kind(f"text {i}", seconds=0.2) for i in range(5)}
    retriever = MultiSourceRetriever(sources, postprocessor=None)
    for call in (retriever.retrieve, lambda query: asyncio.run(retriever.aretrieve(query))):
        begin = time.monotonic()
        assert len(call(QUERY)) == 5
        assert time.monotonic() - begin < 0.7


def test_threads_of_sources_see_the_context_of_the_caller() -> None:
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")

    class Tenant(FixedRetriever):
        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return as_nodes(tenant.get())

    tenant.set("ours")
    retriever = MultiSourceRetriever({"a": Tenant()}, postprocessor=None)
    assert retriever.retrieve(QUERY)[0].text == "ours"
    assert asyncio.run(retriever.aretrieve(QUERY))[0].text == "ours"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([0.5], "1 numbers for 2 sources"),
        ([0, 0], "all be 0"),
        ([-1, 2], r"weights\['wiki'\]"),
        ([float("nan"), 1], r"weights\['wiki'\]"),
        ({"wikii": 1}, "'wikii', which is no source"),
    ],
)
def test_C15_impossible_weights_are_refused_at_construction(weights: Any, message: str) -> None:
    sources = {"wiki": FixedRetriever(), "web": FixedRetriever()}
    with pytest.raises(ValueError, match=message):
        MultiSourceRetriever(sources, postprocessor=None, weights=weights)
    if isinstance(weights, dict):
        with pytest.raises(ValueError, match=message):
            MultiSourceRetriever(sources, postprocessor=GradRerankPostprocessor(weights=weights))


async def test_C15_weights_have_an_effect_in_every_mode(postprocessor: GradRerankPostprocessor) -> None:
    sources = {"wiki": FixedRetriever("a tram"), "web": FixedRetriever("a ferry")}
    for ranker in (postprocessor, None):

        async def texts(weights: Any, ranker: Any = ranker) -> list[str]:
            found = await both(MultiSourceRetriever(sources, postprocessor=ranker, weights=weights))
            return [n.text for n in found]

        assert await texts([1, 1e-30]) == await texts([10, 1e-29]) == ["a tram", "a ferry"]
        assert await texts([1e-30, 1]) == ["a ferry", "a tram"]
        assert await texts({"wiki": 0, "web": 1}) == ["a ferry"]
    weighted = postprocessor.model_copy(update={"weights": {"wiki": 1.0}})
    with pytest.raises(ValueError, match="give them once"):
        MultiSourceRetriever(sources, postprocessor=weighted, weights=[1, 1])


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ([FixedRetriever(), FixedRetriever()], "sources must map names"),
        ({}, "at least one retriever"),
        ({" ": FixedRetriever()}, "name of a source"),
        ({"a": lambda query: []}, r"sources\['a'\] must be a BaseRetriever, got function"),
    ],
)
def test_C15_sources_are_named_retrievers(sources: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiSourceRetriever(sources)


@pytest.mark.parametrize(
    "given", [{"top_n": 0}, {"top_n": True}, {"top_n": "2"}, {"timeout": 0}, {"on_source_error": "skip"}]
)
def test_C04_impossible_options_are_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        MultiSourceRetriever({"a": FixedRetriever()}, **given)


def test_top_n_is_that_of_the_retriever_or_of_the_postprocessor(postprocessor: GradRerankPostprocessor) -> None:
    sources = {"a": FixedRetriever(*DOCUMENTS)}
    cutting = postprocessor.model_copy(update={"top_n": 2})
    assert len(MultiSourceRetriever(sources, postprocessor=cutting).retrieve(QUERY)) == 2
    assert len(MultiSourceRetriever(sources, postprocessor=cutting, top_n=3).retrieve(QUERY)) == 3
    assert cutting.top_n == 2


async def test_index_nodes_stand_for_their_objects_before_ranking(postprocessor: GradRerankPostprocessor) -> None:
    inner = FixedRetriever(node("An inner text, rather long.", "inner1"), node("Another inner text.", "inner2"))
    pointer = IndexNode(text="see the inner retriever", index_id="inner", obj=inner, id_="p1")
    mapped = IndexNode(text="see a node", index_id="mapped", id_="p2")
    plain = IndexNode(text="points nowhere", index_id="nowhere", id_="p3")
    found_by_a = [NodeWithScore(node=n, score=0.5) for n in (pointer, mapped, plain)]
    sources = {"a": FixedRetriever(*found_by_a), "b": FixedRetriever("A plain text.")}
    target = TextNode(text="The mapped text.", id_="target")
    for ranker in (postprocessor, None):
        retriever = MultiSourceRetriever(sources, postprocessor=ranker, object_map={"mapped": target}, top_n=5)
        found = {n.text: n.gradrerank["sources"] for n in await both(retriever)}
        assert found == {
            "An inner text, rather long.": ["a"],
            "Another inner text.": ["a"],
            "The mapped text.": ["a"],
            "points nowhere": ["a"],
            "A plain text.": ["b"],
        }
        assert all(n.score is not None for n in retriever.retrieve(QUERY))
    objects = [IndexNode(text="see a node", index_id="mapped", obj=target)]
    by_objects = MultiSourceRetriever(sources, postprocessor=None, objects=objects)
    assert "The mapped text." in [n.text for n in await both(by_objects)]


async def test_a_recursive_retriever_is_a_source_and_finds_through_ours(postprocessor: GradRerankPostprocessor) -> None:
    chunk = IndexNode(text="chunk", index_id="parent", id_="chunk")
    parent = TextNode(text="The whole parent text.", id_="parent")
    top = FixedRetriever(NodeWithScore(node=chunk, score=0.7))
    recursive = RecursiveRetriever("top", retriever_dict={"top": top}, node_dict={"parent": parent})
    ours = MultiSourceRetriever({"deep": recursive}, postprocessor=postprocessor)
    assert [n.text for n in await both(ours)] == ["The whole parent text."]
    inside = MultiSourceRetriever({"top": top}, postprocessor=None)
    outer = RecursiveRetriever("ours", retriever_dict={"ours": inside}, node_dict={"parent": parent})
    assert [n.text for n in outer.retrieve(QUERY)] == ["The whole parent text."]


async def test_an_object_that_fails_is_a_failure_of_its_source() -> None:
    pointer = IndexNode(text="x", index_id="i", obj=FixedRetriever(error=OSError("gone")))
    sources = {"a": FixedRetriever(NodeWithScore(node=pointer)), "b": FixedRetriever("A plain text.")}
    with pytest.warns(SourceWarning, match="'a' failed.*gone"):
        found = await both(MultiSourceRetriever(sources, postprocessor=None))
    assert [n.text for n in found] == ["A plain text."]


def test_C20_copies_of_the_retriever_share_sources_and_models(reranker: GradReranker) -> None:
    source = FixedRetriever(*DOCUMENTS)
    retriever = MultiSourceRetriever({"a": source}, postprocessor=GradRerankPostprocessor(reranker=reranker), top_n=3)
    twin = copy.deepcopy(retriever)
    assert twin.sources["a"] is source and twin.postprocessor.reranker is reranker
    assert twin.retrieve(QUERY) == retriever.retrieve(QUERY)
    twin.postprocessor.min_score, twin.top_n = 1e9, 1
    assert len(retriever.retrieve(QUERY)) == 3 and twin.retrieve(QUERY) == []
    merging = MultiSourceRetriever({"a": source}, postprocessor=None, weights=[2])
    assert pickle.loads(pickle.dumps(merging)).retrieve(QUERY) == merging.retrieve(QUERY)
    with pytest.raises(TypeError, match="weights are not pickled"):
        pickle.dumps(retriever)
    retriever = copy.deepcopy(merging)
    retriever.top_n = -1
    with pytest.raises(ValueError, match="top_n must be .* -1"):
        retriever.retrieve(QUERY)


def test_prompts_of_the_postprocessor_are_found_through_the_retriever(postprocessor: GradRerankPostprocessor) -> None:
    retriever = MultiSourceRetriever({"a": FixedRetriever()}, postprocessor=postprocessor)
    assert list(retriever.get_prompts()) == ["postprocessor:draft_prompt"]
    assert MultiSourceRetriever({"a": FixedRetriever()}, postprocessor=None).get_prompts() == {}
    assert isinstance(retriever, BaseRetriever) and "['a']" in repr(retriever)
    assert repr(MultiSourceRetriever({"a": FixedRetriever()}).postprocessor) == "GradRerankPostprocessor()"
    assert isinstance(retriever.callback_manager, CallbackManager)
