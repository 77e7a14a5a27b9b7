"""What a comparison of methods holds, and how it is written: Markdown, LaTeX, CSV, and sentences."""

from __future__ import annotations

import csv
import io
from typing import Any, NamedTuple

import numpy as np

from jaxbyz.report.intervals import CONFIDENCE, FEWEST_FOR_INTERVAL, MOST_SEEDS, POWER, Estimate, without_interval
from jaxbyz.report.tables import number_text, with_interval


class Difference(NamedTuple):
    """Mean final return of one method minus that of another.

    Attributes:
        estimate: the difference with its interval.
        paired: whether both have the same seeds, so that the difference is taken seed by seed.
        seeds_needed: how many seeds per method would show it (`intervals.seeds_to_show`); None if too many, or if it
            cannot be said.
    """

    estimate: Estimate
    paired: bool
    seeds_needed: int | None

    @property
    def measured(self) -> bool:
        """Whether the interval exists and does not contain zero."""
        return bool(self.estimate.low > 0 or self.estimate.high < 0)


INTERVALS = (
    f"{100 * CONFIDENCE:.0f} % bootstrap intervals over seeds, with percentiles corrected for few seeds; none below "
    f"{FEWEST_FOR_INTERVAL} seeds"
)
ABOUT_NUMBERS_OF_SEEDS = (
    "So many seeds would show a difference, with an interval that excludes zero, in "
    f"{100 * POWER:.0f} % of all experiments if the true difference and spread were the observed ones. These are "
    "uncertain themselves, so take the number as an order of magnitude."
)


class ComparedMethod(NamedTuple):
    """One method under one attack, or under all attacks together.

    Attributes:
        method: its name.
        attack: the name of the attack, or how many there are.
        seeds: the number of seeds per attack.
        final: the mean final return.
        robust: the interquartile mean of the final returns of all seeds and attacks.
        area: the mean return over the whole run.
        worst_seed: the lowest final return of a seed.
        worst_attack: the attack with the lowest mean final return, and this return; None for a single attack.
        failed: how many seeds have failed, over all attacks.
        results: how many seeds there are, over all attacks.
        difference: the mean final return minus that of the baseline; None for the baseline.
    """

    method: str
    attack: str
    seeds: int
    final: Estimate
    robust: Estimate
    area: Estimate
    worst_seed: float
    worst_attack: tuple[str, float] | None
    failed: int
    results: int
    difference: Difference | None


class Comparison(NamedTuple):
    """What `compare` finds. `print` shows it as Markdown.

    Attributes:
        setting: what all runs have in common.
        baseline: the method that the others are compared with.
        failure_level: the final return below which a seed has failed.
        rows: all attacks together, if there are several, and then every attack.
    """

    setting: str
    baseline: str
    failure_level: float
    rows: list[ComparedMethod]

    def __str__(self) -> str:
        return self.markdown()

    def markdown(self) -> str:
        """Return a title, the table, what it shows, and the differences from the baseline in sentences."""
        head, *cells = self._cells()
        left = 2 if self._several_attacks else 1
        lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---'] * left + ['--:'] * (len(head) - left))} |"]
        lines += [f"| {' | '.join(text.replace('|', chr(92) + '|') for text in row)} |" for row in cells]
        sentences = [f"- {text}" for text in self.sentences()]
        if any("of this size" in text for text in sentences):
            sentences += ["", ABOUT_NUMBERS_OF_SEEDS]
        return "\n".join([f"{self.setting}.", "", *lines, "", self.caption(), "", *sentences]).rstrip()

    def latex(self) -> str:
        """Return the table for LaTeX with the package booktabs; its caption is a comment above it."""
        head, *cells = ([_latex(text) for text in row] for row in self._cells())
        left = 2 if self._several_attacks else 1
        lines = [f"% {self.setting}. {self.caption()}", rf"\begin{{tabular}}{{{'l' * left}{'r' * (len(head) - left)}}}"]
        lines += [r"\toprule", " & ".join(head) + r" \\", r"\midrule"]
        for before, row, cell in zip([None, *self.rows], self.rows, cells, strict=False):
            if before is not None and before.attack != row.attack:
                lines.append(r"\midrule")
            lines.append(" & ".join(cell) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])

    def csv(self) -> str:
        """Return one line per row with all numbers in full; a number that is not known is empty."""
        text = io.StringIO()
        records = [_record(row) for row in self.rows]
        writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return text.getvalue()

    def caption(self) -> str:
        """Say what the columns are."""
        level = "" if np.isinf(self.failure_level) else f" (here below {number_text(self.failure_level)})"
        worst = " Worst attack: the one with the lowest mean final return." if self._several_attacks else ""
        return (
            "Final return: mean honest return over the last 5 % of the trajectories. IQM: interquartile mean of the "
            "final returns. Area: mean honest return over the whole run, the area under the learning curve divided by "
            f"its length. Brackets: {INTERVALS}.{worst} Failed: seeds that became non-finite or ended less than a "
            f"quarter of the way from the untrained policy to the best run{level}. Difference: final return minus that "
            f"of {self.baseline}, seed by seed unless marked as unpaired; not corrected for the number of comparisons."
        )

    def sentences(self) -> list[str]:
        """Say for every difference whether it was measured."""
        return [
            difference_sentence(row.method, self.baseline, row.attack, row.difference)
            for row in self.rows
            if row.difference is not None
        ]

    @property
    def _several_attacks(self) -> bool:
        return len({row.attack for row in self.rows}) > 1

    def _cells(self) -> list[list[str]]:
        """Return the texts of the table, with its head."""
        several = self._several_attacks
        head = ["method", *(["attack"] if several else []), "seeds", "final return", "IQM", "area", "worst seed"]
        rows = [[*head, *(["worst attack"] if several else []), "failed", "difference"]]
        for row in self.rows:
            worst = "" if row.worst_attack is None else f"{row.worst_attack[0]}: {number_text(row.worst_attack[1])}"
            difference = "" if row.difference is None else with_interval(row.difference.estimate)
            if row.difference is not None and not row.difference.paired:
                difference += " unpaired"
            rows.append([
                row.method, *([row.attack] if several else []), str(row.seeds), with_interval(row.final),
                with_interval(row.robust), with_interval(row.area), number_text(row.worst_seed),
                *([worst] if several else []), f"{row.failed}/{row.results}", difference,
            ])  # fmt: skip
        return rows


def difference_sentence(method: str, other: str, attack: str, difference: Difference) -> str:
    """Say whether one method ended higher than another, or how many seeds would show it."""
    where = where_text(attack)
    value, low, _ = map(float, difference.estimate)
    text = with_interval(difference.estimate)
    if difference.measured:
        return f"{method} ends {'higher' if value > 0 else 'lower'} than {other} {where}: difference {text}."
    if np.isnan(value):
        return f"{method} and {other} cannot be compared {where}: a seed became non-finite."
    if value == 0:
        return f"{method} and {other} end at the same mean return {where}."
    measured = f"No difference was measured between {method} and {other} {where}: {text}"
    if np.isnan(low):
        return f"{measured}; fewer than {FEWEST_FOR_INTERVAL} seeds give no interval."
    needed = difference.seeds_needed
    count = f"even {MOST_SEEDS} seeds would hardly" if needed is None else f"about {needed} seeds per method would"
    return f"{measured}; {count} show one of this size."


def where_text(attack: str) -> str:
    """Return under which attack something happened."""
    if attack.startswith("all "):
        return "without liars" if attack == "all honest" else f"over {attack.removeprefix('all ')} attacks"
    return f"under {attack}"


def _record(row: ComparedMethod) -> dict[str, Any]:
    """Return a row as the columns of a CSV file."""
    record: dict[str, Any] = {"method": row.method, "attack": row.attack, "seeds": row.seeds}
    unknown = without_interval(np.asarray(np.nan))
    difference = unknown if row.difference is None else row.difference.estimate
    estimates = {"final": row.final, "iqm": row.robust, "area": row.area, "difference": difference}
    for name, estimate in estimates.items():
        for part, value in zip(("", "_low", "_high"), map(float, estimate), strict=True):
            record[name + part] = value if np.isfinite(value) else ""
    worst, least = row.worst_attack or ("", np.nan)
    record |= {
        "worst_seed": row.worst_seed if np.isfinite(row.worst_seed) else "",
        "worst_attack": worst,
        "worst_attack_final": least if np.isfinite(least) else "",
        "failed_seeds": row.failed,
        "results": row.results,
        "paired": "" if row.difference is None else row.difference.paired,
        "seeds_needed": ""
        if row.difference is None or row.difference.seeds_needed is None
        else row.difference.seeds_needed,
    }
    return record


def _latex(text: str) -> str:
    """Escape the special characters of LaTeX."""
    special = {"\\": r"\textbackslash{}", "·": r"$\cdot$", "−": "$-$", "–": "--", "κ": r"$\kappa$"}
    special |= {character: "\\" + character for character in "&%$#_{}"} | {"~": r"\textasciitilde{}", "^": r"\^{}"}
    return "".join(special.get(character, character) for character in text)
