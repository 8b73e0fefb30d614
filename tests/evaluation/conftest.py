"""A tiny reranker and three small questions for all tests of evaluation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from eval_helpers import ROWS, letters
from tiny import tiny

from gradrerank import GradReranker
from gradrerank.evaluation import Question, read_questions


@pytest.fixture(scope="session")
def reranker() -> GradReranker:
    return GradReranker(tiny(), encoder=letters)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "three.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture
def questions(data: Path) -> list[Question]:
    return list(read_questions(data))
