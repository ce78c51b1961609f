"""Every target on what is kept of it, and on inputs of hypothesis. `make fuzz` searches for longer."""

import logging
from random import Random

import harness
import pytest

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

TARGETS = harness.targets()


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_all_targets_are_found():
    assert {"codec", "handshake", "registry", "store", "hub", "inference", "descriptors"} <= set(TARGETS)
    assert {"recipe", "weights", "checkpoint"} <= set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once_raises_nothing(name):
    assert harness.replay(harness.load(name), harness.corpus(name)) >= 3


@pytest.mark.parametrize("name", TARGETS)
def test_mutations_of_the_corpus_raise_nothing(name):
    target, random = harness.load(name), Random(7)
    inputs = harness.corpus(name)
    for number in range(300):
        target.fuzz(harness.mutate(inputs[number % len(inputs)], random))


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_raise_nothing(name):
    target = harness.load(name)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(max_size=120))
    def check(data):
        target.fuzz(data)

    check()
