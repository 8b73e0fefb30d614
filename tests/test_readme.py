"""The README's examples print what the README says they print."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
# A block of Python, perhaps some lines of prose, and the indented output right after the block.
EXAMPLES = re.findall(r"```python\n((?:(?!```)[\s\S])*)```\n\n((?:    .*\n)+)", README)
NUMBER = re.compile(r"[+-]\d+\.\d+")


def parts(printed: str) -> tuple[list[str], list[float]]:
    lines = [line.strip() for line in printed.strip().splitlines()]
    return [NUMBER.sub("#", line) for line in lines], [float(n) for line in lines for n in NUMBER.findall(line)]


def test_every_package_has_an_example_with_output() -> None:
    assert len(EXAMPLES) == 5
    assert all(any(name in code for code, _ in EXAMPLES) for name in ("langchain_gradrerank", "llamaindex_gradrerank"))


@pytest.mark.real_model
@pytest.mark.parametrize(("code", "promised"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_prints_what_the_readme_says(code: str, promised: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    words, numbers = parts(printed.getvalue())
    expected_words, expected_numbers = parts(promised)
    assert words == expected_words
    assert numbers == pytest.approx(expected_numbers, abs=0.005)


def test_paths_of_the_map_exist() -> None:
    root = Path(__file__).parents[1]
    named = README.split("## Map of the code")[1]
    core = root / "core" / "gradrerank"
    files = {path.name for path in core.rglob("*.py")}
    for name in re.findall(r"\b([a-z_]+\.py)\b", named):
        assert name in files, f"{name} is on the map and not in the package"
