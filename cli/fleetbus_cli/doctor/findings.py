"""The findings of the doctor: one line of its answer each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """Works, but something will fail later, or is less safe than it should be."""
    ERROR = "error"
    """Something does not work now."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    about: str
    """The part that was checked, like `stream` or `cluster eu1`."""
    severity: Severity
    message: str
    advice: str = ""
    """The next step for a person; empty if there is none."""


def ok(about: str, message: str) -> Finding:
    """Report that a part is as it should be."""
    return Finding(about, Severity.OK, message)


def warning(about: str, message: str, advice: str) -> Finding:
    """Report what will fail later."""
    return Finding(about, Severity.WARNING, message, advice)


def as_warning(finding: Finding) -> Finding:
    """Report an error of a part that nobody may miss as a warning; anything else as it is."""
    if finding.severity is not Severity.ERROR:
        return finding
    return replace(finding, severity=Severity.WARNING)


def error(about: str, message: str, advice: str) -> Finding:
    """Report what does not work."""
    return Finding(about, Severity.ERROR, message, advice)
