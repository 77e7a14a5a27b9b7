"""Rules that turn n messages into m ≤ n rows: aggregators (m = 1), pre-aggregators, and their registries."""

from fractions import Fraction

from jaxbyz.registry import Registry
from jaxbyz.rules.arc import arc
from jaxbyz.rules.base import (
    Outcome,
    Receiver,
    Rule,
    RuleState,
    chain,
    check_rule,
    from_function,
    mix,
    usable,
    weighted,
    within_batch,
)
from jaxbyz.rules.bucketing import bucket_size, bucketing
from jaxbyz.rules.bulyan import bulyan
from jaxbyz.rules.caf import caf
from jaxbyz.rules.centered_clipping import centered_clipping
from jaxbyz.rules.cge import cge
from jaxbyz.rules.clipping import clipping
from jaxbyz.rules.coordinatewise import meamed, median, trimmed_mean
from jaxbyz.rules.distances import squared_distances
from jaxbyz.rules.dnc import dnc
from jaxbyz.rules.fedpg_br import fedpg_br
from jaxbyz.rules.fltrust import fltrust
from jaxbyz.rules.krum import krum, multi_krum
from jaxbyz.rules.mda import mda, minimum_diameter_subset
from jaxbyz.rules.mean import mean
from jaxbyz.rules.memory import SenderMemory, memory, senders_of
from jaxbyz.rules.monna import monna
from jaxbyz.rules.nnm import nnm
from jaxbyz.rules.rfa import rfa
from jaxbyz.rules.signguard import signguard
from jaxbyz.rules.smea import smea

HALF, THIRD, QUARTER, FIFTH = Fraction(1, 2), Fraction(1, 3), Fraction(1, 4), Fraction(1, 5)

# The last argument of `add` is the limit: `jaxbyz.components` refuses f ≥ limit·K for every part of a named chain
# unless `unsafe` is set. Without it, no limit is enforced.
aggregators = Registry("aggregator")
aggregators.add("mean", mean, "the average; helpless against one attacker")
aggregators.add("krum", krum, "the message with the tightest neighbourhood (paper, appendix A.2)", QUARTER)
aggregators.add("rfa", rfa, "geometric median by smoothed Weiszfeld (paper, appendix A.2)", HALF)
aggregators.add("mda", mda, "mean of the subset of least diameter, exact (paper, appendix A.3)", QUARTER)
aggregators.add("monna", monna, "mean of the n − f messages nearest to one's own", FIFTH)
aggregators.add("median", median, "coordinate-wise median", HALF)
aggregators.add("trimmed-mean", trimmed_mean, "coordinate-wise mean without f lowest and f highest", HALF)
aggregators.add("meamed", meamed, "coordinate-wise mean of the n − f nearest to the median", HALF)
aggregators.add("multi-krum", multi_krum, "mean of the n − f messages of least Krum score", HALF)
aggregators.add("bulyan", bulyan, "Krum's winners in turn, then their mean around the median", QUARTER)
aggregators.add("centered-clipping", centered_clipping, "clipped steps from the last result (stateful)", HALF)
aggregators.add("caf", caf, "mean reweighted against the direction of largest spread", HALF)
aggregators.add("smea", smea, "mean of the subset of least top covariance eigenvalue", HALF)
aggregators.add("cge", cge, "mean of the n − f shortest messages", HALF)
aggregators.add("dnc", dnc, "mean without outliers along top singular vectors of random coordinates", HALF)
aggregators.add("signguard", signguard, "mean of messages alike in length and signs, clipped", HALF)
aggregators.add("fedpg-br", fedpg_br, "mean of the messages near a majority, within a radius set by σ", HALF)
aggregators.add("fltrust", fltrust, "messages weighted by their cosine with the receiver's own vector, at its length")

pre_aggregators = Registry("pre-aggregator")
pre_aggregators.add("bucketing", bucketing, "means of random buckets, each of fewer than α_max/α messages (paper)")
pre_aggregators.add("nnm", nnm, "each message becomes the mean of the n − f nearest to it", HALF)
pre_aggregators.add("clipping", clipping, "messages longer than a fixed radius are shortened to it")
pre_aggregators.add("memory", memory, "weighs senders by their past, and excludes those whom new batches refute", HALF)
pre_aggregators.add("arc", arc, "the ⌊2f(n − f)/n⌋ longest messages are shortened to the next", HALF)

__all__ = [
    "FIFTH",
    "HALF",
    "QUARTER",
    "THIRD",
    "Outcome",
    "Receiver",
    "Rule",
    "RuleState",
    "SenderMemory",
    "aggregators",
    "arc",
    "bucket_size",
    "bucketing",
    "bulyan",
    "caf",
    "centered_clipping",
    "cge",
    "chain",
    "check_rule",
    "clipping",
    "dnc",
    "fedpg_br",
    "fltrust",
    "from_function",
    "krum",
    "mda",
    "meamed",
    "mean",
    "median",
    "memory",
    "minimum_diameter_subset",
    "mix",
    "monna",
    "multi_krum",
    "nnm",
    "pre_aggregators",
    "rfa",
    "senders_of",
    "signguard",
    "smea",
    "squared_distances",
    "trimmed_mean",
    "usable",
    "weighted",
    "within_batch",
]
