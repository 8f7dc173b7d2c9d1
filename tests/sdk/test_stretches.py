"""A trouble that lasts is told at its beginning, and again while it lasts."""

from __future__ import annotations

from fleetbus.process.log_once import AGAIN_AFTER, Stretches


def test_a_trouble_is_news_at_first_after_a_while_and_after_it_was_over() -> None:
    now = [0.0]
    stretches = Stretches(clock=lambda: now[0])
    assert stretches.is_news("away")
    assert not stretches.is_news("away")
    assert stretches.is_news("full"), "another trouble"
    assert stretches.is_news("full", "elsewhere"), "another place"
    now[0] = AGAIN_AFTER.total_seconds() - 1
    assert not stretches.is_news("full")
    now[0] = AGAIN_AFTER.total_seconds()
    assert stretches.is_news("full")
    stretches.is_over()
    assert stretches.is_news("full")
    stretches.is_over("never seen")
