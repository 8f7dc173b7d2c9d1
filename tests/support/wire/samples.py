"""Named messages of the wire contract: the golden vectors, and one event to vary."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from fleetbus_proto.distribution import AffectedObject, DistributionEvent
from fleetbus_proto.events import (
    AuditPage,
    EpochEnd,
    Event,
    Heartbeat,
    Incarnation,
    Message,
    PrinterColumn,
    Rank,
    ResourceStatus,
    ServedType,
    WatchSet,
)
from fleetbus_proto.subjects import DistributionVerb, Verb

MESSAGE_KEY: Final = bytes(range(32))
"""The secret of message ids, in tests and vectors."""
_INCARNATION = Incarnation(1754740800000, "0d8f1c3e-52b5-4c1e-9c1f-6c6b1de0a001")
_RANK = Rank("4711", 1754740801234)
_OBSERVED_AT = "2026-08-09T12:00:00.123456Z"
_DEPLOYMENT = (
    b'{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"prod",'
    b'"uid":"9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0001","resourceVersion":"4720",'
    b'"labels":{"app":"web","note":"\\u00fcber"}},"spec":{"replicas":3}}'
)
DISTRIBUTION: Final = DistributionEvent(
    namespace="shop",
    name="web",
    uid="9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0003",
    generation=4,
    revision=3,
    cluster="eu1",
    event=DistributionVerb.CORRECTED,
    objects=[
        AffectedObject(
            object="Deployment shop/web",
            api_version="apps/v1",
            field='.spec.template.spec.containers[name="web"].image',
            manager="kubectl-edit",
            time="2026-08-09T11:59:58Z",
        )
    ],
    reason="Drifted",
    message='Deployment shop/web: .spec.template.spec.containers[name="web"].image was changed by'
    " kubectl-edit at 2026-08-09T11:59:58Z",
    time=_OBSERVED_AT,
)
_WEB: Final = Event(
    cluster="eu1",
    incarnation=_INCARNATION,
    group="apps",
    version="v1",
    resource="deployments",
    kind="Deployment",
    namespace="prod",
    name="web",
    uid="9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0001",
    resource_version="4720",
    verb=Verb.ADDED,
    epoch=_RANK,
    observed_at=_OBSERVED_AT,
    object=_DEPLOYMENT,
)
_NODE: Final = Event(
    cluster="eu1",
    incarnation=_INCARNATION,
    group="core",
    version="v1",
    resource="nodes",
    kind="Node",
    namespace="",
    name="node-1.example.com",
    uid="9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0002",
    resource_version="36893488147419103233",
    verb=Verb.LISTED,
    epoch=Rank("36893488147419103232", 1754740801234),
    observed_at=_OBSERVED_AT,
    object=b'{"apiVersion":"v1","kind":"Node","metadata":{"name":"node-1.example.com"}}',
)
_ROLE: Final = Event(
    cluster="eu1",
    incarnation=_INCARNATION,
    group="rbac.authorization.k8s.io",
    version="v1",
    resource="clusterroles",
    kind="ClusterRole",
    namespace="",
    name="team a_b:*>\u00fc\t",
    uid="9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0003",
    resource_version="4722",
    verb=Verb.MODIFIED,
    epoch=_RANK,
    observed_at=_OBSERVED_AT,
    object=b"{}",
)


def _with(message: Event, **fields: Any) -> Event:
    return msgspec.structs.replace(message, **fields)


GOLDEN: Final[dict[str, Message]] = {
    "event-added": _WEB,
    "event-modified-hostile-name": _ROLE,
    "event-listed-cluster-scoped": _NODE,
    "event-deleted": _with(_WEB, verb=Verb.DELETED, resource_version="4730"),
    "event-deleted-found-by-relist": _with(
        _WEB, verb=Verb.DELETED, resource_version="4800", final_state_unknown=True
    ),
    "event-deleted-left-selection": _with(
        _WEB, verb=Verb.DELETED, scope="5f3a9c01", left_selection=True
    ),
    "event-modified-oversized": _with(
        _WEB, verb=Verb.MODIFIED, resource_version="4725", object=None, degraded="oversized"
    ),
    "epoch-end": EpochEnd(
        cluster="eu1",
        incarnation=_INCARNATION,
        group="apps",
        version="v1",
        resource="deployments",
        kind="Deployment",
        epoch=_RANK,
        count=1,
        observed_at=_OBSERVED_AT,
    ),
    "epoch-end-type-removed": EpochEnd(
        cluster="eu1",
        incarnation=_INCARNATION,
        group="stable.example.com",
        version="v1",
        resource="crontabs",
        kind="CronTab",
        epoch=_RANK,
        scope="5f3a9c01",
        count=0,
        removed=True,
        observed_at=_OBSERVED_AT,
    ),
    "audit-page": AuditPage(
        cluster="eu1",
        incarnation=_INCARNATION,
        group="apps",
        version="v1",
        resource="deployments",
        epoch=_RANK,
        page=0,
        last=True,
        items=[("prod", "web", "9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0001", "4720")],
        observed_at=_OBSERVED_AT,
    ),
    "audit-page-later": AuditPage(
        cluster="eu1",
        incarnation=_INCARNATION,
        group="core",
        version="v1",
        resource="nodes",
        epoch=_RANK,
        scope="5f3a9c01",
        page=7,
        last=False,
        after=("", "node-3"),
        items=[
            ("", "node-4", "9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0002", "4711"),
            ("", "node-5", "9f0c8a52-7a3e-4f7e-8d55-3d8a4b1c0003", "4719"),
        ],
        observed_at=_OBSERVED_AT,
    ),
    "heartbeat": Heartbeat(
        cluster="eu1",
        replica="watcher-eu1-0",
        boot="b2f1",
        incarnation=_INCARNATION,
        server_version="v1.35.0",
        platform="linux/amd64",
        connected=True,
        last_answer="2026-08-09T11:59:59.500000Z",
        resources=[
            ResourceStatus(
                group="apps",
                version="v1",
                resource="deployments",
                kind="Deployment",
                scope="5f3a9c01",
                namespace="prod",
                state="watching",
                last_received="2026-08-09T11:59:59.000000Z",
                resource_version="4730",
                lag_seconds=0.25,
            ),
            ResourceStatus(
                group="core",
                version="v1",
                resource="nodes",
                kind="Node",
                namespaced=False,
                state="failing",
                reason="Forbidden",
                message="nodes is forbidden",
                watch_open=False,
            ),
        ],
        watch_set=WatchSet(all=True, deny=["core/events"], served=["core/pods"]),
        types=[
            ServedType(
                group="example.com",
                resource="widgets",
                singular="widget",
                short_names=["wd"],
                categories=["all"],
                list_kind="WidgetCollection",
                columns=[
                    PrinterColumn(name="Size", type="integer", json_path=".spec.size"),
                    PrinterColumn(
                        name="When",
                        type="date",
                        json_path=".status.at",
                        format="date-time",
                        priority=1,
                    ),
                ],
            )
        ],
        invalid=["'po ds': not a resource name"],
        overridden=["FLEETBUS_WATCHER_RESOURCES (pods) by spec.resources (services)"],
        observed_at=_OBSERVED_AT,
    ),
}


def event(**changes: Any) -> Event:
    """A plain watch event with the given fields changed."""
    plain = _with(
        _WEB,
        incarnation=Incarnation(7, "k"),
        uid="u-1",
        resource_version="42",
        verb=Verb.MODIFIED,
        epoch=Rank("40", 1000),
        object=b"{}",
    )
    return _with(plain, **changes)
