"""FedPG-BR: a large batch of random size, and small steps that end early if the policy has moved far.

FedPG-BR draws the length of its inner loop; here the loop lasts until the next coin that shows a large batch. If it
ends early, the server waits for that coin: the iterations in between change nothing and count no trajectories.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from jaxbyz.algorithms.agents import sampling_inputs
from jaxbyz.algorithms.base import Algorithm, State
from jaxbyz.algorithms.byzpg import SERVER_LIMIT, ServerParts, server_algorithm
from jaxbyz.algorithms.metrics import Metrics
from jaxbyz.algorithms.rounds import Parts, Received
from jaxbyz.algorithms.settings import Settings
from jaxbyz.algorithms.traits import Traits, algorithm
from jaxbyz.environments import Environment
from jaxbyz.errors import UsageError
from jaxbyz.policies import Policy
from jaxbyz.protocol.iteration import Iteration, IterationKeys, iteration_keys
from jaxbyz.protocol.placement import Places
from jaxbyz.rules import Receiver
from jaxbyz.sampling.estimators import mean_ratio
from jaxbyz.sampling.page import Drawn, Sampler, sampler
from jaxbyz.sampling.random_batches import random_size_batches
from jaxbyz.sampling.settings import check_sampling

# A stream of the key of the gradient messages. `round_keys` splits the same key into three: its streams 0 to 2.
BATCH_STREAM = 2**32 - 2


@algorithm(
    Traits(
        central=True, server_samples=True, snapshot=True, limit=SERVER_LIMIT,
        ignores=frozenset({"groups", "small_batches", "p", "period", "local_steps"}),
        instead={"baseline": "none", "estimator": "whitened", "weights": "per-step", "advantages": "plain", "epochs": 1,
                 "minibatches": 1, "local_eta": None, "N": 16, "B": 4},
    )
)  # fmt: skip
def fedpg_br(environment: Environment, policy: Policy, settings: Settings) -> Algorithm:
    """Build FedPG-BR: filtered large batches, then a geometric number of small steps of the server.

    The number of small steps is geometric with parameter B/(N + B), which is the same as a coin of that probability in
    every iteration. The algorithm was designed for the rule `fedpg-br`. The authors' code is
    `batch_spread=4, ratio_window=0.005` on CartPole. After a large batch of n trajectories, the parameter of their
    geometric distribution is B/(n + B); here it is always B/(N + B).

    References:
        Fan et al., Fault-tolerant federated reinforcement learning with theoretical guarantee, 2021; the early end is
        only in their code.
    """
    N, B = settings.N, settings.B
    settings = replace(settings, anchor="snapshot", small_batches=None, p=B / (N + B), period=None)
    check_sampling(settings)
    spread, window = settings.batch_spread, settings.ratio_window
    if not 0 <= spread < N:
        raise UsageError(f"batch_spread={spread} with N={N}: must be from 0 to N − 1")
    if spread and settings.baseline in ("leave-one-out", "critic"):
        raise UsageError(f"batch_spread={spread} with baseline={settings.baseline}: needs baseline=none or constant")
    measure = None if window is None else partial(mean_ratio, policy)

    def make_sampler(parts: Parts) -> Sampler:
        return sampler(environment, policy, settings, parts.interference(environment), measure_small=measure)

    def change(parts: Parts, own: ServerParts) -> ServerParts:
        if spread:
            own = with_random_batches(environment, policy, settings, parts, own)
        return own if window is None else own._replace(optimise=with_early_end(own, window))

    built = server_algorithm(environment, policy, settings, make_sampler, change)

    def init(key: PRNGKeyArray, *places: Places) -> State:
        state = built.init(key, *places)
        return state if window is None else state._replace(ended=jnp.bool_(False))

    def step(state: State, coin: Array, *places: Places) -> tuple[State, Metrics]:
        after, metrics = built.step(state, coin, *places)
        keys = iteration_keys(state.key, state.step, settings.agents)
        small = jnp.int32(B) if window is None else jnp.where(state.ended, 0, B)
        batch = jnp.where(coin, large_batch_size(settings, keys), small).astype(jnp.int32)
        return after, metrics._replace(batch=batch)

    return built._replace(init=init, step=step)


def large_batch_size(settings: Settings, keys: IterationKeys) -> Int[Array, ""]:
    """Draw the size of a large batch, which all workers are told."""
    N, spread = settings.N, settings.batch_spread
    if not spread:
        return jnp.int32(N)
    return jax.random.randint(jax.random.fold_in(keys.gradients, BATCH_STREAM), (), N - spread, N + spread + 1)


def with_random_batches(
    environment: Environment, policy: Policy, settings: Settings, parts: Parts, own: ServerParts
) -> ServerParts:
    """Let workers sample as many trajectories as `large_batch_size` draws, which the rule of the server is told."""
    attack, most = parts.attack, settings.N + settings.batch_spread
    large = random_size_batches(environment, policy, settings, parts.interference(environment), most)

    def sample(now: Iteration, state: State) -> tuple[Drawn, State]:
        inputs = sampling_inputs(environment, settings, attack, now, state)
        drawn = large(inputs, jnp.full(inputs.keys.shape, large_batch_size(settings, now.keys)))
        return drawn if settings.ratio_window is not None else drawn._replace(measured=()), state

    def receiver(now: Iteration, state: State, sent: Array) -> Receiver:
        return own.receiver(now, state, sent)._replace(batch=large_batch_size(settings, now.keys))

    return own._replace(workers=own.workers._replace(sample=sample), receiver=receiver)


def with_early_end(own: ServerParts, window: float) -> Callable[[Iteration, State, Received], State]:
    """Return the step of a server that takes none once its inner loop has ended, until the next large batch."""

    def optimise(now: Iteration, state: State, v: Received) -> State:
        far = jnp.abs(v.measured[0] - 1.0) > window
        ended: Bool[Array, ""] = ~now.coin & (state.ended | far)
        after = own.optimise(now, state, v)
        moved = ("parameters", "anchor", "estimate", "optimizer")
        kept = {
            name: jax.tree.map(lambda a, b: jnp.where(ended, a, b), getattr(state, name), getattr(after, name))
            for name in moved
        }
        return after._replace(**kept, ended=ended)

    return optimise
