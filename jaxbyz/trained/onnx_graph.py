"""A learnt policy as a graph of ONNX: `observations [b, …] -> (actions [b, …], distribution [b, P])`.

`actions` are the most likely ones, and `distribution` is what actions are drawn from: log-probabilities if they are
discrete, otherwise means followed by logarithms of standard deviations. The policy `gru` has a second input, `carry`
`[b, H]`, which is zero at the start of episodes, and a third output, `next_carry`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxbyz.environments import Environment
from jaxbyz.environments.observation_scaling import LARGEST
from jaxbyz.errors import UsageError
from jaxbyz.files import json_text
from jaxbyz.policies.distributions import range_of

OPERATORS, FORMAT = (
    20,
    9,
)  # the versions of ONNX's operators and of its files: since 2023, for onnxruntime 1.17 and later


class Graph:
    """A list of nodes in order; every method adds nodes and returns the name of their result."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, operator: str, *inputs: str | np.ndarray | np.generic, name: str = "", **attributes: Any) -> str:
        """Add one node; arrays among its inputs become constants."""
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        result = name or f"{operator}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, names, [result], **attributes))
        return result

    def _constant(self, values: np.ndarray | np.generic) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def activation(self, name: str, x: str) -> str:
        """Add an activation of `jaxbyz.policies.ACTIVATIONS`."""
        match name:
            case "identity":
                return x
            case "silu":
                return self.add("Mul", x, self.add("Sigmoid", x))
            case "gelu":
                return self.add("Gelu", x, approximate="tanh")
            case "relu" | "tanh" | "elu":
                return self.add(name.capitalize(), x)
        raise UsageError(f"activation={name!r} cannot be written as ONNX; write the policy to a name that ends in .jax")


def onnx_model(environment: Environment, schema: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Return the file of a policy `mlp`, `cnn` or `gru`.

    Args:
        environment: the task.
        schema: what `jaxbyz.trained.export.describe` returns.
        arrays: the parameters by name.

    Raises:
        UsageError: if onnx is not installed, or the policy is another one.
    """
    if schema["policy"] not in ("mlp", "cnn", "gru"):
        raise UsageError(
            f"policy={schema['policy']}: only mlp, cnn and gru can be written as ONNX; write it to a name that ends in "
            ".jax"
        )
    try:
        import onnx
    except ModuleNotFoundError:
        raise UsageError("files of ONNX need the package onnx: pip install 'jaxbyz[onnx]'") from None
    graph, shape = Graph(onnx), list(environment.observation_shape)
    x = graph.add("Reshape", "observations", np.array([-1, environment.observation_size]))
    if environment.scales is not None:
        mean, deviation = (np.asarray(scale, np.float32).reshape(1, -1) for scale in environment.scales)
        scaled = graph.add("Div", graph.add("Sub", x, mean), deviation)
        x = graph.add("Clip", scaled, np.float32(-LARGEST), np.float32(LARGEST))
    if schema["policy"] == "cnn":
        x = _convolutions(graph, x, (*shape, 1)[:3], schema["options"], arrays)
    kind, value, options = onnx.TensorProto, onnx.helper.make_tensor_value_info, schema["options"]
    carries = []
    if schema["policy"] == "gru":
        x = _gated_recurrent_unit(graph, x, options, _part(arrays, "core/"))
        carries = [value(name, kind.FLOAT, ["batch", options["hidden"][-1]]) for name in ("carry", "next_carry")]
        options, arrays = {**options, "hidden": ()}, _part(arrays, "readout/")
    outputs = _perceptron(graph, x, options, arrays)
    size = _distribution(graph, outputs, environment, options, arrays)
    discrete = environment.actions.discrete
    action_shape = [] if discrete else list(environment.actions.shape)
    found = onnx.helper.make_graph(
        graph.nodes,
        "jaxbyz policy",
        [value("observations", kind.FLOAT, ["batch", *shape]), *carries[:1]],
        [
            value("actions", kind.INT64 if discrete else kind.FLOAT, ["batch", *action_shape]),
            value("distribution", kind.FLOAT, ["batch", size]),
            *carries[1:],
        ],
        graph.constants,
    )
    versions = [onnx.helper.make_opsetid("", OPERATORS)]
    model = onnx.helper.make_model(found, opset_imports=versions, ir_version=FORMAT, producer_name="jaxbyz")
    onnx.helper.set_model_props(model, {"schema": json_text(schema)})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _convolutions(graph: Graph, x: str, shape: Any, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Add the convolutions of `CNN` and flatten their result, channels first."""
    x = graph.add("Transpose", graph.add("Reshape", x, np.array([-1, *shape])), perm=[0, 3, 1, 2])
    size, stride = options["kernel"], options["stride"]
    for layer in range(len(options["channels"])):
        kernel, bias = _layer(arrays, f"Convolution_{layer}")
        weights = kernel.reshape(len(kernel), size, size, -1).transpose(0, 3, 1, 2)
        x = graph.activation(options["activation"], graph.add("Conv", x, weights, bias, strides=[stride, stride]))
    return graph.add("Flatten", x)


def _gated_recurrent_unit(graph: Graph, x: str, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Add one step of `RecurrentNetwork`; ONNX has the gates in the order z, r, n."""
    H, before, gates = options["hidden"][-1], len(options["hidden"]) - 1, _part(arrays, "params/GRU_0/")
    for layer in range(before):
        x = graph.add("Gemm", x, *(arrays[f"params/Layer_{layer}/{part}"] for part in ("kernel", "bias")), transB=1)
        x = graph.activation(options["activation"], x)

    def reordered(rows: np.ndarray) -> np.ndarray:
        r, z, n = rows[:H], rows[H : 2 * H], rows[2 * H :]
        return np.concatenate([z, r, n])

    of_x = reordered(gates["Layer_0/bias"])
    of_h = np.concatenate([np.zeros(2 * H, np.float32), gates["bias"]])
    first = np.array([0])
    features = graph.add(
        "GRU", graph.add("Unsqueeze", x, first), reordered(gates["Layer_0/kernel"])[None],
        reordered(gates["recurrent"].T)[None], np.concatenate([of_x, of_h])[None], "",
        graph.add("Unsqueeze", "carry", first), hidden_size=H, linear_before_reset=1,
    )  # fmt: skip
    return graph.add("Squeeze", features, np.array([0, 1]), name="next_carry")


def _part(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Return the arrays whose names start with a prefix, without it."""
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def _perceptron(graph: Graph, x: str, options: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Add the layers of `MLP` and the factor of its outputs."""
    depth = len(options["hidden"])
    for layer in range(depth + 1):
        x = graph.add("Gemm", x, *_layer(arrays, f"Layer_{layer}"), transB=1)
        x = graph.activation(options["activation" if layer < depth else "output_activation"], x)
    return x


def _layer(arrays: dict[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return kernel and bias of the layer of this name, wherever it is in the tree."""
    kernel, bias = ([a for key, a in arrays.items() if key.endswith(f"/{name}/{part}")] for part in ("kernel", "bias"))
    return kernel[0], bias[0]


def _distribution(
    graph: Graph, outputs: str, environment: Environment, options: dict[str, Any], arrays: dict[str, np.ndarray]
) -> int:
    """Add `distribution` and `actions`, as `categorical` and `gaussian` define them; return the size P."""
    actions, scale = environment.actions, np.float32(options["output_scale"])
    if actions.discrete:
        graph.add("LogSoftmax", graph.add("Mul", outputs, scale), name="distribution", axis=1)
        graph.add("ArgMax", "distribution", name="actions", axis=1, keepdims=0)
        return actions.n
    n = actions.n
    centre, half_width = (np.asarray(each, np.float32)[None] for each in range_of(actions))
    start = np.log(np.float32(options["initial_std"]) * half_width)
    if options["deviation"] == "state":
        heads = [graph.add("Slice", outputs, np.array([i]), np.array([i + n]), np.array([1])) for i in (0, n)]
        mean_output, log_std = heads[0], graph.add("Add", heads[1], start)
    else:
        (stored,) = (values for name, values in arrays.items() if name.endswith("log_std"))
        zeros = graph.add("Mul", outputs, np.float32(0))
        mean_output, log_std = outputs, graph.add("Add", zeros, stored[None])
    mean = graph.add("Add", graph.add("Mul", mean_output, half_width * scale), centre)
    graph.add("Concat", mean, log_std, name="distribution", axis=1)
    low, high = (
        np.broadcast_to(np.asarray(bound, np.float32), actions.shape).reshape(1, n)
        for bound in (actions.low, actions.high)
    )
    clipped = graph.add("Min", graph.add("Max", mean, low), high)
    graph.add("Reshape", clipped, np.array([-1, *actions.shape]), name="actions")
    return 2 * n
