"""The frozen language model: its prompt, its attention with gates, its caches."""
