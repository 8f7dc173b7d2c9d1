"""CronJobs, and what is left of the Jobs that they started."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.generate.objects import pods
from fleetbus_emulator.generate.objects.pods import Node, PodMaker
from fleetbus_emulator.generate.objects.words import CHORES
from fleetbus_emulator.generate.objects.workloads import (
    CONTROLLER_MANAGER,
    MANAGERS,
    PODS,
    Made,
    Place,
    owner_reference,
    standard_labels,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_emulator.generate.objects.managed_fields import ManagedFields
    from fleetbus_emulator.generate.objects.naming import Naming

JsonObject = dict[str, Any]
SCHEDULES = (("*/5 * * * *", 300.0), ("0 * * * *", 3600.0), ("15 3 * * *", 86400.0))
KEPT_JOBS = 3
DURATION = 45.0
LAST_MINUTE = 29_800_000  # Jobs are named for the minute they were due in


def cron_job(
    naming: Naming, managed_fields: ManagedFields, namespace: str, node: Node
) -> Iterator[Made]:
    """A CronJob and the Jobs that it keeps, each with its finished pod."""
    app = naming.unique(naming.random.choice(CHORES))
    place = Place(app, namespace, labels=standard_labels(app, "2.1.0", "data"))
    schedule, interval = naming.random.choice(SCHEDULES)
    template = _template(naming, place)
    age = interval * (KEPT_JOBS + 10)
    spec: JsonObject = {
        "concurrencyPolicy": "Forbid",
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {"metadata": {}, "spec": {"template": template}},
        "schedule": schedule,
        "successfulJobsHistoryLimit": KEPT_JOBS,
        "suspend": False,
    }
    meta = naming.metadata(app, namespace, age, place.labels, generation=1)
    last = naming.ago(interval)
    status = {"lastScheduleTime": last, "lastSuccessfulTime": naming.ago(interval - DURATION)}
    owner: JsonObject = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }
    manager = MANAGERS.pick(naming.random)
    managed_fields.keep(owner, manager, controller=CONTROLLER_MANAGER)
    yield "batch/v1/cronjobs", owner
    for turn in range(KEPT_JOBS, 0, -1):
        yield from _finished_job(naming, managed_fields, owner, template, turn * interval, node)


def _template(naming: Naming, place: Place) -> JsonObject:
    template = pods.template(naming, place.app, place.account, place.labels)
    return {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}


def _finished_job(
    naming: Naming,
    managed_fields: ManagedFields,
    owner: JsonObject,
    template: JsonObject,
    age: float,
    node: Node,
) -> Iterator[Made]:
    namespace = owner["metadata"]["namespace"]
    name = f"{owner['metadata']['name']}-{LAST_MINUTE - round(age / 60)}"
    meta = naming.metadata(name, namespace, age, generation=1)
    uid = meta["uid"]
    labelled = _labelled(template, uid, name)
    meta |= {
        "labels": labelled["metadata"]["labels"],
        "ownerReferences": [owner_reference(owner)],
    }
    job: JsonObject = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "completions": 1,
            "manualSelector": False,
            "parallelism": 1,
            "podReplacementPolicy": "TerminatingOrFailed",
            "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}},
            "suspend": False,
            "template": labelled,
        },
        "status": _finished_status(naming, age),
    }
    managed_fields.keep(job, CONTROLLER_MANAGER, controller=CONTROLLER_MANAGER)
    yield "batch/v1/jobs", job
    ref = owner_reference(job)
    maker = PodMaker(naming, managed_fields, labelled, ref, namespace, age=age, phase="Succeeded")
    yield PODS, maker.make(node)


def _labelled(template: JsonObject, uid: str, name: str) -> JsonObject:
    """The pod template with the labels that name its Job."""
    ids = {
        "batch.kubernetes.io/controller-uid": uid,
        "batch.kubernetes.io/job-name": name,
        "controller-uid": uid,
        "job-name": name,
    }
    labels = {**template["metadata"]["labels"], **ids}
    return {**template, "metadata": {**template["metadata"], "labels": labels}}


def _finished_status(naming: Naming, age: float) -> JsonObject:
    ended = naming.ago(age - DURATION)
    conditions = [
        {
            "lastProbeTime": ended,
            "lastTransitionTime": ended,
            "message": "Reached expected number of succeeded pods",
            "reason": "CompletionsReached",
            "status": "True",
            "type": kind,
        }
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    return {
        "completionTime": ended,
        "conditions": conditions,
        "ready": 0,
        "startTime": naming.ago(age),
        "succeeded": 1,
        "terminating": 0,
        "uncountedTerminatedPods": {},
    }
