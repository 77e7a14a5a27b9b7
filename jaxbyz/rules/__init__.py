"""Rules that turn K messages into one: aggregators, pre-aggregators, and their registries."""

from fractions import Fraction

from jaxbyz.registry import Registry
from jaxbyz.rules.base import Outcome, Receiver, Rule, chain, from_function, weighted
from jaxbyz.rules.bucketing import bucket_size, bucketing
from jaxbyz.rules.diameter import mda, minimum_diameter_subset, monna
from jaxbyz.rules.geometric_median import rfa
from jaxbyz.rules.krum import krum
from jaxbyz.rules.mean import mean

HALF, QUARTER, FIFTH = Fraction(1, 2), Fraction(1, 4), Fraction(1, 5)


def _bucketing(agents: int, byzantine: int, size: int | None = None, alpha_max: float = 0.5) -> Rule:
    """Means of random buckets; size ⌊α_max/α⌋ by default."""
    return bucketing(bucket_size(agents, byzantine, alpha_max) if size is None else size)


aggregators = Registry("aggregator")
aggregators.add("mean", mean, "the average; helpless against one attacker")
aggregators.add("krum", krum, "the message with the tightest neighbourhood (paper, appendix A.2)", QUARTER)
aggregators.add("rfa", rfa, "geometric median by smoothed Weiszfeld (paper, appendix A.2)", HALF)
aggregators.add("mda", mda, "mean of the subset of least diameter, exact (paper, appendix A.3)", QUARTER)
aggregators.add("monna", monna, "mean of the n − f messages nearest to one's own", FIFTH)

pre_aggregators = Registry("pre-aggregator")
pre_aggregators.add(
    "bucketing", _bucketing, "means of random buckets of ⌊α_max/α⌋ messages (paper, appendix A.2)"
)

__all__ = [
    "Outcome",
    "Receiver",
    "Rule",
    "aggregators",
    "bucket_size",
    "bucketing",
    "chain",
    "from_function",
    "krum",
    "mda",
    "mean",
    "minimum_diameter_subset",
    "monna",
    "pre_aggregators",
    "rfa",
    "weighted",
]
