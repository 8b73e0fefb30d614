"""Rerank what several retrievers return by how much each document helps the language model answer.

    from gradrerank import GradReranker

    reranker = GradReranker()
    result = reranker.rerank("How tall is ...?", {"wiki": wiki_docs, "web": web_docs}, top_n=5)

The names below are loaded when they are first used, so that importing the package stays quick and
does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradrerank.calibration import ScoreCalibration
    from gradrerank.citing import Citation, Citations
    from gradrerank.context.choosing import ChoiceJob, Chooser
    from gradrerank.documents import (
        Document,
        DroppedDocument,
        Provenance,
        RankedDocument,
        RerankResult,
        SourceReport,
        SpanUtility,
    )
    from gradrerank.explaining import Explanation, SentenceUtility
    from gradrerank.gate_path import GatePath
    from gradrerank.lm.disk_store import DiskStore
    from gradrerank.lm.generator import Generator
    from gradrerank.lm.kv_store import DocumentStore
    from gradrerank.lm.loading import load_generator
    from gradrerank.lm.prompt import PromptTexts
    from gradrerank.reranker import GradReranker
    from gradrerank.scorers import (
        AblationScorer,
        AttentionScorer,
        CombinedScorer,
        EncodedScorer,
        GatesScorer,
        IteratedGatesScorer,
        LikelihoodScorer,
        LinkedScorer,
        MixtureScorer,
        RemovalScorer,
        Scorer,
        Scores,
        ScoringJob,
        SimilarityScorer,
        SurrogateScorer,
    )
    from gradrerank.sources.embedding import SentenceEncoder
    from gradrerank.token_map import TokenMap

__version__ = "0.1.0"

_HOMES = {
    "AblationScorer": "scorers",
    "AttentionScorer": "scorers",
    "ChoiceJob": "context.choosing",
    "Chooser": "context.choosing",
    "Citation": "citing",
    "Citations": "citing",
    "CombinedScorer": "scorers",
    "EncodedScorer": "scorers",
    "DiskStore": "lm.disk_store",
    "Document": "documents",
    "DocumentStore": "lm.kv_store",
    "DroppedDocument": "documents",
    "Explanation": "explaining",
    "GatePath": "gate_path",
    "GatesScorer": "scorers",
    "Generator": "lm.generator",
    "GradReranker": "reranker",
    "IteratedGatesScorer": "scorers",
    "LikelihoodScorer": "scorers",
    "LinkedScorer": "scorers",
    "MixtureScorer": "scorers",
    "PromptTexts": "lm.prompt",
    "Provenance": "documents",
    "RankedDocument": "documents",
    "RemovalScorer": "scorers",
    "RerankResult": "documents",
    "ScoreCalibration": "calibration",
    "Scorer": "scorers",
    "Scores": "scorers",
    "ScoringJob": "scorers",
    "SentenceEncoder": "sources.embedding",
    "SentenceUtility": "explaining",
    "SourceReport": "documents",
    "SpanUtility": "documents",
    "SimilarityScorer": "scorers",
    "SurrogateScorer": "scorers",
    "TokenMap": "token_map",
    "load_generator": "lm.loading",
}

__all__ = [
    "AblationScorer",
    "AttentionScorer",
    "ChoiceJob",
    "Chooser",
    "Citation",
    "Citations",
    "CombinedScorer",
    "EncodedScorer",
    "DiskStore",
    "Document",
    "DocumentStore",
    "DroppedDocument",
    "Explanation",
    "GatePath",
    "GatesScorer",
    "Generator",
    "GradReranker",
    "IteratedGatesScorer",
    "LikelihoodScorer",
    "LinkedScorer",
    "MixtureScorer",
    "PromptTexts",
    "Provenance",
    "RankedDocument",
    "RemovalScorer",
    "RerankResult",
    "ScoreCalibration",
    "Scorer",
    "Scores",
    "ScoringJob",
    "SentenceEncoder",
    "SentenceUtility",
    "SourceReport",
    "SpanUtility",
    "SimilarityScorer",
    "SurrogateScorer",
    "TokenMap",
    "load_generator",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f"gradrerank.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'gradrerank' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, also those that were not used yet."""
    return sorted([*globals(), *__all__])
