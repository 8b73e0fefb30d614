"""A small soak; the large one is ``benchmarks/soak.py``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from through import letters
from tiny import tiny

from gradrerank import GradReranker
from gradrerank.scorers import SCORERS


@pytest.fixture(scope="module")
def soaking() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "soak.py"
    spec = importlib.util.spec_from_file_location("soak", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules["soak"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_two_hundred_reranks_leave_nothing_behind(soaking: ModuleType) -> None:
    pair = tiny()
    reranker = GradReranker(pair, encoder=letters, cache_bytes=1 << 20)
    samples = soaking.soak(reranker, pair[0], 200, scorers=[*SCORERS, "gates+likelihood+links"])
    assert [s.done for s in samples] == [10 * (i + 1) for i in range(20)]
    assert soaking.growth(samples) <= 0.05 and soaking.left_behind(samples) == []
    assert {s.hooks for s in samples} == {0}


@pytest.mark.parametrize("what", ["memory", "threads", "files", "hooks", "tensors"])
def test_what_grows_is_seen(soaking: ModuleType, what: str) -> None:
    def sample(done: int, **more: Any) -> Any:
        return soaking.Sample(done, **({"memory": 100, "threads": 1, "files": 3, "hooks": 0, "tensors": 50} | more))

    flat = [sample(done) for done in range(1, 21)]
    assert soaking.growth(flat) == 0 and soaking.left_behind(flat) == []
    rising = [sample(done, **{what: 100 + 10 * done}) for done in range(1, 21)]
    assert soaking.growth(rising) > 0.05 if what == "memory" else soaking.left_behind(rising) == [what]
