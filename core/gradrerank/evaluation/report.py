"""What a run found: every value of every question, their means and intervals, as a table and as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gradrerank.evaluation.intervals import Estimate, bootstrap_difference, bootstrap_mean

if TYPE_CHECKING:
    from rich.table import Table

# Costs: no intervals and no comparison, since they tell of the machine.
COSTS = ("tokens", "seconds", "reading")


@dataclass(slots=True)
class Row:
    """Values of one configuration.

    Args:
        values: For each measure its value by question; questions that it does not apply to are left out.
    """

    values: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, question: str, measures: Mapping[str, float]) -> None:
        """Add the measures of a question."""
        for name, value in measures.items():
            self.values.setdefault(name, {})[question] = value


@dataclass(frozen=True, slots=True)
class Report:
    """A finished run.

    Args:
        data: Name of the questions.
        rows: Values by name of configuration; the first is what the others are compared with.
        groups: For each question its group, which is resampled as one.
        identities: For each configuration what names its settings exactly.
    """

    data: str
    rows: Mapping[str, Row]
    groups: Mapping[str, str]
    identities: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def first(self) -> str:
        """Name of the configuration that the others are compared with."""
        return next(iter(self.rows))

    @property
    def measures(self) -> list[str]:
        """Names of all measures, costs last."""
        names = dict.fromkeys(name for row in self.rows.values() for name in row.values)
        return [n for n in names if n not in COSTS] + [n for n in COSTS if n in names]

    def estimate(self, configuration: str, measure: str, *, seed: int = 0) -> Estimate:
        """Mean of a measure with its 95% interval.

        Args:
            configuration: Name of the row.
            measure: Name of the measure.
            seed: Seed of the bootstrap.

        Raises:
            KeyError: When there is no such value.
        """
        values = self.rows[configuration].values[measure]
        groups = [self.groups[question] for question in values]
        return bootstrap_mean(list(values.values()), groups, seed=seed)

    def difference(self, configuration: str, measure: str, base: str | None = None, *, seed: int = 0) -> Estimate:
        """Mean of the paired differences from another configuration, with its 95% interval.

        Args:
            configuration: Name of the row.
            measure: Name of the measure.
            base: Name of the other row; None for the first.
            seed: Seed of the bootstrap.

        Raises:
            KeyError: When there is no such value.
        """
        other = self.rows[self.first if base is None else base]
        return bootstrap_difference(
            self.rows[configuration].values[measure], other.values[measure], self.groups, seed=seed
        )

    def to_dict(self, *, seed: int = 0) -> dict[str, Any]:
        """Everything as plain values.

        Args:
            seed: Seed of the bootstrap.

        Returns:
            A dict with the keys data, questions, first, groups and configurations; each configuration has
            identity, measures (mean, low, high, n, and difference to the first; for costs mean, median
            and p95) and values by question.
        """
        return {
            "data": self.data,
            "questions": len(self.groups),
            "first": self.first,
            "groups": dict(self.groups),
            "configurations": {
                name: {
                    "identity": self.identities.get(name),
                    "measures": {m: self._summary(name, m, seed) for m in row.values},
                    "values": row.values,
                }
                for name, row in self.rows.items()
            },
        }

    def save(self, path: str | os.PathLike[str], *, seed: int = 0) -> None:
        """Write :meth:`to_dict` to a JSON file."""
        save_reports([self], path, seed=seed)

    def table(self, measures: Sequence[str] | None = None, *, seed: int = 0) -> Table:
        """A table for the terminal: mean and interval, and below it the difference from the first.

        Args:
            measures: Names of its columns; None shows all measures.
            seed: Seed of the bootstrap.

        Returns:
            The table; ``rich.console.Console().print`` shows it.
        """
        from rich.table import Table

        columns = self.measures if measures is None else list(measures)
        rows = [name for name, row in self.rows.items() if set(columns) & set(row.values)]
        title = f"{self.data}: {len(self.groups)} questions; mean [95%]; difference from {self.first} [95%]"
        table = Table(title=title.replace("[", r"\["), show_lines=True)
        table.add_column("configuration", overflow="fold")
        for measure in columns:
            table.add_column({"seconds": "seconds\n(median)", "reading": "reading\n(mean s)"}.get(measure, measure))
        for name in rows:
            table.add_row(name.replace("[", r"\["), *(self._cell(name, measure, seed) for measure in columns))
        return table

    def _summary(self, name: str, measure: str, seed: int) -> dict[str, Any]:
        values = list(self.rows[name].values[measure].values())
        if measure in COSTS:
            p50, p95 = np.quantile(values, [0.5, 0.95])
            return {"mean": float(np.mean(values)), "median": float(p50), "p95": float(p95), "n": len(values)}
        summary: dict[str, Any] = self.estimate(name, measure, seed=seed).to_dict()
        if name != self.first and self._comparable(name, measure):
            summary["difference"] = self.difference(name, measure, seed=seed).to_dict()
        return summary

    def _comparable(self, name: str, measure: str) -> bool:
        return bool(set(self.rows[name].values[measure]) & set(self.rows[self.first].values.get(measure, ())))

    def _cell(self, name: str, measure: str, seed: int) -> str:
        if measure not in self.rows[name].values:
            return ""
        found = self._summary(name, measure, seed)
        if measure in COSTS:
            return (
                f"{found['median']:.3f}"
                if measure == "seconds"
                else f"{found['mean']:.{0 if measure == 'tokens' else 3}f}"
            )
        cell = f"{found['mean']:.3f} [{found['low']:.2f}, {found['high']:.2f}]"
        if found["n"] < len(self.groups):
            cell += f" n={found['n']}"
        if "difference" in found:
            change = found["difference"]
            cell += f"\n{change['mean']:+.3f} [{change['low']:+.3f}, {change['high']:+.3f}]"
        return cell.replace("[", r"\[")


def join_reports(reports: Sequence[Report], data: str = "all") -> Report:
    """The questions of several runs as those of one, so that means and differences are over all of them.

    Args:
        reports: At least one run; a row that some of them lack is over the questions of the others.
        data: Name of the questions together.

    Returns:
        A report in which each question goes by the name of its run and its own.
    """
    rows: dict[str, Row] = {}
    groups: dict[str, str] = {}
    for report in reports:
        groups |= {f"{report.data} {question}": f"{report.data} {group}" for question, group in report.groups.items()}
        for name, row in report.rows.items():
            for measure, values in row.values.items():
                found = rows.setdefault(name, Row()).values.setdefault(measure, {})
                found.update({f"{report.data} {question}": value for question, value in values.items()})
    return Report(data, rows, groups)


def save_reports(
    reports: Sequence[Report],
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> None:
    """Write reports to one JSON file.

    Args:
        reports: The reports.
        path: The file; it is replaced as a whole.
        settings: What the run was asked for, to be written beside them.
        seed: Seed of the bootstrap.
    """
    content = {"settings": dict(settings or {}), "reports": [report.to_dict(seed=seed) for report in reports]}
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content, ensure_ascii=False, indent=1, allow_nan=False) + "\n", encoding="utf-8")
