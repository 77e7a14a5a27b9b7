"""The ways to score by the name that a suite gives them."""

from __future__ import annotations

from jaxbyz.benchmark import paired_scores, reference_scores
from jaxbyz.benchmark.scores import Results, Scoring, Settings, score_settings
from jaxbyz.benchmark.suite import Suite

SCORINGS = {"references": reference_scores.SCORING, "paired": paired_scores.SCORING}


def scoring_of(suite: Suite) -> Scoring:
    """Return the way in which a suite is scored."""
    return SCORINGS[suite.statistics.scoring]


def score_entries(suite: Suite, results: Results) -> dict[str, Settings]:
    """Score every entry in every setting in which it was run and whose references make a scale."""
    return score_settings(suite, results, scoring_of(suite))
