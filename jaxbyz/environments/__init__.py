"""Environments: access to gymnax, and those jaxbyz adds to it."""
