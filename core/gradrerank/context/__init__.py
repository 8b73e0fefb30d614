"""From scores to the context that a generator will read."""
