"""What cannot be imported here is not collected: an adapter whose framework is not installed, and its tests."""

from __future__ import annotations

import importlib.util

FRAMEWORKS = {"langchain": "langchain_core", "llamaindex": "llama_index"}
ABSENT = [name for name, package in FRAMEWORKS.items() if importlib.util.find_spec(package) is None]

collect_ignore = [f"tests/{name}" for name in ABSENT]
# The packages stand in testpaths, and a folder that is asked for by name is not ignored, only what lies in it.
collect_ignore_glob = [f"{name}_gradrerank/*" for name in ABSENT]


def pytest_report_header() -> list[str]:
    """Say what is not tested."""
    return [f"{FRAMEWORKS[name]} is not installed: {name}_gradrerank and tests/{name} are left out" for name in ABSENT]
