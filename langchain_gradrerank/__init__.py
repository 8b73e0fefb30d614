"""LangChain adapter of gradrerank: translation between its types and ours, no ranking logic."""
