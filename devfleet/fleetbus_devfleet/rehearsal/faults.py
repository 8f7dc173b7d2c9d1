"""The faults of a rehearsal, as a person writes them.

CLUSTER dies | returns | refuses RESOURCE | is slow | never becomes healthy
    [in wave NUMBER-OR-NAME | after DURATION]
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from fleetbus.errors import ConfigError
from fleetbus.kube.resource_names import with_plural
from fleetbus_cli.unknown import unknown_cluster
from fleetbus_proto.errors import InvalidName
from fleetbus_proto.resources import parse_resource_name

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

GRAMMAR: Final = (
    "CLUSTER dies|returns|refuses RESOURCE|is slow|never becomes healthy"
    " [in wave NUMBER-OR-NAME|after 10s]"
)
_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes"}
_PATTERN: Final = re.compile(
    r"""(?P<cluster>[a-z0-9]\S*)\s+
    (?P<kind>dies|returns|refuses\s+(?P<resource>\S+)|is\s+slow|never\s+becomes\s+healthy)
    (?:\s+in\s+wave\s+(?P<wave>\S+)|\s+after\s+(?P<number>\d+)(?P<unit>ms|s|m))?""",
    re.VERBOSE,
)


class FaultKind(StrEnum):
    """The kind of a fault, as it is written."""

    DIES = "dies"
    RETURNS = "returns"
    REFUSES = "refuses"
    SLOW = "is slow"
    UNHEALTHY = "never becomes healthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        text: as it was written.
        cluster: the cluster that it breaks, or mends.
        kind: the kind.
        resource: the plural that is refused, with its group if it was named; else empty.
        wave: its number, from 1, or its name; empty for none.
        after: the time since the edit; None for none.
    """

    text: str
    cluster: str
    kind: FaultKind
    resource: str = ""
    wave: str = ""
    after: timedelta | None = None

    @classmethod
    def read(cls, text: str) -> Self:
        """Read a fault.

        Raises:
            ConfigError: it is none; the message has the grammar.
        """
        match = _PATTERN.fullmatch(" ".join(text.split()))
        if match is None:
            raise ConfigError(f"--fault {text!r} is not of the form {GRAMMAR}")
        after = (
            timedelta(**{_UNITS[match["unit"]]: int(match["number"])}) if match["unit"] else None
        )
        is_refusal = match["resource"] is not None
        return cls(
            text=" ".join(text.split()),
            cluster=match["cluster"],
            kind=FaultKind.REFUSES if is_refusal else FaultKind(match["kind"]),
            resource=_plural(match["resource"]) if is_refusal else "",
            wave=match["wave"] or "",
            after=after,
        )

    def check(self, clusters: Collection[str], waves: Sequence[str], timeout: timedelta) -> None:
        """Check that its cluster, its wave and its time exist.

        Args:
            clusters: of the fleet.
            waves: the names of the waves that the spec declares, in their order.
            timeout: when the rehearsal ends at the latest.

        Raises:
            UnknownName: the fleet has no such cluster.
            ConfigError: the rollout has no such wave, or the rehearsal has ended by then.
        """
        if self.cluster not in clusters:
            raise unknown_cluster(self.cluster, clusters)
        if self.after is not None and self.after >= timeout:
            limit = f"{timeout.total_seconds():g}s"
            raise ConfigError(f"--fault {self.text!r}: the rehearsal ends after {limit}: --timeout")
        # Clusters that no wave chooses come last, in a wave that is not declared.
        last = "remaining" if waves else "all"
        numbers = {str(number) for number in range(1, len(waves) + 2)}
        if self.wave and self.wave not in {*numbers, *waves, last}:
            hint = f"its waves are {', '.join([*waves, last])}, or 1 to {len(waves) + 1}"
            if not waves:
                hint = "spec.rollout names no waves, so there is one, 'all'"
            raise ConfigError(
                f"--fault {self.text!r}: the rollout has no wave {self.wave!r}: {hint}"
            )


def _plural(text: str) -> str:
    """The plural of a resource with its group, as the rules of an emulated cluster name it."""
    try:
        name = with_plural(parse_resource_name(text.lower())[0])
    except InvalidName as e:
        raise ConfigError(f"--fault: {e}") from e
    return f"{name.plural}.{name.group}" if name.group else name.plural
