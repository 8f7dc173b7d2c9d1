"""What a watcher of the pool can be told, besides what each watcher can be told."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from fleetbus.kube.selectors import InvalidSelector, LabelSelector
from fleetbus.process.settings import Duration

DEDICATED = "fleetbus.dev/watcher"
"""The label of a cluster that has a watcher of its own, with the value `dedicated`."""


class PoolSettings(BaseSettings):
    """Which clusters the pool takes, and how fast a member that dies is replaced."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_WATCHER_POOL_",
        frozen=True,
        use_attribute_docstrings=True,
        extra="ignore",
    )

    selector: str = f"{DEDICATED}!=dedicated"
    """Label selector over the clusters; what it leaves out has watchers of its own, started with
    `--cluster`. Members with the same selector are one pool."""

    lease: Annotated[Duration, Field(ge=timedelta(milliseconds=100))] = timedelta(seconds=5)
    """A member silent for so long is replaced. Five signs of life: less would replace one whose
    machine is only busy, and two that watch the same cluster do twice the work."""

    hand_over: Annotated[Duration, Field(ge=timedelta())] = timedelta(seconds=20)
    """How long a stop waits for the others to take over; below the 30 s after which Kubernetes
    kills a pod."""

    lists_at_once: int = Field(default=8, ge=1)
    """Lists of this process that run at the same time, over all its clusters (W14)."""

    @field_validator("selector")
    @classmethod
    def _is_a_selector(cls, value: str) -> str:
        try:
            LabelSelector.parse(value)
        except InvalidSelector as e:
            raise ValueError(str(e)) from e
        return value

    @property
    def interval(self) -> timedelta:
        """Between two signs of life, and between two looks at those of the others."""
        return self.lease / 5
