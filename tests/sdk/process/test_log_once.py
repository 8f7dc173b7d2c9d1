"""A persistent failure is logged when it begins, and repeated while it lasts."""

from __future__ import annotations

from fleetbus.process.log_once import REPEAT_AFTER, LogOnce


def test_a_failure_is_logged_at_first_after_a_while_and_after_a_recovery() -> None:
    now = [0.0]
    log_once = LogOnce(clock=lambda: now[0])
    assert log_once.should_log("away")
    assert not log_once.should_log("away")
    assert log_once.should_log("full"), "another failure"
    assert log_once.should_log("full", "elsewhere"), "another place"
    now[0] = REPEAT_AFTER.total_seconds() - 1
    assert not log_once.should_log("full")
    now[0] = REPEAT_AFTER.total_seconds()
    assert log_once.should_log("full")
    log_once.reset()
    assert log_once.should_log("full")
    log_once.reset("never seen")
