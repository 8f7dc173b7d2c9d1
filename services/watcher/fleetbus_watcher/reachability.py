"""Whether an API server answers at all; wakes the callers that wait for its return (W11, W19).

Anything that an API server sends proves that it is alive: a byte of any watch, any answer. One
that has sent nothing for 10 s is probed at its readiness endpoint, with one request for the whole
cluster. After two probes without an answer it counts as not connected: every connection is closed,
because it is unknown whether it still leads anywhere, and the watches are opened again when the
server answers.

The pauses after failures grow to half a minute, and each resource has its own; on their own they
would delay a cluster's recovery by that much. So while a caller waits because the server did not
answer, the server is probed every few seconds, and once it answers all callers continue, spread
over a moment. Their pauses keep growing, so they still end by themselves where the server answers
the probe but not them.
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
from fleetbus.kube.connection.backoff import ApiBackoff, BackoffPolicy
from fleetbus.kube.requests import Call
from fleetbus.process.cancellation import cancel_and_wait
from fleetbus.process.clock import rfc3339
from fleetbus_watcher import metrics
from fleetbus_watcher.timing import USUAL, WatcherTiming

log = structlog.get_logger()

T = TypeVar("T")

_PATH: Final = "/readyz"
_WAKEUPS: Final = BackoffPolicy(first=timedelta(seconds=1), cap=timedelta(seconds=4))
"""After all callers were woken: a server that comes and goes is not overrun each time."""
_MOMENT: Final = 0.01
_UNANSWERED: Final = 2
"""After so many probes in a row without an answer the server counts as not connected."""
_BACK_FOR: Final = timedelta(minutes=1)
"""A server that answers counts as returned for so long after a failed probe: the first requests to
it may still fail."""
_FAILED_CHECK: Final = re.compile(r"^\[-\](\S+)", re.MULTILINE)
"""A line in the answer of `/readyz` when the server is not ready."""


class Reachability:
    """Whether the API server of one cluster answers.

    Args:
        client: the API server.
        cluster: its name, for the log.
        changed: set when `problem` or `remark` has changed.
        timing: when the server is probed.

    Attributes:
        problem: why the API server counts as not connected; empty while it answers.
        remark: reason and message while it answers that it is not ready, or refuses to say; empty
            while it is ready.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: str,
        changed: asyncio.Event,
        timing: WatcherTiming = USUAL,
    ) -> None:
        self._client = client
        self._timing = timing
        self._log = log.bind(cluster=cluster)
        self._changed = changed
        self._wakeups = ApiBackoff(_WAKEUPS)
        # How many callers wait for the server now.
        self._waiting = 0
        # Set when one of them got no answer, and no probe has begun since.
        self._doubt = asyncio.Event()
        # Set, and replaced, when the server is back: a caller waits for the one of its time.
        self._returned = asyncio.Event()
        self._failed_at = float("-inf")
        self._probed_at = time.monotonic()
        # How many want the server probed when it is quiet.
        self._guards = 0
        # Probes in a row without an answer.
        self._unanswered = 0
        self.problem = ""
        self.remark = ("", "")
        metrics.show_answer_age(cluster, lambda: self.answer_age)

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

        Never shorter than the server itself asks for (`Retry-After`).
        """
        if not _is_silence(error):
            await asyncio.sleep(delay.total_seconds())
            return
        self._doubt.set()
        returned = self._returned
        retry_after = error.retry_after if isinstance(error, KubeError) else timedelta()
        with self._counted(), suppress(TimeoutError):
            async with asyncio.timeout(delay.total_seconds()):
                await asyncio.sleep(retry_after.total_seconds())
                await returned.wait()
                spread = self._timing.return_spread.total_seconds()
                await asyncio.sleep(random.random() * spread)  # noqa: S311 -- spreads load

    async def retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a request; repeats it when the server is back, as it may hang.

        Raises:
            KubeError: what the request raises.
        """
        while True:
            with self._counted():
                sent = asyncio.ensure_future(request())
                if await self._is_answered(sent):
                    return sent.result()

    async def _is_answered(self, sent: asyncio.Task[T]) -> bool:
        """Wait for an answer, or until the server is back; the request does not outlive that."""
        returned = asyncio.ensure_future(self._returned.wait())
        try:
            await asyncio.wait([sent, returned], return_when=asyncio.FIRST_COMPLETED)
            return sent.done()
        finally:
            returned.cancel()  # at once: a second stop may cut off the wait for the other
            await cancel_and_wait(sent)
            await cancel_and_wait(returned)

    @contextmanager
    def _counted(self) -> Generator[None]:
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @contextmanager
    def guarding(self) -> Generator[None]:
        """Probe a server that has become quiet, as long as it is watched (rule W11)."""
        self._guards += 1
        try:
            yield
        finally:
            self._guards -= 1

    # --- probes -------------------------------------------------------------------------------

    async def run(self) -> NoReturn:
        """Probe the server while it is in doubt, until cancelled."""
        while True:
            await self._wait_for_doubt()
            if await self._probe_until_answered() and self._has_returned():
                self._wake()
                await asyncio.sleep(self._wakeups.delay().total_seconds())

    async def _wait_for_doubt(self) -> None:
        """Wait until a caller got no answer, or the server is quiet."""
        while not self._is_quiet():
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._quiet_in(), _MOMENT)):
                    await self._doubt.wait()
                    return

    def _is_quiet(self) -> bool:
        return self._guards > 0 and (self._unanswered > 0 or self._quiet_in() <= 0)

    def _quiet_in(self) -> float:
        """Seconds until the server counts as quiet; it does not matter while nothing is watched."""
        seconds = self._timing.quiet.total_seconds()
        received_at = max(self._client.liveness.answered_at, self._probed_at)
        return received_at + seconds - time.monotonic() if self._guards else seconds

    async def _probe_until_answered(self) -> bool:
        """Probe until all callers may continue; False if none waits any more."""
        pauses = ApiBackoff(self._timing.probes)
        error: FleetbusError | None = None
        while True:
            await asyncio.sleep(pauses.delay(error).total_seconds())
            self._doubt.clear()
            if not (self._waiting or self._is_quiet()):
                return False
            error = await self._probe()
            if error is None:
                return True
            self._failed_at = time.monotonic()

    async def _probe(self) -> FleetbusError | None:
        """Probe once; returns why callers should not continue, or None."""
        self._probed_at = time.monotonic()
        error = await self._request()
        if self._client.liveness.answered_at >= self._probed_at:
            self._set("", _remark(error) if _tells_readiness(error) else self.remark)
            self._unanswered = 0
            return error if isinstance(error, ServerError | TooManyRequests) else None
        self._unanswered += 1
        if self._unanswered == _UNANSWERED:
            self._log.warning("api_server_unreachable", error=str(error))
            await self._client.close_connections()
            self._set(str(error), ("", ""))
        return error

    async def _request(self) -> FleetbusError | None:
        """Send the probe; None if the server is ready."""
        try:
            within = self._timing.answers_within
            await self._client.request(Call("GET", _PATH, within=within))
        except (KubeError, ConfigError) as e:
            return e
        return None

    def _set(self, problem: str, remark: tuple[str, str]) -> None:
        if (self.problem, self.remark) != (problem, remark):
            self.problem, self.remark = problem, remark
            self._changed.set()

    def _has_returned(self) -> bool:
        return time.monotonic() - self._failed_at < _BACK_FOR.total_seconds()

    def _wake(self) -> None:
        self._log.info("api_server_returned", waiting=self._waiting)
        self._returned.set()
        self._returned = asyncio.Event()


class ReachabilityBackoff(ApiBackoff):
    """Pauses that end early when a server that was away is back.

    Args:
        policy: the growth of the delays.
        reachability: of the server.
    """

    def __init__(self, policy: BackoffPolicy, reachability: Reachability) -> None:
        super().__init__(policy)
        self._reachability = reachability

    async def pause(self, error: FleetbusError) -> None:
        """Wait after this failure."""
        await self._reachability.pause(error, self.delay(error))


def _is_silence(error: FleetbusError) -> bool:
    """Whether the server may be away: no answer, a broken one, or a proxy's."""
    return isinstance(error, Unreachable | ServerError)


def _tells_readiness(error: FleetbusError | None) -> bool:
    """Whether the answer is about readiness: not a throttled request or a missing endpoint."""
    return not isinstance(error, TooManyRequests | NotFound)


def _remark(error: FleetbusError | None) -> tuple[str, str]:
    """Return the condition of a server that answers, but is not ready."""
    if not isinstance(error, KubeError):
        return ("", "")
    if not isinstance(error, ServerError):
        return (error.reason or f"Status{error.status}", f"{_PATH}: {error}")
    failed = ", ".join(_FAILED_CHECK.findall(error.message))
    return ("NotReady", f"{_PATH}: failed: {failed}" if failed else f"{_PATH}: {error}")
