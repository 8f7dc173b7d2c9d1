"""Whether an API server answers at all; who waits for one that was away is woken (rule W19).

The pauses after failures grow to half a minute, and each resource has its own; alone they would
let a cluster that was away be in step only that much after its return. So while somebody waits
because the server did not answer, the server is asked for its readiness every few seconds, by one
request for the whole cluster, and when it answers again all go on, each a moment after the other.
Their pauses go on growing, and end by themselves where the server answers this but not them.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final, NoReturn, TypeVar

import structlog

from fleetbus.cancellation import ended
from fleetbus.errors import (
    ConfigError,
    FleetbusError,
    KubeError,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from fleetbus.kube.backoff import Backoff, BackoffPolicy
from fleetbus.kube.client import KubeClient

log = structlog.get_logger()

T = TypeVar("T")

PROBES_AT_ONCE: Final = 64
"""Of one process: a network that is lost takes all clusters away, and none may wait for long."""
_PATH: Final = "/readyz"
_LOOKS: Final = BackoffPolicy(first=timedelta(seconds=1), cap=timedelta(seconds=2.5))
"""Between two probes, 5 s at most with their jitter."""
_RESTS: Final = BackoffPolicy(first=timedelta(seconds=1), cap=timedelta(seconds=8))
"""After everybody was woken: a server that comes and goes is not rushed upon each time."""
_ANSWERS_WITHIN: Final = timedelta(seconds=3)
_BACK_FOR: Final = timedelta(minutes=1)
"""So long after a probe in vain a server that answers counts as one that came back: the first who
ask it then may still fail."""
_SPREAD: Final = timedelta(seconds=1)


class Reach:
    """Whether the API server of one cluster answers.

    Args:
        client: the API server.
        cluster: its name, for the log.
        turns: how many probes the process may have under way, for all its clusters.
    """

    def __init__(self, client: KubeClient, cluster: str, turns: asyncio.Semaphore) -> None:
        self._client = client
        self._turns = turns
        self._log = log.bind(cluster=cluster)
        self._rests = Backoff(_RESTS)
        # How many want to know, now: without them nobody is asked.
        self._waiting = 0
        # Set when one of them got no answer, and no probe has begun since.
        self._doubt = asyncio.Event()
        # Set, and replaced, when the server is back: everybody waits for that of his time.
        self._returned = asyncio.Event()
        self._vain_at = float("-inf")

    async def pause(self, error: FleetbusError, delay: timedelta) -> None:
        """Wait after a failure; no longer than until a server that did not answer is back.

        Never shorter than the server itself wants (`Retry-After`).
        """
        if not _is_silence(error):
            await asyncio.sleep(delay.total_seconds())
            return
        self._doubt.set()
        returned = self._returned
        wished = error.retry_after if isinstance(error, KubeError) else timedelta()
        with self._waits(), suppress(TimeoutError):
            async with asyncio.timeout(delay.total_seconds()):
                await asyncio.sleep(wished.total_seconds())
                await returned.wait()
                spread = random.random() * _SPREAD.total_seconds()  # noqa: S311 -- spreads load
                await asyncio.sleep(spread)

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """The server's answer; asked once more when it is back, for what was asked before may hang.

        Raises:
            KubeError: what the question raises.
        """
        while True:
            with self._waits():
                asked = asyncio.ensure_future(question())
                returned = asyncio.ensure_future(self._returned.wait())
                try:
                    await asyncio.wait([asked, returned], return_when=asyncio.FIRST_COMPLETED)
                    if asked.done():
                        return asked.result()
                finally:
                    returned.cancel()  # at once: a second stop may cut off the wait for the other
                    await ended(asked)
                    await ended(returned)

    @contextmanager
    def _waits(self) -> Generator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    # --- probes -------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Ask as long as somebody waits who got no answer; until cancelled."""
        while True:
            await self._doubt.wait()
            if await self._answers() and self._is_back():
                self._wake()
                await asyncio.sleep(self._rests.delay().total_seconds())

    async def _answers(self) -> bool:
        """Ask until there is an answer; False if nobody waits for it any more."""
        looks = Backoff(_LOOKS)
        silence: KubeError | None = None
        while True:
            await asyncio.sleep(looks.delay(silence).total_seconds())
            self._doubt.clear()
            if not self._waiting:
                return False
            before, silence = silence, await self._probe()
            if silence is None:
                return True
            self._vain_at = asyncio.get_running_loop().time()
            if before is None:
                self._log.warning("api_server_is_away", error=str(silence))

    async def _probe(self) -> KubeError | None:
        """None for an answer, of whatever kind; else what there is in its place.

        A refusal of the request itself (4xx) is an answer: not everyone serves it, or serves us.
        """
        try:
            async with self._turns:
                await self._client.request("GET", _PATH, within=_ANSWERS_WITHIN)
        except (Unreachable, ServerError, TooManyRequests) as e:
            return e
        except (KubeError, ConfigError):
            return None
        return None

    def _is_back(self) -> bool:
        return asyncio.get_running_loop().time() - self._vain_at < _BACK_FOR.total_seconds()

    def _wake(self) -> None:
        self._log.info("api_server_is_back", waiting=self._waiting)
        self._returned.set()
        self._returned = asyncio.Event()


class ReachingBackoff(Backoff):
    """Pauses that end early when a server is back that was away.

    Args:
        policy: the growth of the delays.
        reach: of the server.
    """

    def __init__(self, policy: BackoffPolicy, reach: Reach) -> None:
        super().__init__(policy)
        self._reach = reach

    async def pause(self, error: FleetbusError) -> None:
        """Wait after this failure."""
        await self._reach.pause(error, self.delay(error))


def _is_silence(error: FleetbusError) -> bool:
    """Whether perhaps nobody is there: no answer, one that broke off, or a proxy's."""
    return isinstance(error, Unreachable | ServerError)
