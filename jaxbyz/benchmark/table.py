"""The leaderboard as a Markdown table."""

from __future__ import annotations

from typing import Any

COLUMNS = ("entry", "overall", "worst seed", "without attack", "MB sent", "certificate")


def markdown(board: dict[str, Any]) -> str:
    """Return the leaderboard: one row per entry, and one column per setting with its worst attack."""
    settings = [(s["task"], s["federation"]) for s in board["settings"] if s["references"] is not None]
    head = [*COLUMNS[:2], *(f"{task} {federation}" for task, federation in settings), *COLUMNS[2:]]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---', *['--:'] * (len(head) - 2), '---'])} |"]
    for entry in board["entries"]:
        by_setting = {(s["task"], s["federation"]): s for s in entry["settings"]}
        found = list(by_setting.values())
        unattacked = [s["unattacked"]["value"] for s in found if s["unattacked"]]
        cells = [
            entry["name"],
            interval(entry["overall"]),
            *(setting_cell(by_setting.get(setting)) for setting in settings),
            number(min((s["worst_seed"] for s in found if s["worst_seed"] is not None), default=None)),
            number(sum(unattacked) / len(unattacked) if unattacked else None),
            number(sum(s["megabytes"] for s in found) / len(found)),
            verdict(found),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def number(value: float | None) -> str:
    """Format a number with two digits after the point, or as a dash."""
    return "–" if value is None else f"{value:.2f}"


def interval(estimate: dict[str, float] | None) -> str:
    """Format a score with its interval."""
    return "–" if estimate is None else f"{estimate['value']:.2f} ({estimate['low']:.2f} to {estimate['high']:.2f})"


def setting_cell(setting: dict[str, Any] | None) -> str:
    """Format the score of a setting with its worst attack, or how many attacks are missing."""
    if setting is None:
        return "–"
    if setting["score"] is None:
        return f"{len(setting['missing'])} missing"
    return f"{setting['score']['value']:.2f} ({setting['worst_attack']})"


def verdict(settings: list[dict[str, Any]]) -> str:
    """Return `broken` if a rule of the entry is broken in some federation, `cleared` if none is."""
    verdicts = [text for setting in settings for text in setting["certificates"].values() if text is not None]
    if any(not text.startswith("cleared") for text in verdicts):
        return "broken"
    return "cleared" if verdicts else "–"
