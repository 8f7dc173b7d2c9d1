"""What the log says when a full enqueue could not be done; the next look does it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from fleetbus.errors import BusError
from fleetbus.stretches import Stretches

if TYPE_CHECKING:
    from redis.exceptions import RedisError

    from fleetbus.errors import FleetbusError
    from fleetbus.workqueue.errors import WorkqueueError

log = structlog.get_logger()


class PrimedElsewhere(BusError):
    """Another process of this controller is at it: one does it for all of them (rule P12)."""


class PrimingLog:
    """Tells of each trouble once while it lasts.

    Args:
        controller: the name of the controller.
    """

    def __init__(self, controller: str) -> None:
        self._controller = controller
        self._stretches = Stretches()

    def tell(self, error: RedisError | FleetbusError | WorkqueueError) -> None:
        """It was not done."""
        reason = str(error)
        if not self._stretches.is_news(reason):
            return
        if isinstance(error, PrimedElsewhere):
            log.info("primed_by_another_process", controller=self._controller, reason=reason)
        else:
            log.warning("priming_failed", controller=self._controller, error=reason)

    def is_over(self) -> None:
        """It was done."""
        self._stretches.is_over()
