"""Write a learnt policy to one file for other programs: named arrays with a schema, or a compiled function.

| ending | contents | read with |
| --- | --- | --- |
| `.npz` | the arrays, and the schema as the JSON text `schema` | `numpy.load` |
| `.safetensors` | the arrays, and the schema as the metadata `schema` | any safetensors library |
| `.onnx` | the function, for policies `mlp`, `cnn` and `gru` | onnxruntime and others |
| `.jax` | the function `observations [b, …] -> (actions [b, …], distribution [b, P])` | `jax.export.deserialize` |

The functions of a policy with a memory take what it remembers, zeros `[b, …]` at first, as their second argument, and
return it as their third result.
"""

from __future__ import annotations

import inspect
import json
import struct
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxbyz.accelerate.portable import portable_function
from jaxbyz.configuration.config import Config
from jaxbyz.environments.observation_scaling import LARGEST
from jaxbyz.errors import UsageError
from jaxbyz.files import json_text, write_output
from jaxbyz.policies import Policy, default_policy, initial_carry, policies, respond
from jaxbyz.registry import parse_spec
from jaxbyz.trained.acting import TrainedTask, next_action_of, observation_columns, task_of
from jaxbyz.trained.onnx_graph import onnx_model

SCHEMA_VERSION = 1
JSON_TYPES = (str, int, float, tuple, list, type(None))
FORMATS = (".npz", ".safetensors", ".onnx", ".jax")


def write_policy(path: Path, config: Config, theta: np.ndarray) -> Path:
    """Write the policy with these parameters `[D]` to a file whose ending is one of the table of this module.

    Raises:
        UsageError: if the ending is unknown, or the file cannot be written.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"out={path}: the name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
    task = task_of(config)
    if path.suffix == ".jax":
        function = _portable_policy(task, theta)
        write_output(path, lambda file: file.write(function))
        return path
    if config.traits.in_groups:
        raise UsageError(
            f"out={path}: an ensemble is not one network; write it as a function, to a name that ends in .jax"
        )
    arrays = named_arrays(task.policy.unravel(jnp.asarray(theta)))
    description = describe(config, task)
    schema = json_text(description)
    if path.suffix == ".onnx":
        model = onnx_model(task.environment, description, arrays)
        write_output(path, lambda file: file.write(model))
    elif path.suffix == ".npz":
        members: dict[str, Any] = {**arrays, "schema": np.array(schema)}
        write_output(path, lambda file: np.savez_compressed(file, **members))
    else:
        write_output(path, lambda file: file.write(_safetensors(arrays, {"schema": schema})))
    return path


def describe(config: Config, task: TrainedTask) -> dict[str, Any]:
    """Return the schema: what another program must know to use the arrays, as JSON values."""
    environment, actions = task.environment, task.environment.actions
    spec = config.policy or default_policy(environment)
    name, given = parse_spec(spec)
    given = policies[name].convert_options(given, ("environment",))
    signature = inspect.signature(policies[name].factory).parameters
    own = {key: value.default for key, value in signature.items() if value.default is not value.empty}
    chosen = {**own, **{key: value for key, value in config.network_options.items() if key in signature}, **given}
    options = {key: value if isinstance(value, JSON_TYPES) else str(value) for key, value in chosen.items()}
    space: dict[str, Any] = {"discrete": actions.discrete, "n": actions.n}
    if not actions.discrete:
        low, high = (np.asarray(bound).tolist() for bound in (actions.low, actions.high))
        space |= {"shape": list(actions.shape), "low": low, "high": high}
    scales = {}
    if environment.scales is not None:
        mean, deviation = (np.asarray(scale).tolist() for scale in environment.scales)
        scales = {"mean": mean, "deviation": deviation, "largest": LARGEST}
    return {
        "format": "jaxbyz policy",
        "version": SCHEMA_VERSION,
        "environment": config.env,
        "env_param": config.env_param,
        "policy": name,
        "spec": spec,
        "options": options,
        "observation_shape": list(environment.observation_shape),
        "observation_scales": scales,
        "actions": space,
    }


def carry_shapes(policy: Policy) -> Any:
    """Return shapes and types of what a policy remembers of one episode."""
    rows = jax.eval_shape(lambda: initial_carry(policy, 1))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), rows)


def named_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Return the leaves of a tree of parameters by their path, such as `params/Layer_0/kernel`."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {"/".join(str(getattr(key, "key", key)) for key in path): np.asarray(leaf) for path, leaf in leaves}


def _portable_policy(task: TrainedTask, theta: np.ndarray) -> bytes:
    """Return the policy as a serialised function for any batch size and platform."""
    environment, policy, parameters = task.environment, task.policy, jnp.asarray(theta)

    def function(observations: Any, carry: Any) -> tuple[Any, Any, Any]:
        columns, _ = observation_columns(environment, observations)
        _, distribution = respond(policy, policy.unravel(parameters), carry, columns)
        carry, actions = next_action_of(environment, policy, parameters, carry, observations)
        return actions, distribution.T, carry

    observation = jax.ShapeDtypeStruct(environment.observation_shape, jnp.float32)
    if policy.recurrence is None:
        return portable_function(lambda observations: function(observations, ())[:2], observation)
    return portable_function(function, observation, carry_shapes(policy))


def _safetensors(arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> bytes:
    """Return float32 arrays in the safetensors format.

    The format: the length of the header as a little-endian 64-bit number, the header as JSON with type, shape and byte
    range of every array, padded with spaces to a multiple of eight bytes, then the bytes of all arrays.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    body = b""
    for name, values in arrays.items():
        data = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body
