"""What cannot be imported here is not collected: an adapter whose framework is not installed, and its tests."""

from __future__ import annotations

import importlib.util

FRAMEWORKS = {"langchain": "langchain_core", "llamaindex": "llama_index"}
ABSENT = [name for name, package in FRAMEWORKS.items() if importlib.util.find_spec(package) is None]

# What lies in the folders, as a folder that pytest was told to collect is not ignored itself.
collect_ignore_glob = [path for name in ABSENT for path in (f"{name}_gradrerank/*", f"tests/{name}/*")]


def pytest_report_header() -> list[str]:
    """Say what is not tested."""
    return [f"{FRAMEWORKS[name]} is not installed: {name}_gradrerank and tests/{name} are left out" for name in ABSENT]
