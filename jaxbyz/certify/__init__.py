"""Certificates: what can be checked of Definitions 2 and 4, by searching for the input that breaks them."""

from jaxbyz.certify.aggregators import certify_aggregator, replay_aggregator
from jaxbyz.certify.agreements import certify_agreement, replay_agreement
from jaxbyz.certify.names import every_rule, named_rule
from jaxbyz.certify.report import Budget, Certificate, certify, format_table, replay

__all__ = [
    "Budget",
    "Certificate",
    "certify",
    "certify_aggregator",
    "certify_agreement",
    "every_rule",
    "format_table",
    "named_rule",
    "replay",
    "replay_aggregator",
    "replay_agreement",
]
