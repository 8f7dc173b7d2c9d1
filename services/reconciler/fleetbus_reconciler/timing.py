"""The times of the projector that no setting changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilerTiming:
    """Pauses, intervals and limits of the projector."""

    retry: timedelta = timedelta(seconds=1)
    """The pause after the store or the bus failed."""
    checks: timedelta = timedelta(seconds=5)
    """Interval at which store and bus are checked while nothing happens."""
    quiet_durables: timedelta = timedelta(seconds=20)
    """Time without a delivery or an acknowledgement after which nobody reads a durable."""
    epoch_checks: timedelta = timedelta(seconds=5)
    """Interval at which incomplete epochs and unfinished sweeps are looked for."""
    request_checks: timedelta = timedelta(milliseconds=250)
    """Interval at which second lists and deferred requests are due."""
    resync_repeated: timedelta = timedelta(seconds=30)
    """A list that was requested is not requested again sooner, so that a slow one can end."""
    clock_checks: timedelta = timedelta(seconds=5)
    """Interval at which clusters with a wrong clock are followed up."""
    cluster_status: timedelta = timedelta(seconds=1)
    """Interval at which the status of Cluster objects is written."""
    agent_checks: timedelta = timedelta(seconds=30)
    """Interval at which each agent is asked for a sign of life."""
    consent_retry: timedelta = timedelta(seconds=5)
    """The pause after a member did not answer that a consent leads to."""
    grant_turns: timedelta = timedelta(milliseconds=250)
    """Interval at which grants are decided while some are requested."""
    grant_begun: timedelta = timedelta(seconds=10)
    """A live watcher reports at once that it has begun; so requests of dead ones block nobody."""
    blocking: timedelta = timedelta(seconds=60)
    """Time for which a cluster may make the requests of others wait for capacity."""


USUAL: Final = ReconcilerTiming()
