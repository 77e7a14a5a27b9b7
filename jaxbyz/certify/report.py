"""Certificates as rows: verdicts with their reasons, witnesses saved, a table to print."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxbyz.certify import aggregators, agreements
from jaxbyz.certify.bounds import contraction_bound, drift_bound, ratio_bound
from jaxbyz.certify.names import AGREEMENT, every_rule, limit_of, refusal
from jaxbyz.errors import UsageError


@dataclass(frozen=True)
class Budget:
    """How hard to search: starts looked at, climbers among them, steps of each, dimension of the messages."""

    starts: int = 768
    climbers: int = 32
    steps: int = 200
    dimension: int | None = None

    def size(self, agents: int) -> int:
        return agents if self.dimension is None else self.dimension


@dataclass(frozen=True)
class Certificate:
    """One rule's result. Aggregators have C_ra and decay, agreements contraction and C_avg; NaN where not applicable.

    verdict: "cleared" (nothing found against the definition), "broken", or "refused" (the rule declines these numbers)
    """

    rule: str
    agents: int
    byzantine: int
    verdict: str
    reason: str = ""
    C_ra: float = math.nan
    C_ra_bound: float | None = None
    decay: float = math.nan
    contraction: float = math.nan
    contraction_bound: float | None = None
    C_avg: float = math.nan
    C_avg_bound: float | None = None
    limit: int | None = None
    witness: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values: NaN becomes null, infinity the string "inf"."""

        def plain(value: Any) -> Any:
            if isinstance(value, float) and not math.isfinite(value):
                return None if math.isnan(value) else "inf"
            return value

        return {key: plain(value) for key, value in asdict(self).items()}


def certify(
    rules: Sequence[str] = (),
    *,
    agents: int = 13,
    byzantine: int = 3,
    seed: int = 0,
    budget: Budget | None = None,
    out: str | Path | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> list[Certificate]:
    """Try to break each rule (all registered ones if none are named) with f of K liars; witnesses go to `out`.

    Names: an aggregator ("krum"), a chain ("bucketing+krum"), an agreement ("agreement/mda"). `say` is told which one
    is at hand.
    """
    if byzantine < 1:
        raise UsageError(f"byzantine={byzantine}: at least 1, for Definition 2 divides by α")
    if agents < byzantine + 2:
        raise UsageError(f"agents={agents} with byzantine={byzantine}: at least two agents must be honest")
    names = list(rules) or every_rule()
    for name in names:
        limit_of(name, agents)  # unknown names fail before anything is computed
    rows = []
    for number, name in enumerate(names, start=1):
        say(f"[{number}/{len(names)}] {name}")
        rows.append(_certify_one(name, agents, byzantine, seed, budget or Budget(), out))
    return rows


def _certify_one(
    name: str, agents: int, byzantine: int, seed: int, budget: Budget, out: str | Path | None
) -> Certificate:
    effort = {
        "seed": seed, "starts": budget.starts, "climbers": budget.climbers, "steps": budget.steps,
        "dimension": budget.size(agents),
    }  # fmt: skip
    common: dict[str, Any] = {
        "rule": name, "agents": agents, "byzantine": byzantine, "limit": limit_of(name, agents),
    }  # fmt: skip
    declined = refusal(name, agents, byzantine)
    if declined is not None:
        return Certificate(**common, verdict="refused", reason=declined)
    if name.startswith(AGREEMENT):
        return _agreement(name, common, effort, out)
    return _aggregator(name, common, effort, out)


def _aggregator(name: str, common: dict[str, Any], effort: dict[str, int], out: str | Path | None) -> Certificate:
    K, f = common["agents"], common["byzantine"]
    found = aggregators.certify_aggregator(name, K, f, **effort)
    bound = ratio_bound(name, K, f)
    reason = ""
    if found.ratio > aggregators.UNBOUNDED:
        reason = "error without bound"
    elif bound is not None and found.ratio > bound * (1 + 1e-6):
        reason = "above its proved bound"
    elif found.decay < aggregators.DECAY:
        reason = "error does not vanish with α"
    arrays = {"messages": found.messages, "mask": found.mask, "ratio": np.asarray(found.ratio)}
    return Certificate(
        **common,
        verdict="broken" if reason else "cleared",
        reason=reason,
        C_ra=found.ratio * K / f,
        C_ra_bound=None if bound is None else bound * K / f,
        decay=found.decay,
        witness=_save(name, K, f, effort["seed"], arrays, out) if reason else None,
    )


def _agreement(name: str, common: dict[str, Any], effort: dict[str, int], out: str | Path | None) -> Certificate:
    K, f = common["agents"], common["byzantine"]
    found = agreements.certify_agreement(name, K, f, **effort)
    short = name.removeprefix(AGREEMENT)
    bound, moved = contraction_bound(short, K, f, effort["dimension"]), drift_bound(short, K, f, effort["dimension"])
    reason = ""
    if found.contraction >= 1 - 1e-9:
        reason = "does not contract"
    elif found.drift > agreements.UNBOUNDED_DRIFT:
        reason = "mean moves without bound"
    elif bound is not None and found.contraction > bound * (1 + 1e-6):
        reason = "above its proved bound"
    elif moved is not None and found.drift > moved * (1 + 1e-6):
        reason = "mean moves above its proved bound"
    worst = found.drift_witness if reason.startswith("mean") else found.contraction_witness
    arrays = {**worst, "contraction": np.asarray(found.contraction), "drift": np.asarray(found.drift)}
    return Certificate(
        **common,
        verdict="broken" if reason else "cleared",
        reason=reason,
        contraction=found.contraction,
        contraction_bound=bound,
        C_avg=found.drift,
        C_avg_bound=moved,
        witness=_save(name, K, f, effort["seed"], arrays, out) if reason else None,
    )


def _save(name: str, K: int, f: int, seed: int, arrays: dict[str, np.ndarray], out: str | Path | None) -> str | None:
    if out is None:
        return None
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    safe = "".join(c if c.isalnum() or c in "-+" else "_" for c in name)
    path = folder / f"{safe}_K{K}_f{f}.npz"
    context = {"rule": name, "agents": K, "byzantine": f, "seed": seed}
    np.savez(path, **{key: np.asarray(value) for key, value in context.items()}, **arrays)  # type: ignore[arg-type]
    return str(path)


def replay(path: str | Path) -> float:
    """Compute a saved witness anew: the ratio of Definition 2, or the contraction, or the drift if that broke."""
    with np.load(path) as saved:
        data = {key: saved[key] for key in saved.files}
    name, K, f, seed = str(data["rule"]), int(data["agents"]), int(data["byzantine"]), int(data["seed"])
    if name.startswith(AGREEMENT):
        what = "contraction" if len(data["told"]) == 2 else "drift"
        return agreements.replay_agreement(name, K, f, data, what, seed)
    return aggregators.replay_aggregator(name, K, f, data["messages"], data["mask"], seed)


def rounds_to_halve(contraction: float) -> float:
    """⌈ln 2 / −ln c⌉ rounds that bring the diameter to one half; infinite if a round need not contract."""
    if not contraction < 1:
        return math.inf
    return 1 if contraction <= 0.5 else math.ceil(math.log(2) / -math.log(contraction))


def format_table(rows: Sequence[Certificate]) -> str:
    """Two Markdown tables, aggregators by Definition 2 and agreements by Definition 4; whichever has rows."""

    def number(value: float | None) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return "–"
        if math.isinf(value):
            return "∞"
        return f"{value:.2f}" if abs(value) < 1e3 else f"{value:.1e}"

    def verdict(row: Certificate) -> str:
        over = row.limit is not None and row.byzantine > row.limit
        return row.verdict + (f": {row.reason}" if row.reason else "") + (" (f beyond its limit)" if over else "")

    lines: list[str] = []
    first = [row for row in rows if not row.rule.startswith(AGREEMENT)]
    second = [row for row in rows if row.rule.startswith(AGREEMENT)]
    if first:
        lines += ["| rule | C_ra found | C_ra proved | error ∝ α^p, p | verdict |", "| --- | --: | --: | --: | --- |"]
        for row in first:
            cells = (row.rule, number(row.C_ra), number(row.C_ra_bound), number(row.decay), verdict(row))
            lines.append("| " + " | ".join(cells) + " |")
    if second:
        lines += [""] if lines else []
        lines += [
            "| agreement | contraction found | proved | rounds to halve | C_avg found | proved | verdict |",
            "| --- | --: | --: | --: | --: | --: | --- |",
        ]
        for row in second:
            halve = rounds_to_halve(row.contraction) if not math.isnan(row.contraction) else math.nan
            lines.append(
                "| " + " | ".join((
                    row.rule, number(row.contraction), number(row.contraction_bound),
                    "∞" if halve == math.inf else "–" if math.isnan(halve) else f"{halve:.0f}",
                    number(row.C_avg), number(row.C_avg_bound), verdict(row),
                )) + " |"
            )  # fmt: skip
    return "\n".join(lines)
