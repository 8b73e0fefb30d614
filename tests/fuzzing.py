"""How many examples a fuzz test tries: few in every run, as many as ``pytest --fuzz N`` says in a long one."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, settings

# Set by conftest from the command line.
asked: int | None = None


def examples(few: int) -> Any:
    """Settings for a fuzz test.

    Args:
        few: Examples in an ordinary run, always the same ones.
    """
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    if asked is None:
        # The example that fails is shown as it is: making it smaller takes minutes with a model in it.
        phases = [phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)]
        return settings(max_examples=few, suppress_health_check=slow, phases=phases)
    return settings(max_examples=asked, derandomize=False, suppress_health_check=slow)
