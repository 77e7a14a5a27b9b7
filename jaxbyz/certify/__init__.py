"""The certifier: search for inputs that violate Definition 2 or 4, and for sequences that take most progress."""

from jaxbyz.certify.certificates import Certificate, certify, format_table
from jaxbyz.certify.rule_names import every_rule, named_rule
from jaxbyz.certify.sequences import LostProgress, lost_progress
from jaxbyz.certify.witnesses import reproduce_witness
from jaxbyz.certify.worst_input import Budget

__all__ = [
    "Budget", "Certificate", "LostProgress", "certify", "every_rule", "format_table", "lost_progress", "named_rule",
    "reproduce_witness",
]  # fmt: skip
