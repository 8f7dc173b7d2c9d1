"""The findings of a doctor, of the fleet or of one agent: one line of its answer each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """Works, but something will fail later, or is less safe than it should be."""
    ERROR = "error"
    """Something does not work now."""


SIGNS: Final = {Severity.OK: "ok", Severity.WARNING: "warn", Severity.ERROR: "ERROR"}
"""The severities as they are printed."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    about: str
    """The part that was checked, like `stream` or `cluster eu1`."""
    severity: Severity
    message: str
    advice: str = ""
    """The next step for a person; empty if there is none."""

    @property
    def text(self) -> str:
        """The message and the advice, for people."""
        return f"{self.message}; {self.advice}" if self.advice else self.message


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
