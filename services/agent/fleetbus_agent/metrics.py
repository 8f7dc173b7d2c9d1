"""The metrics of the agent."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from fleetbus_agent.policy import VERBS
from fleetbus_proto.calls import Reason

CALLS: Final = Counter(
    "fleetbus_agent_calls_total",
    "Calls by verb and outcome: the class of the status code, like `2xx`, or why there is none.",
    ["verb", "outcome"],
)
OPEN_CALLS: Final = Gauge("fleetbus_agent_open_calls", "Calls that are open now.")
SECONDS: Final = Histogram(
    "fleetbus_agent_call_seconds",
    "Time from the request to the last byte of the answer; without watches.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
BYTES: Final = Counter(
    "fleetbus_agent_bytes_total", "Bytes of bodies that were passed on.", ["direction"]
)
REFUSED_FRAMES: Final = Counter(
    "fleetbus_agent_refused_frames_total", "Messages from NATS that are no valid frames."
)
ANOTHER: Final = Counter(
    "fleetbus_agent_cluster_changes_total",
    "How often another cluster answered at the address of the API server.",
)
REQUESTS, ANSWERS = "request", "answer"


def create() -> None:
    """Create the series at 0, so that a rate has a start."""
    for direction in (REQUESTS, ANSWERS):
        BYTES.labels(direction)
    for verb in VERBS:
        for outcome in ("2xx", "4xx", "5xx", Reason.DENIED, Reason.UNREACHABLE):
            CALLS.labels(verb, outcome)
