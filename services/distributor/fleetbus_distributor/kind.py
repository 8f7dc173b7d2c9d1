"""The type of a MultiClusterResource, for what must not import pydantic with its spec."""

from __future__ import annotations

from typing import Final

API_VERSION: Final = "fleetbus.dev/v1alpha1"
KIND: Final = "MultiClusterResource"
