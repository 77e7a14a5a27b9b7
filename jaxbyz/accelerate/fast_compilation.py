"""Compile fast instead of well, for programs that run only once and briefly."""

from __future__ import annotations

from functools import partial

import jax

# `jax.jit` for programs that take longer to compile than to run. XLA's newer emitters for a CPU write faster loops, but
# take half of the time to compile a small program.
fast_compiling_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
)
