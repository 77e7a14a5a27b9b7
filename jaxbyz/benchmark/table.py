"""The leaderboard as a Markdown table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def both_tables(board: dict[str, Any]) -> str:
    """Return the leaderboard and the scale of its scores."""
    return f"{markdown(board)}\n\n{SCALES[board['scoring']](board)}"


def markdown(board: dict[str, Any]) -> str:
    """Return the leaderboard: one row per entry, and one column per setting with its worst attack.

    The other columns are about the ranked settings.
    """
    settings, columns = _settings(board), COLUMNS[board["scoring"]]
    head = ["entry", "overall", *(f"{task} {federation}" for task, federation in settings), *columns]
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join(['---', *['--:'] * (len(head) - 2), '---'])} |"]
    for entry in board["entries"]:
        by_setting = {(s["task"], s["federation"]): s for s in entry["settings"]}
        found = counted_settings(board, entry)
        cells = [
            entry["name"],
            interval(entry["overall"]),
            *(setting_cell(by_setting.get(setting)) for setting in settings),
            *(text(found) for text in columns.values()),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def counted_settings(board: dict[str, Any], entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of an entry that its averages are about: the ranked ones, or all if none is ranked."""
    ranked = [setting for setting in entry["settings"] if [setting["task"], setting["federation"]] in board["ranked"]]
    return ranked if board["ranked"] else entry["settings"]


def mean_unattacked(settings: list[dict[str, Any]]) -> float | None:
    """Return the mean score without attack over settings."""
    found = [setting["unattacked"]["value"] for setting in settings if setting["unattacked"]]
    return sum(found) / len(found) if found else None


def attack_tables(board: dict[str, Any]) -> str:
    """Return the scores of every attack, one table per setting."""
    return "\n\n".join(attacks_table(board, *setting) for setting in _settings(board))


def _settings(board: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings whose references have been run."""
    return [(s["task"], s["federation"]) for s in board["settings"] if s["references"] is not None]


def attacks_table(board: dict[str, Any], task: str, federation: str) -> str:
    """Return the scores of one setting: one row per entry and one column per attack, the worst in bold."""
    attacks = ["none", *board["attacks"]]
    lines = [f"| {task} {federation} | {' | '.join(attacks)} |", f"| --- |{' --: |' * len(attacks)}"]
    for entry in board["entries"]:
        for setting in entry["settings"]:
            if (setting["task"], setting["federation"]) == (task, federation):
                scores = {attack: cell["score"]["value"] for attack, cell in setting["cells"].items()}
                texts = {attack: number(scores.get(attack)) for attack in attacks}
                if (worst := setting["worst_attack"]) is not None:
                    texts[worst] = f"**{texts[worst]}**"
                lines.append(f"| {entry['name']} | {' | '.join(texts.values())} |")
    return "\n".join(lines)


def scale(board: dict[str, Any]) -> str:
    """Return the returns of every setting that have the scores 0 and 1, with their intervals.

    The last two columns are the scores of the same references on the seeds of the entries only.
    """
    columns = ["score 0: one honest agent alone", "score 1: the mean without attack"]
    columns += ["one agent on the entries' seeds", "the mean on the entries' seeds"]
    lines = [f"| setting | {' | '.join(columns)} |", "| --- | --: | --: | --: | --: |"]
    for setting in board["settings"]:
        if (found := setting["reference_intervals"]) is not None:
            largest = max(abs(found[name]["value"] or 0.0) for name in ("alone", "mean"))
            digits = 3 if largest < 10 else 1
            texts = [interval(found[name], digits) for name in ("alone", "mean")]
            texts += [number(setting["on_entry_seeds"].get(name)) for name in ("alone", "mean")]
            lines.append(f"| {setting['task']} {setting['federation']} | {' | '.join(texts)} |")
    return "\n".join(lines)


def number(value: float | None, digits: int = 2) -> str:
    """Format a number with some digits after the point and a minus sign that is not a hyphen, or as a dash."""
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def interval(estimate: dict[str, float | None] | None, digits: int = 2) -> str:
    """Format a value with its interval, or a dash if there is none."""
    if estimate is None or estimate["value"] is None:
        return "–"
    value, low, high = (number(estimate[name], digits) for name in ("value", "low", "high"))
    return f"{value} ({low} to {high})"


def setting_cell(setting: dict[str, Any] | None) -> str:
    """Format the score of a setting with its worst attack, or how many attacks are missing."""
    if setting is None:
        return "–"
    if setting["score"] is None:
        return f"{len(setting['missing'])} missing"
    return f"{number(setting['score']['value'])} ({setting['worst_attack']})"


def verdict(settings: list[dict[str, Any]]) -> str:
    """Return the worst verdict on a rule of the entry in some federation; `cleared` only if all of them are."""
    texts = [text for setting in settings for text in setting["certificates"].values()]
    known = {text.split(":")[0] for text in texts if text is not None}
    found = [name for name in ("broken", "refused") if name in known]
    return found[0] if found else "cleared" if texts and None not in texts else "–"


def _mean_of(settings: list[dict[str, Any]], name: str) -> float | None:
    """Return the mean of a number over settings that have it."""
    found = [setting[name] for setting in settings if setting.get(name) is not None]
    return sum(found) / len(found) if found else None


def _worst_seed(settings: list[dict[str, Any]]) -> str:
    return number(min((s["worst_seed"] for s in settings if s["worst_seed"] is not None), default=None))


def share(value: float | None) -> str:
    """Format a share in per cent, or a dash."""
    return "–" if value is None else f"{100 * value:.0f} %"


def paired_scale(board: dict[str, Any]) -> str:
    """Return the mean returns of the references of every setting, and the gain of federating with its interval.

    The price of federating is what 13 agents gain of that which one learner gains with the samples of all of them. The
    last column is the share of seeds on which the federation without liars is worse than one agent alone.
    """
    columns = ["score 0: alone", "score 1: the mean", "one learner with all samples", "gain", "standard errors"]
    columns += ["score of that learner", "seeds lost without liars"]
    lines = [f"| setting | {' | '.join(columns)} |", f"| --- |{' --: |' * len(columns)}"]
    for setting in board["settings"]:
        if (found := setting["references"]) is not None:
            digits = 2 if max(abs(value) for value in found.values()) < 10 else 1
            texts = [number(found[name], digits) for name in ("alone", "mean", "pooled")]
            texts += [interval(setting["gain"], digits), number(setting["standard_errors"], 1)]
            texts += [interval(setting["pooled"]), share(setting["failed"])]
            lines.append(f"| {setting['task']} {setting['federation']} | {' | '.join(texts)} |")
    return "\n".join(lines)


# What the leaderboard shows beside the scores: column -> text for the counted settings of an entry.
Texts = dict[str, Callable[[list[dict[str, Any]]], str]]
COLUMNS: dict[str, Texts] = {
    "references": {
        "worst seed": _worst_seed,
        "without attack": lambda found: number(mean_unattacked(found)),
        "MB sent": lambda found: number(_mean_of(found, "megabytes")),
        "certificate": verdict,
    },
    "paired": {
        "interquartile mean": lambda found: number(_mean_of(found, "robust")),
        "worst seed": _worst_seed,
        "seeds lost": lambda found: share(_mean_of(found, "failed")),
        "without attack": lambda found: number(mean_unattacked(found)),
    },
}
SCALES: dict[str, Callable[[dict[str, Any]], str]] = {"references": scale, "paired": paired_scale}
