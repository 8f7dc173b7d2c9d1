"""Notifies waiting takers of new items: one pub/sub connection per queue and process.

A message is only a hint and may be lost, so every wait is bounded by POLL. The connection reads
with a timeout of its own: the client's `socket_timeout` is meant for commands and would end it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import structlog
from redis.exceptions import RedisError

from fleetbus.process.cancellation import cancellable
from fleetbus.process.log_once import LogOnce

if TYPE_CHECKING:
    from redis.asyncio import Redis

POLL: Final = 1.0
"""Longest wait in seconds without a notification: what a lost one can cost."""
_log = structlog.get_logger(__name__)


class Signal:
    """Wakes everybody who waits.

    A waiter passes the `count` it read before its last attempt, so a notification between that
    attempt and the wait is not missed.
    """

    def __init__(self) -> None:
        self.count = 0
        self._waiting: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Wake everybody who waits now."""
        self.count += 1
        for woken in self._waiting:
            wake(woken)

    async def wait(
        self, last_count: int, seconds: float, woken: asyncio.Future[None] | None = None
    ) -> None:
        """Return at the first notification after `last_count`, or after so many seconds.

        Args:
            last_count: the count when the caller last looked.
            seconds: the longest wait.
            woken: also ends the wait once it is done.
        """
        if self.count != last_count:
            return
        loop = asyncio.get_running_loop()
        woken = woken or loop.create_future()
        timer = loop.call_later(seconds, wake, woken)
        self._waiting.add(woken)
        try:
            await woken
        finally:
            self._waiting.discard(woken)
            timer.cancel()


def wake(waiting: asyncio.Future[None]) -> None:
    """End a wait, if it has not ended."""
    if not waiting.done():
        waiting.set_result(None)


class Subscription:
    """Notifies the signal for each message on a channel, from `start` until `aclose`."""

    def __init__(self, redis: Redis, channel: str) -> None:
        self.signal = Signal()
        self._redis = redis
        self._channel = channel
        self._task: asyncio.Task[None] | None = None
        self._log_once = LogOnce()

    def start(self) -> None:
        """Begin to listen, if it has not."""
        if self._task is None:
            self._task = asyncio.create_task(self._listen(), name=f"notify {self._channel}")

    async def aclose(self) -> None:
        """Stop listening, and wake everybody."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        self.signal.notify()

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except (RedisError, OSError) as error:
                # Takers go on polling; the next subscription notifies them, so nothing is missed.
                if self._log_once.should_log(str(error)):
                    _log.warning("queue_subscription_lost", channel=self._channel, error=str(error))
                await asyncio.sleep(POLL)

    async def _listen_once(self) -> None:
        async with self._redis.pubsub() as subscription:
            with cancellable():
                await subscription.subscribe(self._channel)
            while True:
                with cancellable():
                    has_message = await subscription.get_message(timeout=30) is not None
                # The confirmation of the subscription notifies too: what came before it is unknown.
                if has_message:
                    self.signal.notify()
