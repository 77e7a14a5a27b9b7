"""The certifier: search for the input on which a rule satisfies the paper's Definition 2 or 4 worst."""

from jaxbyz.certify.averaging_agreement import measure_round, search_agreement
from jaxbyz.certify.certificates import Certificate, certify, format_table
from jaxbyz.certify.robust_aggregation import measure_ratio, search_aggregator
from jaxbyz.certify.rule_names import every_rule, named_rule
from jaxbyz.certify.witnesses import reproduce_witness
from jaxbyz.certify.worst_input import Budget

__all__ = [
    "Budget",
    "Certificate",
    "certify",
    "every_rule",
    "format_table",
    "measure_ratio",
    "measure_round",
    "named_rule",
    "reproduce_witness",
    "search_aggregator",
    "search_agreement",
]
