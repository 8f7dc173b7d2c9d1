"""The type that somebody meant is found at once, whatever names definitions have."""

from __future__ import annotations

import random
import time
from difflib import get_close_matches

import pytest

from fleetbus_emulator.apiserver.close_names import closest_name
from fleetbus_emulator.apiserver.faults.rules import Match
from fleetbus_emulator.apiserver.faults.unserved import unserved_warning

TYPES = "deployments daemonsets statefulsets replicasets services secrets pods nodes".split()  # noqa: SIM905


@pytest.mark.parametrize("cutoff", [0.6, 0.8])
@pytest.mark.parametrize("name", ["deploymnets", "daemonset", "podz", "srvices", "xyz", ""])
def test_the_closest_name_is_that_of_difflib(name: str, cutoff: float):
    closest = get_close_matches(name, TYPES, n=1, cutoff=cutoff)
    assert closest_name(name, TYPES, cutoff=cutoff) == "".join(closest)


@pytest.mark.parametrize("length", [63, 253, 100_000])
def test_long_names_of_few_letters_take_no_time(length: int):
    chance = random.Random(length)
    names = ["".join(chance.choices("ab", k=length)) for _ in range(20)]
    served = {(str(number), name): () for number in range(50) for name in names}
    rule = Match(resource="".join(chance.choices("ab", k=length)))
    began = time.process_time()
    assert "is served" in unserved_warning(rule, served)
    assert time.process_time() - began < 2
