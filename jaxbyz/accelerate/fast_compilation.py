"""Compile fast instead of well, for programs that run only once and briefly."""

from __future__ import annotations

from functools import partial

import jax

# XLA's newer emitters for a CPU write faster loops, but take half of the time to compile a small program. From JAX 0.11
# on they cannot be switched off, and XLA refuses the option.
_OLD_EMITTERS = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
_OPTIONS: dict[str, int | bool] = {"xla_backend_optimization_level": 0, **_OLD_EMITTERS}

# `jax.jit` for programs that take longer to compile than to run.
fast_compiling_jit = partial(jax.jit, compiler_options=_OPTIONS)

# The same for all programs of a process, to be added to the environment variable XLA_FLAGS before JAX starts.
FAST_COMPILATION_FLAGS = " ".join(f"--{name}={str(value).lower()}" for name, value in _OPTIONS.items())
