"""Experiments: from options to trained policies, metrics and run folders."""
