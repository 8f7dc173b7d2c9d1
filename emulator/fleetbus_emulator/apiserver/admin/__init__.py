"""The admin endpoint: break, mend and question emulated clusters from other processes.

HTTP with JSON, on a port of its own, for this machine alone. `routes` answers, `client` asks.

    async with serve([Cluster("eu1")]) as servers, serve_admin(servers) as url:
        async with AdminClient(url) as admin:
            rule = await admin.add_fault("eu1", StallWatch(), resource="pods")
            await admin.partition("eu1", Partition.HANG)
            async for commit in admin.truth("eu1", follow=True): ...
"""

from fleetbus_emulator.apiserver.admin.client import AdminClient, AdminError
from fleetbus_emulator.apiserver.admin.documents import (
    ClusterInfo,
    RequestPage,
    RuleInfo,
    WatchInfo,
)
from fleetbus_emulator.apiserver.admin.endpoint import serve_admin

__all__ = [
    "AdminClient",
    "AdminError",
    "ClusterInfo",
    "RequestPage",
    "RuleInfo",
    "WatchInfo",
    "serve_admin",
]
