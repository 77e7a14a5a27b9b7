"""Tasks that show a part of their observations, so that a policy needs a memory."""

from __future__ import annotations

from typing import Any

from jaxtyping import Array

from jaxbyz.environments.gymnax_adapter import make_by_name


class PartialView:
    """A gymnax environment with flat observations of which only some entries are shown.

    Args:
        name: the name of the task.
        whole: the name of the task that shows everything.
        shown: the entries that are shown.
    """

    def __init__(self, name: str, whole: str, shown: tuple[int, ...]) -> None:
        self.name, self._raw, self._shown = name, make_by_name(whole), list(shown)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not while a copy is made
            raise AttributeError(name)
        return getattr(self._raw, name)

    def reset_env(self, *arguments: Any) -> tuple[Array, Any]:
        observation, state = self._raw.reset_env(*arguments)
        return observation[self._shown,], state

    def step_env(self, *arguments: Any) -> tuple[Any, ...]:
        observation, *others = self._raw.step_env(*arguments)
        return (observation[self._shown,], *others)
