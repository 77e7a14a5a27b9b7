"""The certifier: search for the input on which a rule satisfies the paper's Definition 2 or 4 worst."""

from jaxbyz.certify.certificates import Certificate, certify, format_table
from jaxbyz.certify.rule_names import every_rule, named_rule
from jaxbyz.certify.witnesses import reproduce_witness
from jaxbyz.certify.worst_input import Budget

__all__ = ["Budget", "Certificate", "certify", "every_rule", "format_table", "named_rule", "reproduce_witness"]
