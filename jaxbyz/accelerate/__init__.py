"""Everything that exists only for speed."""
