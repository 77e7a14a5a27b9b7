"""A strategy for Flower that applies a rule to what clients send: `pip install 'jaxbyz[flower]'`.

Only the server needs jaxbyz. Clients are ordinary Flower clients that reply with one `ArrayRecord`, the trained arrays,
and one `MetricRecord`, as for Flower's own `FedAvg`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from logging import INFO, WARNING, getLogger
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxbyz.api import aggregate
from jaxbyz.errors import UsageError, check_choice, check_value, first_line
from jaxbyz.rules import Rule

try:
    from flwr import app as flower
    from flwr.serverapp.strategy import FedAvg
except ModuleNotFoundError:
    raise UsageError("jaxbyz.flower needs Flower: pip install 'jaxbyz[flower]'") from None

log = getLogger("flwr").log
WEIGHTS = ("equal", "claimed")


class RobustStrategy(FedAvg):
    """FedAvg with a rule in place of the weighted average.

    The rule aggregates updates, which are what clients send minus what they were given. All numbers of a client are
    one vector, whatever the arrays they are in.

    - A client that fails or does not answer is absent: the rule gets fewer messages and still defends against f.
    - A reply with other names, shapes or kinds of arrays, or with a number that is not finite, is rejected. It counts
      as one of the f Byzantine clients, so the rule defends against as many fewer.
    - If too few clients reply for the rule to defend against f, the round leaves the model unchanged.
    - Metrics, which clients may also lie about, are medians over clients.

    Args:
        rule: as in `jaxbyz.aggregate`, for example `"rfa"` or `"nnm+trimmed-mean"`. A rule with memory starts from its
            initial state in every round.
        byzantine: how many of the clients of a round the rule defends against.
        weights: `"equal"` if every client counts once. `"claimed"` if its update is multiplied by the number of its
            examples over the median of these numbers. It is what the client says, so that a lie has an effect of
            at most `largest_weight`.
        largest_weight: the largest factor of an update.
        unsafe: allow more Byzantine clients than a named rule tolerates.
        seed: of the random numbers, for rules that draw them.
        **options: those of Flower's `FedAvg`.

    Raises:
        UsageError: if a value is not allowed.
    """

    def __init__(
        self,
        rule: Rule | str | Callable[..., Array] = "rfa",
        byzantine: int = 0,
        *,
        weights: str = "equal",
        largest_weight: float = 2.0,
        unsafe: bool = False,
        seed: int = 0,
        **options: Any,
    ) -> None:
        check_value("byzantine", byzantine, byzantine >= 0, "at least 0")
        check_value("largest_weight", largest_weight, largest_weight >= 1, "at least 1")
        check_choice("weights", weights, WEIGHTS)
        medians = {"train_metrics_aggr_fn": median_metrics, "evaluate_metrics_aggr_fn": median_metrics}
        super().__init__(**{**medians, **options})
        self.rule, self.byzantine, self.unsafe, self.seed = rule, byzantine, unsafe, seed
        self.weights, self.largest_weight = weights, largest_weight
        self._sent: dict[str, np.ndarray] = {}

    def summary(self) -> None:
        """Log the settings, as every strategy of Flower does."""
        log(INFO, "\t├──> Rule: %s against %d Byzantine clients, weights: %s", self.rule, self.byzantine, self.weights)
        super().summary()

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Iterable[Any]:
        """Remember what clients are given, and sample them as FedAvg does."""
        self._sent = {name: array.numpy() for name, array in arrays.items()}
        return list(super().configure_train(server_round, arrays, config, grid))

    def aggregate_train(self, server_round: int, replies: Iterable[Any]) -> tuple[Any, Any]:
        """Apply the rule to the updates of all usable replies; the arrays are None if the model stays as it is."""
        answers, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        usable, updates, claims = [], [], []
        for reply in answers:
            try:
                update, claim = self._update(reply.content), self._claim(reply.content)
            except Exception as error:  # whatever a client's bytes raise
                log(WARNING, "\t> Rejected the reply of node %d: %s", reply.metadata.src_node_id, first_line(error))
                continue
            usable.append(reply.content)
            updates.append(update)
            claims.append(claim)
        if not usable:
            return None, None
        rejected = len(answers) - len(usable)
        if rejected > self.byzantine:
            log(WARNING, "\t> %d replies were rejected, more than byzantine=%d", rejected, self.byzantine)
        factors = np.minimum(np.divide(claims, np.median(claims)), self.largest_weight).astype(np.float32)
        stacked = {
            name: np.stack([factor * update[name] for factor, update in zip(factors, updates, strict=True)])
            for name in self._sent
        }
        metrics = self.train_metrics_aggr_fn(usable, self.weighted_by_key)
        key, f = jax.random.fold_in(jax.random.key(self.seed), server_round), max(self.byzantine - rejected, 0)
        try:
            step = aggregate(self.rule, key, stacked, byzantine=f, unsafe=self.unsafe)
        except UsageError as error:
            log(WARNING, "\t> The model stays as it is in round %d: %s", server_round, error)
            return None, metrics
        arrays = {name: flower.Array(_moved(sent, step[name])) for name, sent in self._sent.items()}
        return flower.ArrayRecord(arrays), metrics

    def _update(self, content: Any) -> dict[str, np.ndarray]:
        """Return what a client has changed, or raise an error that says why the reply cannot be used."""
        (record,) = content.array_records.values()
        received = {name: array.numpy() for name, array in record.items()}
        if received.keys() != self._sent.keys():
            raise UsageError(f"arrays {', '.join(received)}: must be {', '.join(self._sent)}")
        for name, sent in self._sent.items():
            if received[name].shape != sent.shape or received[name].dtype.kind not in "fiub":
                found = f"{received[name].dtype} of shape {received[name].shape}"
                raise UsageError(f"array {name} is {found}: must be {sent.dtype} of shape {sent.shape}")
        with np.errstate(all="ignore"):
            update = {name: _difference(received[name], sent) for name, sent in self._sent.items()}
        for name, change in update.items():
            if not np.isfinite(change).all():
                raise UsageError(f"array {name} has numbers that are not finite")
        return update

    def _claim(self, content: Any) -> float:
        """Return how many examples a client says that it has; 1 if all clients count alike."""
        if self.weights == "equal":
            return 1.0
        (record,) = content.metric_records.values()
        claim = float(record[self.weighted_by_key])
        if not 0 < claim < np.inf:
            raise UsageError(f"{self.weighted_by_key}={claim}: must be positive and finite")
        return claim

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Any]) -> Any:
        """Aggregate the metrics of all clients that answered."""
        answers, _ = self._check_and_log_replies(replies, is_train=False, validate=False)
        contents = [reply.content for reply in answers]
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key) if contents else None


def median_metrics(contents: list[Any], weighted_by_key: str) -> Any:
    """Return the median over clients of every metric that more than half of them report as a finite number.

    Args:
        contents: one `RecordDict` per client.
        weighted_by_key: the name of the number of examples, which is not among the results.
    """
    values: dict[str, list[float]] = {}
    for content in contents:
        reported = {name: value for record in content.metric_records.values() for name, value in record.items()}
        for name, value in reported.items():
            if name != weighted_by_key and isinstance(value, (int, float)) and np.isfinite(value):
                values.setdefault(name, []).append(value)
    common = {name: float(np.median(given)) for name, given in values.items() if 2 * len(given) > len(contents)}
    return flower.MetricRecord(common)


def _difference(received: np.ndarray, sent: np.ndarray) -> np.ndarray:
    return np.subtract(received, sent, dtype=np.float64 if sent.dtype == np.float64 else np.float32, casting="unsafe")


def _moved(sent: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return sent + step in the type of what was sent; integers, such as counters of batches, are rounded."""
    moved = np.asarray(sent + step)  # a sum of arrays without axes is a number
    return (moved if sent.dtype.kind == "f" else np.asarray(np.rint(moved))).astype(sent.dtype)
