"""Settings of the agent: environment variables `FLEETBUS_AGENT_…`."""

from __future__ import annotations

import pathlib
from datetime import timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from fleetbus.process.settings import Duration
from fleetbus_agent.policy import Policy, Rule
from fleetbus_proto.subjects import check_cluster


def _split(value: object) -> object:
    return value.split() if isinstance(value, str) else value


def _check_rules(rules: tuple[str, ...]) -> tuple[str, ...]:
    for rule in rules:
        Rule.parse(rule)
    return rules


Rules = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_check_rules)]


class AgentSettings(BaseSettings):
    """Which cluster this is, and what the hub may do in it."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETBUS_AGENT_", frozen=True, use_attribute_docstrings=True, extra="ignore"
    )

    cluster: Annotated[str, AfterValidator(check_cluster)]
    """Name of the cluster in the fleet."""

    kubeconfig: pathlib.Path | None = None
    """Kubeconfig of the cluster; without it the pod's service account is used."""

    context: str = ""
    """Context in that file; empty means its current context."""

    secret: Annotated[str, Field(pattern=r"^([^/]+/[^/]+)?$")] = ""
    """The Secret of this cluster that keeps the seed of the agent's nkey, as namespace/name: the
    agent registers with it, writes it to FLEETBUS_NATS_NKEY_FILE, and replaces it by itself. Empty:
    somebody else writes that file."""

    registration_file: pathlib.Path | None = None
    """The seed of the one-time nkey that `fleetbus join --agent` has made."""

    rotation: Annotated[Duration, Field(ge=timedelta(minutes=15))] = timedelta(days=30)
    """The age at which the agent's nkey is replaced."""

    allow: Rules = ("*:*",)
    """Rules `VERBS:RESOURCES` for what the hub may do, with spaces between, like
    `get,list,watch:* create,patch:apps/deployments`. The rights of the agent's account count in
    any case. Discovery is always allowed; exec, attach, portforward and proxy never are."""

    deny: Rules = ()
    """Rules for what the hub may not do although `allow` allows it, like `*:core/secrets`; one on
    a resource holds for its subresources, too."""

    read_only: bool = False
    """Pass on nothing that changes anything, whatever `allow` says."""

    max_calls: int = Field(default=200, ge=1)
    """Calls at the same time; those beyond are refused."""

    max_request_bytes: int = Field(default=4 * 1024**2, ge=64 * 1024, le=16 * 1024**2)
    """The largest body of a request; API servers take 3 MiB."""

    stop_patience: Annotated[Duration, Field(ge=timedelta())] = timedelta(seconds=20)
    """Time that the open calls have to end when the agent is stopped."""

    @property
    def policy(self) -> Policy:
        """The local policy."""
        return Policy(
            [Rule.parse(rule) for rule in self.allow],
            [Rule.parse(rule) for rule in self.deny],
            read_only=self.read_only,
        )
