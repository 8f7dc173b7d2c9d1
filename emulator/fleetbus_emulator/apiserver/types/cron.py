"""The schedules of CronJobs, read as Kubernetes reads them: five fields, or a descriptor.

The wording of the refusals is that of the library that Kubernetes uses (robfig/cron), which clients
get to see.
"""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from fleetbus_emulator.apiserver.errors import Cause
from fleetbus_emulator.apiserver.types.field_errors import invalid, required

_DESCRIPTORS: Final = frozenset(
    {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}
)
_EVERY: Final = "@every "
_DURATION: Final = re.compile(r"[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:ns|us|µs|ms|s|m|h))+|[-+]?0")
_MONTHS: Final = re.findall("...", "janfebmaraprmayjunjulaugsepoctnovdec")
_DAYS: Final = re.findall("...", "sunmontuewedthufrisat")


class _Field(NamedTuple):
    first: int
    last: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field(0, 59, {}),
    _Field(0, 23, {}),
    _Field(1, 31, {}),
    _Field(1, 12, {name: number for number, name in enumerate(_MONTHS, start=1)}),
    _Field(0, 6, {name: number for number, name in enumerate(_DAYS)}),
)


def schedule_causes(spec: dict[str, Any]) -> list[Cause]:
    """Validate the schedule and the time zone of a CronJob's spec."""
    schedule, zone = str(spec.get("schedule") or ""), spec.get("timeZone")
    causes: list[Cause] = []
    if not schedule:
        causes.append(required("spec.schedule"))
    elif why := schedule_problem(schedule):
        causes.append(invalid("spec.schedule", schedule, why))
    if zone is not None and (why := _zone_problem(str(zone))):
        causes.append(invalid("spec.timeZone", zone, why))
    return causes


def schedule_problem(schedule: str) -> str:
    """The error of a schedule that cannot be parsed; empty if it can."""
    if "TZ" in schedule:
        return "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"
    if schedule.startswith("@"):
        return _descriptor_problem(schedule)
    fields = schedule.split()
    if len(fields) != len(_FIELDS):
        expected, actual = len(_FIELDS), len(fields)
        return f"expected exactly {expected} fields, found {actual}: [{' '.join(fields)}]"
    problems = (
        _range_problem(text, field)
        for texts, field in zip(fields, _FIELDS, strict=True)
        for text in texts.split(",")
        if text
    )
    return next(filter(None, problems), "")


def _descriptor_problem(schedule: str) -> str:
    if schedule in _DESCRIPTORS:
        return ""
    if not schedule.startswith(_EVERY):
        return f"unrecognized descriptor: {schedule}"
    duration = schedule.removeprefix(_EVERY)
    if _DURATION.fullmatch(duration):
        return ""
    return f'failed to parse duration {schedule}: time: invalid duration "{duration}"'


def _range_problem(text: str, field: _Field) -> str:
    bounds, *steps = text.split("/")
    first, *others = bounds.split("-")
    if len(others) > 1:
        return f"too many hyphens: {text}"
    if len(steps) > 1:
        return f"too many slashes: {text}"
    is_all = first in ("*", "?")
    numbers = ([] if is_all else [first, *others]) + steps
    for number in numbers:
        if number.lower() not in field.names and not re.fullmatch(r"[-+]?\d+", number):
            why = f'strconv.Atoi: parsing "{number}": invalid syntax'
            return f"failed to parse int from {number}: {why}"
    low = field.first if is_all else _number(first, field.names)
    is_open = is_all or (steps and not others)
    high = field.last if is_open else _number([first, *others][-1], field.names)
    problem = _bounds_problem(low, high, field)
    if not problem and steps and not int(steps[0]):
        problem = "step of range should be a positive number"
    return f"{problem}: {text}" if problem else ""


def _bounds_problem(low: int, high: int, field: _Field) -> str:
    if low < field.first:
        return f"beginning of range ({low}) below minimum ({field.first})"
    if high > field.last:
        return f"end of range ({high}) above maximum ({field.last})"
    if low > high:
        return f"beginning of range ({low}) beyond end of range ({high})"
    return ""


def _number(text: str, names: dict[str, int]) -> int:
    return names[text.lower()] if text.lower() in names else int(text)


def _zone_problem(zone: str) -> str:
    if not zone:
        return "timeZone must be nil or non-empty string"
    if zone.lower() == "local":
        return (
            "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"
        )
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return f"unknown time zone {zone}"
    return ""
