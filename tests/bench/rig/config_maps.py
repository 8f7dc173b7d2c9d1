"""The objects that are distributed in benchmarks."""

from __future__ import annotations

from typing import Any


def config_map(name: str) -> dict[str, Any]:
    """A ConfigMap of about 600 bytes."""
    data = {f"KEY_{number}": f"a value of a setting, number {number}" for number in range(10)}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {"app": "bench"}},
        "data": data,
    }
