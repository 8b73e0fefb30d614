"""gradrerank for LangChain: a document compressor, and a retriever over named sources.

    from langchain_gradrerank import GradRerankCompressor, MultiSourceRetriever

    retriever = MultiSourceRetriever(sources={"wiki": wiki_retriever, "web": web_search}, top_n=5)

This package translates between LangChain's types and those of :mod:`gradrerank`, which does the ranking.
"""

from langchain_gradrerank.compressor import GradRerankCompressor
from langchain_gradrerank.retriever import MultiSourceRetriever

__all__ = ["GradRerankCompressor", "MultiSourceRetriever"]
