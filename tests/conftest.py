"""Settings of all tests: strict numerics, two host devices so that sharding is real, and quick compilation."""

import gc
import os
import tempfile

import helpers
import jax
import pytest

from jaxbyz.accelerate.fast_compilation import FAST_COMPILATION_FLAGS
from jaxbyz.accelerate.setup import set_flags

# Without these flags, most of the test time would be spent on optimising programs that run once.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FAST_COMPILATION_FLAGS}"
set_flags()  # as the command line does, so that all tests spread agents alike
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_numpy_rank_promotion", "raise")

# Traced programs are many objects that live on. Python would look through all of them again and again.
gc.set_threshold(100_000, 50, 100)

# Programs that several tests share are compiled once per test run, whichever worker needs them first. Set
# JAXBYZ_TEST_CACHE to a folder to keep them for the next test run as well.
_run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
_cache = os.environ.get("JAXBYZ_TEST_CACHE") or (
    os.path.join(tempfile.gettempdir(), f"jaxbyz-tests-{_run}") if _run else tempfile.mkdtemp(prefix="jaxbyz-tests-")
)
jax.config.update("jax_compilation_cache_dir", _cache)
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def pytest_runtest_setup(item):
    """Let processes end before `--timeout` ends the test, which says nothing about them."""
    limit = item.config.getoption("timeout", None)
    if limit:
        helpers.longest_seconds = 0.8 * limit


@pytest.fixture(autouse=True)
def no_process_is_left():
    """Processes that a test started end with it, also if it fails."""
    yield
    helpers.end_processes()


@pytest.fixture
def registries_restored():
    """Rules, attacks, environments and policies that a test registers are forgotten after it."""
    from jaxbyz.attacks import attacks
    from jaxbyz.environments import environments
    from jaxbyz.policies import policies
    from jaxbyz.rules import aggregators

    before = [(registry, dict(registry._entries)) for registry in (aggregators, attacks, environments, policies)]
    yield
    for registry, entries in before:
        registry._entries.clear()
        registry._entries.update(entries)
