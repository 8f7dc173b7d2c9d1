"""Up to where a consumer is, if its server lags behind the stream's leader (rules B17, B19)."""

from __future__ import annotations

from typing import Any

from fleetbus.snapshot.offsets.stream_end import StreamEnd


def stream(last: int, *, lag: int = 0, created: str = "today") -> dict[str, Any]:
    replica = {"name": "n2", "current": not lag, "lag": lag}
    cluster = {"leader": "n1", "replicas": [replica]}
    return {"created": created, "state": {"last_seq": last}, "cluster": cluster}


def consumer(leader: str, *, floor: int = 5, pending: int = 0) -> dict[str, Any]:
    return {
        "ack_floor": {"stream_seq": floor},
        "num_pending": pending,
        "num_ack_pending": 0,
        "cluster": {"leader": leader},
    }


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_b17_a_single_server_knows_the_end_of_its_stream():
    end = StreamEnd()
    info = {"created": "today", "state": {"last_seq": 9}, "cluster": {"leader": "NABFUK"}}
    idle = {"ack_floor": {"stream_seq": 5}, "num_pending": 0, "num_ack_pending": 0}
    assert end.low_water(info, idle) == 9
    assert end.low_water(info, idle | {"num_pending": 1}) == 5


def test_b19_the_leader_of_the_stream_knows_its_end():
    assert StreamEnd().low_water(stream(9, lag=3), consumer("n1")) == 9


def test_b19_another_server_counts_as_at_the_end_of_a_second_ago_once_it_has_everything():
    clock = Clock()
    end = StreamEnd(clock=clock)
    assert end.low_water(stream(9), consumer("n2")) == 5  # nothing older is known
    clock.now = 0.9
    assert end.low_water(stream(20), consumer("n2")) == 5
    clock.now = 1.0
    assert end.low_water(stream(30), consumer("n2")) == 9
    assert end.low_water(stream(40), consumer("n2", floor=12)) == 12
    clock.now = 2.0
    assert end.low_water(stream(50), consumer("n2")) == 30
    assert end.low_water(stream(50), consumer("n2", pending=1)) == 5


def test_b19_a_server_that_lags_or_is_no_replica_proves_nothing():
    clock = Clock()
    end = StreamEnd(clock=clock)
    end.low_water(stream(9), consumer("n2"))
    clock.now = 1.0
    assert end.low_water(stream(30, lag=1), consumer("n2")) == 5
    assert end.low_water(stream(30), consumer("n3")) == 5


def test_b19_the_end_of_another_stream_proves_nothing():
    clock = Clock()
    end = StreamEnd(clock=clock)
    end.low_water(stream(900, created="yesterday"), consumer("n2"))
    clock.now = 1.0
    assert end.low_water(stream(9), consumer("n2")) == 5
