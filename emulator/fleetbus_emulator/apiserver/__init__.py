"""A Kubernetes API server good enough to be wrong on purpose.

Imports nothing of fleetbus, so that it stays an independent witness.

    cluster = Cluster("alpha", bookmark_interval=timedelta(seconds=0.2))
    async with serve([cluster]) as servers:
        servers.write_kubeconfig(path)          # kubectl and client libraries work with it
        cluster.create("v1/configmaps", {"metadata": {"name": "a"}, "data": {}}, "default")
        cluster.faults.add(Abort(after_commit=True), verb="create", count=1)
        await servers.stop("alpha")             # refused, until start

- `Cluster`: one cluster without I/O. In-process calls (`create`, `get`, `list`, `update`,
  `update_status`, `apply`, `patch`, `delete`) take the same path as requests; `subscribe` gets
  every committed write as a `Change`. For checkers there are `truth` (each entry a `Commit`;
  `history` is what memory holds) and `requests` (each a `LoggedRequest`). `compact`, `roll_back`
  and `swap_uid` are faults of the whole cluster.
- `Cluster(tokens=, authorize=)` and `cluster.credentials`: authentication (`User` by token, client
  certificate or ServiceAccount) and authorization (a function of an `Access`, or "rbac"). Without
  them everybody is admin.
- `serve` and `ApiServers`: the listeners; `url`, `kubeconfig`, `write_kubeconfig`, `stop`, `start`,
  `partition` (see `Partition`) and `heal`.
- `cluster.faults.add(action, ...)`: a `Rule`. The actions are in `faults`.
- `admin`: the same from other processes, over HTTP.
- `ApiError`: a refusal, with `code`, `reason` and `message`.

The path of a request: `http` (listener) -> `cluster` -> `handler` (route) -> `access_control`
(`auth`) -> `operations` (the verbs) -> `read` or `write`, with the `strategy` of the type in
`types` or `definitions` -> `storage` (revisions, objects, event log) -> `encoding` (bytes; Tables
by `columns`).
"""

from fleetbus_emulator.apiserver.auth.access import Access, User
from fleetbus_emulator.apiserver.auth.certificates import ClientCertificate
from fleetbus_emulator.apiserver.auth.credentials import Credentials
from fleetbus_emulator.apiserver.cluster import Cluster
from fleetbus_emulator.apiserver.errors import ApiError, NotServed
from fleetbus_emulator.apiserver.faults import (
    Abort,
    Action,
    Compact,
    CutAnswer,
    CutWatch,
    Delay,
    Drip,
    DropEvents,
    EndWatch,
    Expire,
    Fail,
    Faults,
    FieldError,
    Garble,
    GroupDown,
    Hang,
    HideBookmarks,
    LagWatch,
    PartialList,
    Rule,
    StaleList,
    StallWatch,
)
from fleetbus_emulator.apiserver.http.exchange import Request, Response
from fleetbus_emulator.apiserver.http.partition import Partition
from fleetbus_emulator.apiserver.http.request_log import LoggedRequest
from fleetbus_emulator.apiserver.http.server import ApiServers, serve
from fleetbus_emulator.apiserver.read.watch import Watch
from fleetbus_emulator.apiserver.storage.ground_truth import Commit, GroundTruth
from fleetbus_emulator.apiserver.storage.state import Change

__all__ = [
    "Abort",
    "Access",
    "Action",
    "ApiError",
    "ApiServers",
    "Change",
    "ClientCertificate",
    "Cluster",
    "Commit",
    "Compact",
    "Credentials",
    "CutAnswer",
    "CutWatch",
    "Delay",
    "Drip",
    "DropEvents",
    "EndWatch",
    "Expire",
    "Fail",
    "Faults",
    "FieldError",
    "Garble",
    "GroundTruth",
    "GroupDown",
    "Hang",
    "HideBookmarks",
    "LagWatch",
    "LoggedRequest",
    "NotServed",
    "PartialList",
    "Partition",
    "Request",
    "Response",
    "Rule",
    "StaleList",
    "StallWatch",
    "User",
    "Watch",
    "serve",
]
