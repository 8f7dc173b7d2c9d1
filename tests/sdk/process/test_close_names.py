"""The name that somebody meant: found at once, whatever the names are."""

from __future__ import annotations

import random
import time
from difflib import get_close_matches

from fleetbus.process.close_names import close_names
from support.rows import each_row

TYPES = "deployments daemonsets statefulsets replicasets services secrets pods nodes".split()  # noqa: SIM905


@each_row("name", ["deploymnets", "daemonset", "podz", "srvices", "xyz", ""])
def test_the_closest_name_is_that_of_difflib(name: str):
    assert close_names(name, TYPES) == get_close_matches(name, TYPES, n=1)


@each_row("letters", ["a", "ab", "abcdefgh"])
@each_row("length", [63, 199, 253, 100_000])
def test_a8_long_names_of_few_letters_take_no_time(letters: str, length: int):
    """A member may define types, and a user ask for one, whose comparison took 13 seconds."""
    chance = random.Random(length)

    def name() -> str:
        return "".join(chance.choices(letters, k=length))

    names, query = [name() for _ in range(20)] * 500, name()
    began = time.process_time()
    close_names(query, names)
    assert time.process_time() - began < 1
