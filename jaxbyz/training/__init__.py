"""Runs: many iterations of an algorithm, for one seed or many, on one device, several devices or several processes."""

from jaxbyz.training.coins import (
    algorithm_coins,
    coins_for,
    common_coins,
    common_seed,
    iterations_for,
    most_iterations,
    sampled_iteration,
)
from jaxbyz.training.layout import Layout, make_layout, programs
from jaxbyz.training.run import Outputs, Result, Run, iterate, start, train
from jaxbyz.training.segments import TrainedSegment, segments, to_host

__all__ = [
    "Layout",
    "Outputs",
    "Result",
    "Run",
    "TrainedSegment",
    "algorithm_coins",
    "coins_for",
    "common_coins",
    "common_seed",
    "iterate",
    "iterations_for",
    "make_layout",
    "most_iterations",
    "programs",
    "sampled_iteration",
    "segments",
    "start",
    "to_host",
    "train",
]
