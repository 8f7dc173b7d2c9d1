"""Keeps nats-py to the addresses that were configured.

The servers of a cluster advertise all of their addresses, and nats-py adds them to its own for
good: without our credentials, so that a reconnect to one is refused and the client closes; also
those that were configured with credentials, because it compares the text; and those of pods that
are long gone, each of which costs a reconnect two seconds.
"""

from __future__ import annotations

from typing import Any

from nats.aio.client import Client


class ConfiguredServersClient(Client):
    """nats-py's client, which ignores the addresses that servers advertise."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        fields = {name: value for name, value in info.items() if name != "connect_urls"}
        await super()._process_info(fields, initial_connection)
