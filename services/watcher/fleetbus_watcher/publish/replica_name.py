"""The name of this process among the watchers of a cluster, which no live process shares (W25)."""

from __future__ import annotations

import secrets
from typing import Final

import structlog

log = structlog.get_logger()

_SUFFIX: Final = 8
ADVICE: Final = (
    "give each process a name of its own: --replica NAME, or FLEETBUS_WATCHER_REPLICA; the default"
    " is the host name, which pods with hostNetwork and watchers on one machine share"
)


class ReplicaName:
    """A name that is replaced once another process proves to use it, too.

    The configured name is used at once, without a wait: after a crash the process before us is
    dead, and only its heartbeats carry its id.

    Args:
        configured: the name from the settings.
        cluster: the cluster that is watched.

    Attributes:
        boot: a random id of this process.
        current: the name under which it reports and requests now.
    """

    def __init__(self, configured: str, cluster: str) -> None:
        self.boot = secrets.token_hex(_SUFFIX)
        self.current = configured
        self._cluster = cluster
        # Other processes that have published under this name since we began.
        self._namesakes: set[str] = set()

    def is_shared_with(self, boot: str) -> bool:
        """Note a heartbeat of another process under our name; True once that process must live.

        One heartbeat may come from a process that died while it was on its way, so two are needed.
        """
        if boot in self._namesakes:
            return True
        self._namesakes.add(boot)
        return False

    def replace(self) -> None:
        """Go on under a name that no other process has, and say what a person should do."""
        shared, self.current = self.current, renamed(self.current, self.boot)
        self._namesakes.clear()
        log.error(
            "replica_name_shared",
            cluster=self._cluster,
            error=f"another watcher process is named {shared!r} as well; this one goes on as"
            f" {self.current!r}: {ADVICE}",
        )


def renamed(name: str, boot: str) -> str:
    """Return the name of a process that gives up one that another process uses."""
    return f"{name}-{boot[:_SUFFIX]}"
