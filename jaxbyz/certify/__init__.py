"""The certifier: search for the input that comes closest to violating, or most violates, Definition 2 or 4."""

from jaxbyz.certify.certificates import Certificate, certify, format_table
from jaxbyz.certify.rule_names import every_rule, named_rule
from jaxbyz.certify.witnesses import reproduce_witness
from jaxbyz.certify.worst_input import Budget

__all__ = ["Budget", "Certificate", "certify", "every_rule", "format_table", "named_rule", "reproduce_witness"]
