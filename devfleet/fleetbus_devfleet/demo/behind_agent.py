"""The scene about a cluster that the hub cannot reach, and calls through an agent in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import orjson
import yaml
from rich.markup import escape

from fleetbus.clusters.leaving import NAMESPACE as ACCESS_DATA
from fleetbus.clusters.membership import JOINED_LABEL
from fleetbus.errors import Forbidden
from fleetbus.kube.client import KubeClient
from fleetbus.kube.connection.config import KubeConfig
from fleetbus_devfleet.demo.census import HUB_NAMESPACE
from fleetbus_devfleet.demo.checks import Checks
from fleetbus_devfleet.demo.stage import DEPLOYMENTS, IMAGE, IMAGE_IN_TEMPLATE, MCR, SOON, WEB
from fleetbus_devfleet.stack.plan import agent_of
from fleetbus_devfleet.stack.register import only_context

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_devfleet.demo.stage import Stage

_SHOWN: Final = 4
"""Calls of the agent's log."""
_READING: Final = ("get", "list", "watch")
_SECRETS: Final = "v1/secrets"


class AgentScene:
    """Shows who may call a cluster, kills its agent, and starts it again.

    Args:
        stage: the running stack, its witness and the narrator.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._witness = stage.witness
        self._tell = stage.tell
        self._check = Checks(stage)
        self._cluster = stage.stack.plan.behind_agents[-1]
        self._agent = agent_of(self._cluster)

    async def play(self) -> None:
        """Raises ClaimError when something it claims does not hold."""
        cluster = self._cluster
        self._tell.scene(
            "A cluster that the hub cannot reach",
            f"The hub has no credentials of {cluster}, as if it were behind a firewall. An agent "
            "in it connects to NATS, and what the hub wants there is asked of the agent, which "
            f"logs who asked. The agent is killed, and the image becomes {IMAGE} again on the hub.",
        )
        await self._tell.prove(
            f"the hub has no credentials of {cluster}, whose API server refuses requests without",
            self._refused,
            within=SOON,
        )
        await self._tell.prove(
            f"the Deployment of {cluster} was written through the agent", self._logged, within=SOON
        )
        self._show_calls()
        await self._kill()
        await self._stage.restart(self._agent)
        await self._tell.prove(
            f"{cluster} has caught up: every member cluster has rolled out {IMAGE}",
            lambda: self._check.deployments(IMAGE),
            within=SOON,
        )
        await self._tell.prove(
            "its status says Applied for each cluster", self._check.status, within=SOON
        )

    async def _refused(self) -> str:
        """The hub can show nothing to the API server, which asks for something."""
        secrets = await self._stage.on_hub.list(
            _SECRETS, ACCESS_DATA, label_selector=f"{JOINED_LABEL}={self._cluster}"
        )
        if secrets:
            return f"the hub has {len(secrets)} Secrets with its credentials"
        async with KubeClient(self._without_credentials()) as stranger:
            try:
                await stranger.list(DEPLOYMENTS)
            except Forbidden:
                return ""
        return "it answers whoever asks"

    def _without_credentials(self) -> KubeConfig:
        text = self._stage.stack.kubeconfig.read_text(encoding="utf-8")
        document = only_context(cast("dict[str, Any]", yaml.safe_load(text)), self._cluster)
        document["users"] = [{**user, "user": {}} for user in document["users"]]
        return KubeConfig(orjson.dumps(document).decode(), own=True)

    async def _logged(self) -> str:
        if any(call["resource"] == "apps/deployments" for call in self._writes()):
            return ""
        return "its log has no call that wrote a Deployment"

    def _show_calls(self) -> None:
        columns = ("component", "object", "verb", "resource", "name", "outcome")
        self._tell.table(
            ("COMPONENT", "ON BEHALF OF", "VERB", "RESOURCE", "NAME", "OUTCOME"),
            [[escape(call[column]) for column in columns] for call in self._writes()][-_SHOWN:],
        )

    def _writes(self) -> list[dict[str, str]]:
        """The calls in the agent's log that wrote something, as the API server confirmed."""
        return [
            call
            for call in self._calls()
            if call["verb"] not in _READING and call["outcome"].startswith("2")
        ]

    def _calls(self) -> Iterator[dict[str, str]]:
        log = self._stage.stack.plan.layout.log(self._agent)
        for line in log.read_bytes().splitlines():
            entry: dict[str, str] = orjson.loads(line)
            if entry["event"] == "call":
                yield entry

    async def _kill(self) -> None:
        """Kill the agent, and change what has to be written through it."""
        stage, cluster = self._stage, self._cluster
        stage.stack.kill(self._agent)
        self._tell.alarm(f"{self._agent} got SIGKILL")
        change = {"op": "replace", "path": IMAGE_IN_TEMPLATE, "value": IMAGE}
        await stage.on_hub.patch(MCR, HUB_NAMESPACE, WEB, [change])
        await stage.order(cluster, "without-agent")
        await self._tell.prove("the other clusters have the change", self._others, within=SOON)
        await self._tell.prove(
            f"its status says that {cluster} is Unreachable", self._unreachable, within=SOON
        )
        await self._tell.prove(
            f"reading goes on, through its watcher: a new order of {cluster} is in the census",
            self._check.census,
            within=SOON,
        )

    async def _others(self) -> str:
        for member in self._stage.members:
            if member != self._cluster and (wrong := await self._check.image(member, IMAGE)):
                return f"{member} has {wrong}"
        return ""

    async def _unreachable(self) -> str:
        return await self._check.status({self._cluster: "Unreachable"})
