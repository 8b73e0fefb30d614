"""Every case from the field has a test in the core and in both framework packages, and CASES.md names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cases_table import CASES, ELSEWHERE, FRAMEWORKS, TESTS, covering


def test_the_list_holds_all_cases() -> None:
    assert list(CASES) == [f"C{n:02}" for n in range(1, 33)]
    listed = re.findall(r"^\| (C\d\d) ", (TESTS / "CASES.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert listed == list(CASES)


@pytest.mark.parametrize("case", list(CASES))
def test_every_case_is_tested_everywhere(case: str) -> None:
    found = covering(case)
    for framework in FRAMEWORKS:
        assert found[framework] or (case, framework) in ELSEWHERE, f"{case} has no test through {framework}"


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(\S+\.py)::(\w+)`", (TESTS / "CASES.md").read_text(encoding="utf-8"))
    assert len(named) == len(CASES)
    for file, name in named:
        assert f"def {name}(" in (Path(TESTS) / file).read_text(encoding="utf-8")
