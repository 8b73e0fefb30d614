"""Cases C30 to C32 through the core and both framework packages: padding, zeros, repeats."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from through import WAYS, letters, rank
from tiny import DOCUMENTS, QUERY, tiny, tiny_model, tiny_tokenizer

from gradrerank import Document, GradReranker, Scores, ScoringJob
from gradrerank.errors import NoSignalWarning, ScoringError
from gradrerank.scorers import SCORERS, AblationScorer, AttentionScorer, GatesScorer, SurrogateScorer

every_way = pytest.mark.parametrize("way", WAYS)
EVERY_SCORER = [*SCORERS, "gates+likelihood+links"]


@pytest.fixture(scope="module")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters)


def scored(way: str, reranker: GradReranker, documents: Any, **use: Any) -> dict[str, float]:
    sources = {"a": [Document(text, id=text[:8]) for text in documents]}
    return {s.text: s.score for s in rank(way, reranker, use.pop("query", QUERY), sources, **use)}


# -- C30 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "opt", "mistral", "gemma3", "qwen2"])
def test_C30_queries_of_all_lengths_in_one_batch_score_as_alone(family: str, side: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.padding_side = side
    reranker = GradReranker((tiny_model(family), tokenizer), encoder=letters)
    queries = ["Rain?", QUERY, "Who wrote the book about the red house by the harbour?", "The hill"]
    for scorer in ("gates", "likelihood", "attention", "gates+likelihood", GatesScorer(steps=3, batch_size=5)):
        batch = reranker.rerank_batch(queries, {"a": DOCUMENTS}, scorer=scorer)
        for query, result in zip(queries, batch, strict=True):
            alone = scored("core", reranker, DOCUMENTS, query=query, scorer=scorer)
            assert {d.text: d.score for d in result} == pytest.approx(alone, abs=1e-5, rel=1e-4)


@every_way
@pytest.mark.parametrize("family", ["gpt2", "opt", "llama"])
def test_C30_documents_of_all_lengths_are_read_as_alone(way: str, family: str) -> None:
    texts = ["rain", DOCUMENTS[4], "a b", "The tram runs every hour. " * 9]
    together = GradReranker((tiny_model(family), tiny_tokenizer()), encoder=letters, batch_size=16)
    apart = GradReranker((tiny_model(family), tiny_tokenizer()), encoder=letters, batch_size=1)
    assert scored(way, together, texts) == pytest.approx(scored(way, apart, texts), abs=1e-5)


# -- C31 ------------------------------------------------------------------------------------------------------


class Fixed:
    """Always these scores."""

    name = "fixed"

    def __init__(self, *utilities: float) -> None:
        self.utilities = utilities

    def score(self, job: ScoringJob) -> Scores:
        return Scores(list(self.utilities))


@every_way
def test_C31_all_zero_warns_once_and_keeps_the_retrieval_order(reranker: GradReranker, way: str) -> None:
    with pytest.warns(NoSignalWarning) as caught:
        found = list(scored(way, reranker, DOCUMENTS[:3], scorer=Fixed(0.0, -0.0, 0.0)))
    assert found == DOCUMENTS[:3] and len(caught) == 1


@every_way
@pytest.mark.parametrize(
    "utilities", [(1e-9, 3e-9, 2e-9), (1e-30, 3e-30, 2e-30), (5e-324, 1.5e-323, 1e-323), (1e150, 3e150, 2e150)]
)
@pytest.mark.parametrize("use", [{}, {"fusion": "rrf"}, {"selection": "mmr"}, {"weights": {"a": 1.0}}])
def test_C31_tiny_and_huge_scores_become_no_nan(
    reranker: GradReranker, way: str, utilities: tuple[float, ...], use: dict[str, Any]
) -> None:
    found = scored(way, reranker, DOCUMENTS[:3], scorer=Fixed(*utilities), **use)
    assert len(found) == 3 and all(np.isfinite(list(found.values())))
    if not use:
        assert list(found)[0] == DOCUMENTS[1]


def test_C31_scores_too_large_to_add_up_are_an_error_that_names_the_document(reranker: GradReranker) -> None:
    scorer = Fixed(1e300, 3e300, 2e300)
    assert list(scored("core", reranker, DOCUMENTS[:3], scorer=scorer))[0] == DOCUMENTS[1]
    with pytest.raises(ScoringError, match="the score of document 0, with retrieval, is"):
        scored("core", reranker, DOCUMENTS[:3], scorer=scorer, fusion="rrf")
    with pytest.raises(ScoringError, match="too large to be added up by source: one is 1.7e"):
        scored("core", reranker, DOCUMENTS[:3], scorer=Fixed(1.5e308, 1.7e308, 1.6e308))


@every_way
@pytest.mark.parametrize("scorer", EVERY_SCORER)
def test_C31_documents_without_a_path_to_the_loss_are_said_to_be_so(way: str, scorer: str) -> None:
    model = tiny_model()
    with torch.no_grad():
        for layer in model.model.layers:  # attention says nothing: no document reaches the loss
            layer.self_attn.o_proj.weight.zero_()
    reranker = GradReranker((model, tiny_tokenizer()), encoder=letters)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = scored(way, reranker, DOCUMENTS, scorer=scorer)
    assert len(found) == 5 and all(np.isfinite(list(found.values())))
    if scorer in ("gates", "likelihood", "gates+likelihood", "ablation"):
        assert any(issubclass(w.category, NoSignalWarning) for w in caught) and set(found.values()) == {0.0}
        assert list(found) == DOCUMENTS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scorer", ["gates", "likelihood", "gates+likelihood", "ablation", "iterated", "attention"])
def test_C31_half_precision_gives_numbers_that_differ(dtype: torch.dtype, scorer: str) -> None:
    reranker = GradReranker((tiny_model(dtype=dtype), tiny_tokenizer()), encoder=letters)
    found = scored("core", reranker, DOCUMENTS, scorer=scorer)
    assert len(set(found.values())) > 1 and all(np.isfinite(list(found.values())))


# -- C32 ------------------------------------------------------------------------------------------------------


@every_way
@pytest.mark.parametrize("scorer", EVERY_SCORER)
def test_C32_neither_batch_nor_order_nor_seed_counts(way: str, scorer: str) -> None:
    pair = tiny()
    expected = scored(way, GradReranker(pair, encoder=letters), DOCUMENTS, scorer=scorer)
    for batch_size in (1, 2, 7):
        torch.manual_seed(batch_size)
        random.seed(batch_size)
        np.random.seed(batch_size)
        state = (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()))
        reranker = GradReranker(pair, encoder=letters, batch_size=batch_size)
        found = scored(way, reranker, DOCUMENTS, scorer=scorer)
        assert list(found) == list(expected) and found == pytest.approx(expected, abs=1e-5)
        assert scored(way, reranker, DOCUMENTS, scorer=scorer) == found, "repeats are equal to the last bit"
        if scorer != "surrogate":  # its subsets belong to places
            turned = scored(way, reranker, DOCUMENTS[::-1], scorer=scorer)
            assert turned == pytest.approx(expected, abs=1e-5) and list(turned) == list(expected)
        assert state == (torch.get_rng_state().tolist(), random.getstate(), str(np.random.get_state()))


@pytest.mark.parametrize(
    "one, other",
    [
        (GatesScorer(steps=6, batch_size=1), GatesScorer(steps=6, batch_size=6)),
        (AblationScorer(batch_size=1), AblationScorer(batch_size=50)),
        (SurrogateScorer(batch_size=1), SurrogateScorer(batch_size=32)),
        (AttentionScorer(batch_size=1), AttentionScorer(batch_size=8)),
    ],
    ids=repr,
)
def test_C32_a_scorers_own_batches_do_not_count(reranker: GradReranker, one: Any, other: Any) -> None:
    assert scored("core", reranker, DOCUMENTS, scorer=one) == pytest.approx(
        scored("core", reranker, DOCUMENTS, scorer=other), abs=1e-5
    )


@every_way
@pytest.mark.parametrize("scorer", ["likelihood", "similarity", "mixture"])
def test_C32_what_reads_documents_alone_does_not_feel_a_long_one_beside(
    reranker: GradReranker, way: str, scorer: str
) -> None:
    if scorer not in SCORERS or scorer == "mixture":
        scorer = "likelihood"
    alone = scored(way, reranker, DOCUMENTS, scorer=scorer)
    beside = scored(way, reranker, [*DOCUMENTS, "the tram " * 150], scorer=scorer)
    assert [text for text in beside if text in alone] == list(alone)


_HASH = """
import sys
sys.path.insert(0, {tests!r})
from through import letters, rank
from tiny import DOCUMENTS, QUERY, tiny
from gradrerank import Document, GradReranker
reranker = GradReranker(tiny(), encoder=letters)
names = {{"b": 0, "a": 1, "wiki": 2}}
sources = {{name: [Document(t) for t in DOCUMENTS[i:i + 3]] for name, i in names.items()}}
for use in ({{}}, {{"selection": "coverage", "top_n": 3}}, {{"order": "source"}}, {{"fusion": "rrf"}}):
    print([(s.text, s.score, dict(s.ranks)) for s in rank({way!r}, reranker, QUERY, sources, **use)])
"""


@every_way
def test_C32_nothing_depends_on_the_seed_of_hashes(way: str) -> None:
    printed = set()
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", _HASH.format(tests=os.path.dirname(__file__), way=way)],
            capture_output=True,
            text=True,
            timeout=240,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        )
        printed.add(done.stdout)
    assert len(printed) == 1
