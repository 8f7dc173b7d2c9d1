"""Tests of how long `dev up` and the demo wait: as long as there is progress."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest

from fleetbus_devfleet.processes.children import Child, ChildError, seconds_of
from fleetbus_devfleet.processes.patience import Patience
from support.rows import each_row


def test_progress_is_waited_for_and_standstill_is_not():
    now = 0.0
    patience = Patience(timedelta(seconds=20), now=lambda: now)
    for second in range(0, 100, 10):
        now = float(second)
        assert not patience.is_over(f"{second} of 100 are there")
    now = 109.0
    assert not patience.is_over("90 of 100 are there")
    now = 111.0
    assert patience.is_over("90 of 100 are there")
    assert patience.waited == "nothing has changed for 21 s, after 111 s in all"


def test_what_changes_without_an_end_is_given_up_in_the_end():
    now = 0.0
    patience = Patience(timedelta(seconds=20), now=lambda: now)
    for second in range(0, 201, 5):
        now = float(second)
        assert not patience.is_over(second)
    now = 201.0
    assert patience.is_over("still another")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc of Linux")
def test_a_child_that_works_is_waited_for_and_one_that_sleeps_is_named(tmp_path: Path):
    began = time.monotonic()
    sleeps = Child("sleeper", ["sleep", "99"], log=tmp_path / "a")
    try:
        with pytest.raises(ChildError, match="sleeper is not ready: nothing has changed for"):
            sleeps.wait_until_blocking(lambda: False, within=timedelta(seconds=0.3))
        assert time.monotonic() - began < 20
        assert sleeps.progress() == 0
    finally:
        sleeps.stop_blocking()
    works = Child("worker", ["sha256sum", "/dev/zero"], log=tmp_path / "b")
    try:
        works.wait_until_blocking(lambda: works.progress() > 0, within=timedelta(seconds=60))
    finally:
        works.stop_blocking()


@each_row(
    ("ticks", "schedule", "seconds"),
    [
        (0.4, "400000000 19700000000 12\n", 20),
        (0.4, "400000000 0 12\n", 0),
        (3, "", 3),
        (3, "0 0 0\n", 3),
    ],
)
def test_a_process_that_gets_no_cpu_makes_progress(ticks: float, schedule: str, seconds: int):
    worked = int(ticks * os.sysconf("SC_CLK_TCK"))
    stat = f"7 (a ) b) S {' '.join(['1'] * 10)} {worked} 0 0 0"
    assert seconds_of(stat, schedule) == seconds
