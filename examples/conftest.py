"""The examples are tested on a whole fleet in one process; see tests/support."""

from rig_fixtures import open_rig
from server_fixtures import (
    nats_process,
    nats_url,
    no_leaks,
    servers_folder,
    valkey_process,
    valkey_url,
)

__all__ = [
    "nats_process",
    "nats_url",
    "no_leaks",
    "open_rig",
    "servers_folder",
    "valkey_process",
    "valkey_url",
]
