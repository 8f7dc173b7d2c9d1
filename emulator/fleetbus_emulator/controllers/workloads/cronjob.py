"""CronJobs: Jobs of a template, by hand or by the clock, and what is kept of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import listing, mapping
from fleetbus_emulator.controllers.conditions import is_true
from fleetbus_emulator.controllers.owners import managers_concerned, owner_reference
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import is_deleting, uid_of
from fleetbus_emulator.controllers.runtime.world import GATHERED, Item, Kinds, World
from fleetbus_emulator.controllers.workloads.job_status import is_finished

JsonObject = dict[str, Any]
BATCH = "batch"
SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
FIELDS = 5
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class CronJobController:
    """Starts the Jobs of CronJobs and forgets the old ones.

    Args:
        world: The cluster.
        schedules: Whether Jobs are started by the clock; by `trigger` only, if not.
    """

    name = "cronjob"
    watches: Kinds = frozenset({(BATCH, "cronjobs"), (BATCH, "jobs")})
    rank = GATHERED

    def __init__(self, world: World, *, schedules: bool) -> None:
        self._world = world
        self._view = world.view
        self._schedules = schedules

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """CronJobs by themselves and by their Jobs."""
        if ref.resource == "cronjobs":
            return [ref]
        return managers_concerned(self._view, change, BATCH, "cronjobs")

    def reconcile(self, ref: Ref) -> None:
        """Take note of what its Jobs do, and start one if it is time."""
        if is_deleting(self._view[ref]):
            return
        self._account(ref)
        self._clean_up(ref)
        if self._schedules:
            self._keep_schedule(ref)

    def trigger(self, namespace: str, name: str) -> str | None:
        """Start a Job as if its time had come now; see `Simulator.trigger`."""
        ref = Ref(BATCH, "cronjobs", namespace, name)
        if self._view[ref]["spec"].get("suspend"):
            return None
        return self._start(ref, self._world.clock())

    def _jobs(self, ref: Ref) -> list[Ref]:
        return self._view.controlled(uid_of(self._view[ref]), BATCH, "jobs")

    # its Jobs -----------------------------------------------------------------------------------

    def _account(self, ref: Ref) -> None:
        """Remove Jobs that ended or were deleted from status.active."""
        cron_job = self._view[ref]
        status = mapping(cron_job, "status")
        jobs = {uid_of(self._view[job]): self._view[job] for job in self._jobs(ref)}
        active: list[JsonObject] = []
        for entry in listing(status, "active"):
            job = jobs.get(str(entry.get("uid")))
            if job is not None and not is_finished(job):
                active.append(entry)
            elif job is not None:
                kind = "Complete" if is_true(job, "Complete") else "Failed"
                message = f"Saw completed job: {job['metadata']['name']}, condition: {kind}"
                self._world.note(ref, "SawCompletedJob", message)
        well = [mapping(j, "status").get("completionTime") for j in jobs.values()]
        done = [str(status.get("lastSuccessfulTime") or ""), *(str(t) for t in well if t)]
        self._write_status(ref, {"active": active, "lastSuccessfulTime": max(done)})

    def _write_status(self, ref: Ref, changes: JsonObject) -> None:
        status = {**mapping(self._view[ref], "status"), **changes}
        self._world.write_status(ref, {name: value for name, value in status.items() if value})

    def _clean_up(self, ref: Ref) -> None:
        spec = self._view[ref]["spec"]
        for kind, limit in (
            ("Complete", spec.get("successfulJobsHistoryLimit", 3)),
            ("Failed", spec.get("failedJobsHistoryLimit", 1)),
        ):
            ended = [job for job in self._jobs(ref) if is_true(self._view[job], kind)]
            ended.sort(key=lambda job: str(mapping(self._view[job], "status").get("startTime")))
            for job in ended[: max(0, len(ended) - limit)]:
                if not is_deleting(self._view[job]):
                    self._world.delete(job, policy="Background")

    def _start(self, ref: Ref, moment: datetime) -> str | None:
        """Start the Job of a moment, as far as concurrencyPolicy lets it; its name."""
        running = [job for job in self._jobs(ref) if not is_finished(self._view[job])]
        policy = self._view[ref]["spec"].get("concurrencyPolicy")
        if running and policy == "Forbid":
            message = (
                "Not starting job because prior execution is running and concurrency policy is"
            )
            self._world.note(ref, "JobAlreadyActive", f"{message} Forbid")
            return None
        for job in running if policy == "Replace" else ():
            self._world.delete(job, policy="Background")
        self._account(ref)
        created = self._create(ref, moment)
        self._note_start(ref, created, moment)
        return created.name

    def _create(self, ref: Ref, moment: datetime) -> Ref:
        cron_job = self._view[ref]
        minute = int(moment.timestamp()) // 60
        while (job := Ref(BATCH, "jobs", ref.namespace, f"{ref.name}-{minute}")) in self._view:
            minute += 1  # two triggers in the same minute
        template = mapping(cron_job, "spec", "jobTemplate")
        meta = mapping(template, "metadata")
        stamp = datetime.fromtimestamp(minute * 60, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {
                "name": job.name,
                "namespace": ref.namespace,
                "labels": mapping(meta, "labels"),
                "annotations": {**mapping(meta, "annotations"), SCHEDULED: stamp},
                "ownerReferences": [owner_reference(cron_job)],
            },
            "spec": mapping(template, "spec"),
        }
        self._world.create("batch/v1/jobs", body)
        return job

    def _note_start(self, ref: Ref, job: Ref, moment: datetime) -> None:
        meta = self._view[job]["metadata"]
        entry = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            **{name: meta[name] for name in ("name", "namespace", "uid", "resourceVersion")},
        }
        active = [*listing(self._view[ref], "status", "active"), entry]
        stamp = moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._write_status(ref, {"active": active, "lastScheduleTime": stamp})
        self._world.note(ref, "SuccessfulCreate", f"Created job {job.name}")

    # the schedule -------------------------------------------------------------------------------

    def _keep_schedule(self, ref: Ref) -> None:
        spec = self._view[ref]["spec"]
        if spec.get("suspend"):
            return
        now = self._world.clock()
        try:
            missed, coming = _times(self._view[ref], now)
        except (CronSimError, ValueError, LookupError) as error:
            message = f"unparseable schedule: {spec.get('schedule')!r} : {error}"
            self._world.warn(ref, "UnparseableSchedule", message)
            return
        deadline = spec.get("startingDeadlineSeconds")
        late = deadline is not None and missed and now - missed > timedelta(seconds=deadline)
        if late:
            self._world.warn(ref, "MissSchedule", f"Missed scheduled time to start a job: {missed}")
        elif missed is not None:
            self._start(ref, missed)
        if coming is not None:
            self._world.stage_timers.alarm(Item(self.name, ref), (coming - now).total_seconds())


def _times(cron_job: JsonObject, now: datetime) -> tuple[datetime | None, datetime | None]:
    """The latest scheduled time that has passed and was not kept, and the next one.

    Raises:
        CronSimError: The schedule cannot be read.
        LookupError: The time zone is not known.
    """
    spec, status = cron_job["spec"], mapping(cron_job, "status")
    here = now.astimezone(ZoneInfo(str(spec.get("timeZone") or "UTC")))
    text = str(spec.get("schedule") or "")
    text = MACROS.get(text, text).replace("?", "*")
    if len(text.split()) != FIELDS:
        raise CronSimError(f"expected exactly {FIELDS} fields")
    last_run = str(status.get("lastScheduleTime") or cron_job["metadata"]["creationTimestamp"])
    last = next(CronSim(text, here + timedelta(seconds=1), reverse=True), None)
    missed = last is not None and last > datetime.fromisoformat(last_run)
    return last if missed else None, next(CronSim(text, here), None)
