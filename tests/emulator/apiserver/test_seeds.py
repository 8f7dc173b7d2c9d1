"""Names are repeatable by a seed, and other requests do not change them."""

from __future__ import annotations

from emulator.support.kube_calls import CONFIGMAPS, Calls
from fleetbus_emulator.apiserver import Cluster, Hang

NAMELESS = {"metadata": {"generateName": "job-"}}


def names_given(calls: Calls, count: int = 3) -> list[str]:
    return [calls.post(CONFIGMAPS, NAMELESS).meta["name"] for _ in range(count)]


def test_the_same_seed_generates_the_same_names_and_another_others():
    first, again, other = (Calls(Cluster("alpha", seed=seed)) for seed in (7, 7, 8))
    names = names_given(first)
    assert (names_given(again), set(names_given(other)) & set(names)) == (names, set())


def test_clients_that_watch_again_do_not_change_the_names_that_a_seed_gives():
    calm, busy = (Calls(Cluster("alpha", seed=7)) for _ in range(2))
    for _ in range(3):
        busy.cluster.release(busy.watch(CONFIGMAPS))
    assert names_given(busy) == names_given(calm)


def test_rules_with_a_probability_do_not_change_the_names_that_a_seed_gives():
    sound, faulty = (Calls(Cluster("alpha", seed=7)) for _ in range(2))
    rule = faulty.cluster.faults.add(Hang(), probability=0.5)
    for _ in range(20):
        faulty.get(CONFIGMAPS)
    assert 0 < rule.hits < 20
    assert names_given(faulty) == names_given(sound)
