"""Whether an API server answers at all; who waits for one that was away is woken (W11, W19).

Anything that an API server sends proves that it lives: a byte of any watch, any answer. One that
has sent nothing for 10 s is asked for its readiness, by one request for the whole cluster. Two of
these without an answer and it counts as not connected: every connection is closed, because nobody
knows whether they still lead anywhere, and the watches are opened anew when it answers again.

The pauses after failures grow to half a minute, and each resource has its own; alone they would
let a cluster that was away be in step only that much after its return. So the server is asked every
few seconds while somebody waits because it did not answer, too, and when it answers again all go
on, each a moment after the other. Their pauses go on growing, and end by themselves where the
server answers this but not them.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn, TypeVar

import structlog

from fleetbus.errors import (
    ConfigError,
    FleetbusError,
    KubeError,
    NotFound,
    ServerError,
    TooManyRequests,
    Unreachable,
)
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.backoff import BackoffPolicy, RequestBackoff
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.process.clock import rfc3339
from fleetbus_watcher import metrics

log = structlog.get_logger()

T = TypeVar("T")

_PATH: Final = "/readyz"
_QUIET: Final = timedelta(seconds=10)
"""An API server that has sent nothing for so long is asked whether it is there."""
_LOOKS: Final = BackoffPolicy(first=timedelta(seconds=1), cap=timedelta(seconds=1.5))
"""Between two probes while there is a doubt: 3 s at most with their jitter."""
_RESTS: Final = BackoffPolicy(first=timedelta(seconds=1), cap=timedelta(seconds=4))
"""After everybody was woken: a server that comes and goes is not rushed upon each time."""
_ANSWERS_WITHIN: Final = timedelta(seconds=4)
_MOMENT: Final = 0.01
_UNANSWERED: Final = 2
"""So many probes in a row without an answer, and the server counts as not connected."""
_BACK_FOR: Final = timedelta(minutes=1)
"""So long after a probe in vain a server that answers counts as one that came back: the first who
ask it then may still fail."""
_SPREAD: Final = timedelta(seconds=1)
_FAILED_CHECK: Final = re.compile(r"^\[-\](\S+)", re.MULTILINE)
"""A line of what `/readyz` answers when it is not ready."""


class Reach:
    """Whether the API server of one cluster answers.

    Args:
        client: the API server.
        cluster: its name, for the log.
        changed: called when `problem` or `remark` has changed.

    Attributes:
        problem: why the API server counts as not connected; empty while it answers.
        remark: reason and message while it answers that it is not ready, or refuses to say; empty
            while it is ready.
    """

    def __init__(self, client: KubeClient, cluster: str, changed: Callable[[], None]) -> None:
        self._client = client
        self._log = log.bind(cluster=cluster)
        self._changed = changed
        self._rests = RequestBackoff(_RESTS)
        # How many want to know, now.
        self._waiting = 0
        # Set when one of them got no answer, and no probe has begun since.
        self._doubt = asyncio.Event()
        # Set, and replaced, when the server is back: everybody waits for that of his time.
        self._returned = asyncio.Event()
        self._vain_at = float("-inf")
        self._asked_at = time.monotonic()
        # How many want it asked when it is quiet.
        self._guards = 0
        # Probes in a row without an answer.
        self._unanswered = 0
        self.problem = ""
        self.remark = ("", "")
        metrics.follow_answers(cluster, lambda: self.answer_age)

    @property
    def last_answer(self) -> str:
        """When the API server last sent anything (RFC 3339); empty for never."""
        if self.answer_age == float("inf"):
            return ""
        return rfc3339(datetime.now(UTC) - timedelta(seconds=self.answer_age))

    @property
    def answer_age(self) -> float:
        """Seconds since the API server last sent anything; infinite if it never did."""
        return time.monotonic() - self._client.liveness.answered_at

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
                    await cancel_and_wait(asked)
                    await cancel_and_wait(returned)

    @contextmanager
    def _waits(self) -> Generator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @contextmanager
    def guarding(self) -> Generator[None]:
        """Ask a server that has become quiet, as long as it is watched (W11)."""
        self._guards += 1
        try:
            yield
        finally:
            self._guards -= 1

    # --- probes -------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Ask while there is a doubt, until cancelled."""
        while True:
            await self._doubted()
            if await self._answers() and self._is_back():
                self._wake()
                await asyncio.sleep(self._rests.delay().total_seconds())

    async def _doubted(self) -> None:
        """Wait until somebody got no answer, or the server is quiet."""
        while not self._is_quiet():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._quiet_in(), _MOMENT)):
                    await self._doubt.wait()
                    return

    def _is_quiet(self) -> bool:
        return self._guards > 0 and (self._unanswered > 0 or self._quiet_in() <= 0)

    def _quiet_in(self) -> float:
        """Seconds until the server counts as quiet; without a watch nobody minds."""
        seconds = _QUIET.total_seconds()
        heard_at = max(self._client.liveness.answered_at, self._asked_at)
        return heard_at + seconds - time.monotonic() if self._guards else seconds

    async def _answers(self) -> bool:
        """Ask until all who wait may go on; False if nobody minds any more."""
        looks = RequestBackoff(_LOOKS)
        error: FleetbusError | None = None
        while True:
            await asyncio.sleep(looks.delay(error).total_seconds())
            self._doubt.clear()
            if not (self._waiting or self._is_quiet()):
                return False
            error = await self._look()
            if error is None:
                return True
            self._vain_at = time.monotonic()

    async def _look(self) -> FleetbusError | None:
        """Ask once; why those who wait should not go on, or None."""
        self._asked_at = time.monotonic()
        error = await self._probe()
        if self._client.liveness.answered_at >= self._asked_at:
            self._tell("", _remark(error) if _says_how_ready(error) else self.remark)
            self._unanswered = 0
            return error if isinstance(error, ServerError | TooManyRequests) else None
        self._unanswered += 1
        if self._unanswered == _UNANSWERED:
            self._log.warning("api_server_is_away", error=str(error))
            await self._client.close_connections()
            self._tell(str(error), ("", ""))
        return error

    async def _probe(self) -> FleetbusError | None:
        """None for an answer that it is ready; else what there is in its place."""
        try:
            await self._client.request("GET", _PATH, within=_ANSWERS_WITHIN)
        except (KubeError, ConfigError) as e:
            return e
        return None

    def _tell(self, problem: str, remark: tuple[str, str]) -> None:
        if (self.problem, self.remark) != (problem, remark):
            self.problem, self.remark = problem, remark
            self._changed()

    def _is_back(self) -> bool:
        return time.monotonic() - self._vain_at < _BACK_FOR.total_seconds()

    def _wake(self) -> None:
        self._log.info("api_server_is_back", waiting=self._waiting)
        self._returned.set()
        self._returned = asyncio.Event()


class ReachingBackoff(RequestBackoff):
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


def _says_how_ready(error: FleetbusError | None) -> bool:
    """Whether an answer tells something: not one that was too busy, or does not serve this."""
    return not isinstance(error, TooManyRequests | NotFound)


def _remark(error: FleetbusError | None) -> tuple[str, str]:
    """What a condition says of a server that answers, but not that it is ready."""
    if not isinstance(error, KubeError):
        return ("", "")
    if not isinstance(error, ServerError):
        return (error.reason or f"Status{error.status}", f"{_PATH}: {error}")
    failed = ", ".join(_FAILED_CHECK.findall(error.message))
    return ("NotReady", f"{_PATH}: failed: {failed}" if failed else f"{_PATH}: {error}")
