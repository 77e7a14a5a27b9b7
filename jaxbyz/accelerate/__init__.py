"""Everything that exists only for speed. The rest of the package never asks which device it runs on.

| module | what is fast | plain version |
| --- | --- | --- |
| `episode_loop` | episodes in chunks of time until the last ends | scan over all steps |
| `episode_sums`, `living_strips` | sums over the steps that were taken | sum over all steps |
| `batching` | axes that `vmap` adds are folded, groups of agents, one branch per shared coin | `vmap`, `lax.cond` |
| `lane_steps` | simulations in which only the lanes that need work cost time | `vmap` |
| `sorting_networks`, `gram`, `weighted_sums` | parts of aggregation rules | `jnp.sort`, `@`, … |
| `matrix_products`, `trigonometry` | small products, cosine and sine on a CPU | `@`, `jnp.cos`, `jnp.sin` |
| `convolutions` | convolutions of many agents | `lax.conv_general_dilated` |
| `no_inline`, `fast_compilation` | functions that XLA does not inline, programs that run once | `jax.jit` |
| `kernels`, `jaxprs` | functions of lanes or of a small matrix as single Triton kernels | the traced function itself |
| `platform` | the choice between all of these, `trace_for` in tests | |
| `portable` | functions as files that run on every platform | |
| `setup`, `stored_programs`, `lazy_imports` | XLA flags, compiled programs on disk, imports | |

To add one: write a function that says what it computes; return its plain version if `platform.plain()`, and choose
among the fast ones with `on_cpu()` and `kernels_run()`. Compare them in a test with `trace_for("plain")`. Keep a fast
version only if a warmed-up program becomes at least 1.3 times faster.
"""
