"""LlamaIndex adapter of gradrerank: translation between its types and ours, no ranking logic.

from llamaindex_gradrerank import GradRerankPostprocessor, MultiSourceRetriever

engine = index.as_query_engine(similarity_top_k=20, node_postprocessors=[GradRerankPostprocessor(top_n=5)])
"""

from llamaindex_gradrerank.events import GradRerankEvent, SourcesEvent
from llamaindex_gradrerank.nodes import RankedNode
from llamaindex_gradrerank.postprocessor import GradRerankPostprocessor
from llamaindex_gradrerank.retriever import MultiSourceRetriever

__all__ = ["GradRerankEvent", "GradRerankPostprocessor", "MultiSourceRetriever", "RankedNode", "SourcesEvent"]
