"""Strict numerics for every test, two host devices so that sharding is real, and quick compilation."""

import os

# Most of the time of these tests would go into optimising programs that run once.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0"

import jax

jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")
