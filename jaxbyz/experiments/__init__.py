"""A configured run from its options to its folder."""
