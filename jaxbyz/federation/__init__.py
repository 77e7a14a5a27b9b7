"""A federation of separate processes that do not trust each other, over ZeroMQ with CURVE."""
