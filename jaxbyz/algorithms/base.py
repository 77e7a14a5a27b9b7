"""What an algorithm is: the state that it carries, its two functions, and what distinguishes it from the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Float, Int, PRNGKeyArray

from jaxbyz.algorithms.metrics import Metrics
from jaxbyz.algorithms.settings import Settings
from jaxbyz.attacks.one_of import choose_attack
from jaxbyz.environments import Environment
from jaxbyz.policies import Policy
from jaxbyz.protocol.placement import Places


class State(NamedTuple):
    """What the agents carry from one iteration to the next.

    Arrays have one row per agent on this device, which is all K agents unless they are spread over several devices.
    An algorithm with a server has a single row, the server's, and every device holds a copy of it.

    Attributes:
        step: `[]`, the iteration t.
        key: the random key of the run.
        parameters: `[K, D]`, θ_t.
        anchor: `[K, D]`, the parameters that a small batch is compared with; see `PageSwitch.anchor`.
        estimate: `[K, D]`, the estimate v_{t−1} that a small batch corrects.
        optimizer: one optimizer state per agent.
        rules: one rule state per receiver.
        attack_memory: what the attack remembers.
        private: what every agent keeps for itself, such as its critic; `[K, …]` also if there is a server.
        channel: what the senders and the messages on their way remember; see `jaxbyz.protocol.channel`.
        ended: `[]`, whether the inner loop of FedPG-BR has ended; empty for other algorithms.
    """

    step: Int[Array, ""]
    key: PRNGKeyArray
    parameters: Float[Array, "K D"]
    anchor: Float[Array, "K D"]
    estimate: Float[Array, "K D"]
    optimizer: Any
    rules: Any
    attack_memory: Any
    private: Any = ()
    channel: Any = ()
    ended: Any = ()


class Algorithm(NamedTuple):
    """One federated algorithm as two pure functions.

    The coin c_t is an argument of `step` because all agents know it: runs that share it can be batched without paying
    for both branches. The first coin must be True (Algorithms 1 and 2: "c_t = 1 or t = 0").

    Two algorithms are equal if they are the same functions, so an algorithm can be the key of a cache.

    Attributes:
        init: `key -> State`.
        step: `(State, coin []) -> (State, Metrics)`, one iteration. Both functions also accept `places`
            (`jaxbyz.protocol.placement.Places`) if the agents are spread over devices.
        settings: what it was built from, with the values that the algorithm fixes itself.
        policy: the policy that is trained.
        environment: the task.
        central: whether the state has a single row, the server's.
    """

    init: Callable[..., State]
    step: Callable[..., tuple[State, Metrics]]
    settings: Settings
    policy: Policy
    environment: Environment
    central: bool = False

    @property
    def agents(self) -> int:
        """The number of agents K."""
        return self.settings.agents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Algorithm) and self.init is other.init and self.step is other.step

    def __hash__(self) -> int:
        return hash((self.init, self.step))


def starting_with_attack(algorithm: Algorithm, index: Int[Array, ""]) -> Algorithm:
    """Return an algorithm under `one_of` several attacks that starts with the attack of this index."""

    def init(key: PRNGKeyArray, *places: Places) -> State:
        state = algorithm.init(key, *places)
        return state._replace(attack_memory=choose_attack(state.attack_memory, index))

    return algorithm._replace(init=init)
