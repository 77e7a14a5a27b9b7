"""Imports that are deferred until a module is first used.

gymnax imports seaborn and matplotlib's pyplot, and with them scipy and pandas, for pictures that few of its users draw.
Without deferring, that is half of the time that a command takes to start.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class DeferredModule(ModuleType):
    """A placeholder that imports the module of its name when an attribute is read."""

    def __getattr__(self, name: str) -> Any:
        asked_by_import_system = name.startswith("__") and sys.modules.get(self.__name__) in (None, self)
        if asked_by_import_system:
            raise AttributeError(name)
        _remove(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def deferred_imports(*names: str) -> Iterator[None]:
    """Make `import name` inside the context return a placeholder, unless the module is loaded already."""
    placeholders = [DeferredModule(name) for name in names if name not in sys.modules]
    sys.modules.update({module.__name__: module for module in placeholders})
    for module in placeholders:  # `import a.b as c` and `from a import b` read the attribute b of a
        parent, _, child = module.__name__.rpartition(".")
        if isinstance(sys.modules.get(parent), DeferredModule):
            setattr(sys.modules[parent], child, module)
    try:
        yield
    finally:
        for module in placeholders:
            _remove(module)


def _remove(module: DeferredModule) -> None:
    """Remove a placeholder from `sys.modules`, so that later imports of its name load the real module."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
