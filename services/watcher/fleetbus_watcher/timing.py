"""The times of a watcher that no setting changes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from fleetbus.kube.connection.backoff import BackoffPolicy

_PROBES: Final = BackoffPolicy(first=timedelta(seconds=1), cap=timedelta(seconds=1.5))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatcherTiming:
    """Pauses, intervals and limits of a watcher."""

    # --- whether the API server answers (rules W11, W19) --------------------------------------

    quiet: timedelta = timedelta(seconds=10)
    """An API server that has sent nothing for so long is probed."""
    probes: BackoffPolicy = _PROBES
    """Between two probes of a server in doubt: 3 s at most with their jitter."""
    answers_within: timedelta = timedelta(seconds=4)
    """A probe that is not answered within this time has failed."""
    return_spread: timedelta = timedelta(seconds=1)
    """The callers that wait for a server continue within this time after its return."""
    identity_age: timedelta = timedelta(milliseconds=50)
    """All watches of a server that comes back are opened at once; one request for its identity is
    enough for them."""

    # --- types --------------------------------------------------------------------------------

    crd_settles: timedelta = timedelta(seconds=0.5)
    """A new type is served a moment after its CRD was written."""
    second_discovery: timedelta = timedelta(seconds=2)
    """Between two discoveries that prove together that a type was removed (rule W17)."""
    definitions: timedelta = timedelta(minutes=5)
    """Interval at which the definitions of custom resources are read."""

    # --- the bus and the projector ------------------------------------------------------------

    heartbeat_settles: timedelta = timedelta(milliseconds=200)
    """Changes of state come in bursts, at start above all; this also prevents a busy loop."""
    specs: timedelta = timedelta(seconds=60)
    """Interval at which the watch spec is read, as a wake-up may be lost."""
    resync_requests: timedelta = timedelta(minutes=5)
    """The same of resync requests. There is one key for each resource, and a wake-up is lost only
    where servers of a NATS cluster lose each other while their clients stay connected (W20)."""
    stream_lag: timedelta = timedelta(seconds=5)
    """Time that a replica of the stream may lag behind its leader."""
    grant_first_poll: timedelta = timedelta(milliseconds=250)
    grant_last_poll: timedelta = timedelta(seconds=5)
    """The projector wakes us; we also poll in case that message was lost."""
    grant_reported_after: timedelta = timedelta(seconds=1)
    """A shorter wait for a grant is not reported in heartbeats."""

    # --- replicas of the cluster, members of the pool -----------------------------------------

    peer_verifies: timedelta = timedelta(seconds=5)
    """Time that a peer replica that has just started may take to verify its own heartbeats."""
    peer_epoch: timedelta = timedelta(minutes=2)
    """Time to wait for the epoch of a peer replica (rule W15)."""
    audit_taken_over: timedelta = timedelta(minutes=2)
    """An audit that was not renewed for so long is taken over: its replica may have died."""
    audit_renewed: timedelta = timedelta(seconds=20)
    """Interval at which a running audit is renewed."""
    silent_start: timedelta = timedelta(seconds=10)
    """The longest time without a heartbeat, while a first list takes its time."""
    unwatchable: timedelta = timedelta(seconds=10)
    """A cluster that cannot be watched for so long is taken over all the same."""


USUAL: Final = WatcherTiming()
