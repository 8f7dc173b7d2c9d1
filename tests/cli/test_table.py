"""The notes beside the rows of a list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbus_cli.table import warn_undetermined

if TYPE_CHECKING:
    import pytest


def test_a9_what_was_unknown_then_takes_one_line(capsys: pytest.CaptureFixture[str]):
    """On a new fleet `fleetbus diff --since 10m` named each object."""
    unknown = {"cluster": "eu1", "namespace": "prod", "name": "web", "reason": "x"}
    later = {**unknown, "name": "b", "knownFrom": "2026-01-02T15:04:05.000002Z"}
    named = {**unknown, "resource": "apps/deployments", "knownFrom": "2026-01-02T15:04:05.000001Z"}
    warnings = {
        "eu1 apps/deployments prod/web: x": [named],
        "eu1 prod/web: x": [unknown],
        "2 objects, such as eu1 prod/web": [unknown, unknown],
        "2 objects, such as eu1 apps/deployments prod/web;"
        " their past is known from 2026-01-02T15:04:05.000002Z": [named, later],
        "100 objects or more, such as eu1 prod/web": [unknown] * 100,
    }
    for text, objects in warnings.items():
        warn_undetermined(objects)
        assert capsys.readouterr().err == f"warning: unknown at that time: {text}\n"
    warn_undetermined([])
    assert not capsys.readouterr().err
