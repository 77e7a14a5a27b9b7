"""Modules that are loaded when they are first used.

gymnax imports seaborn and matplotlib's pyplot, and with them scipy and pandas, for pictures that few of its users draw:
half of the time a command takes to start.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


class Later(ModuleType):
    """Stands for a module of its name until somebody looks into it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and sys.modules.get(self.__name__) in (None, self):  # the import system asks
            raise AttributeError(name)
        _leave(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def loaded_later(*names: str) -> Iterator[None]:
    """Within, `import name` gives a stand-in; what is loaded already stays as it is."""
    stand_ins = [Later(name) for name in names if name not in sys.modules]
    sys.modules.update({module.__name__: module for module in stand_ins})
    try:
        yield
    finally:
        for module in stand_ins:
            _leave(module)


def _leave(module: Later) -> None:
    """Give its place back: who imports the name from now on gets the module itself."""
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
