"""Every component as a process, with its rendered credentials on the rendered NATS and Valkey.

A right that is missing ends the process, or is in its log (rules S3, S4 and S8).
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from fleetbus_devfleet.processes.children import Child
from fleetbus_emulator.apiserver import Cluster, serve
from support.api.chart import crds
from support.api.custom_resource_definitions import CRDS
from support.api.rendered_chart import CHART, EU1, HUB, SEED, SHOP, Object
from support.eventually import eventually
from support.processes.services import Processes
from support.servers.rendered_servers import rendered_nats, rendered_valkey

HELLO = str(CHART.parents[1] / "examples" / "helloworld" / "controller.py")
VALUES: Object = {
    "credentials": {"seed": SEED},
    "watchers": {"clusters": [EU1, HUB]},
    "reconcilers": [{**SHOP, "controllers": ["helloworld"]}],
}
RESOURCES = [
    "v1/pods",
    "fleetbus.dev/v1alpha1/clusters",
    "fleetbus.dev/v1alpha1/multiclusterresources",
]
POD: Object = {
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


async def test_s3_s4_s8_every_component_works_with_its_own_rights(tmp_path: Path):
    async with AsyncExitStack() as stack:
        clusters = {name: Cluster(name) for name in ("eu1", "hub")}
        for one in crds():
            clusters["hub"].create(CRDS, one)
        servers = await stack.enter_async_context(serve(list(clusters.values())))
        kubeconfig = tmp_path / "kubeconfig"
        servers.write_kubeconfig(kubeconfig)
        nats = await stack.enter_async_context(rendered_nats(VALUES, tmp_path))
        valkey = await stack.enter_async_context(rendered_valkey(VALUES, tmp_path))
        start = Processes(tmp_path, kubeconfig, "", "", RESOURCES)
        hub = {
            "FLEETBUS_HUB_KUBECONFIG": str(kubeconfig),
            "FLEETBUS_HUB_CONTEXT": "hub",
            "FLEETBUS_HUB_CLUSTER": "hub",
            "FLEETBUS_ALLOW_LOOPBACK": "true",
        }

        def rights(user: str) -> dict[str, str]:
            found = {} if user == "query-api" else nats.environment(user) | hub
            return found if user.startswith("watcher-") else found | valkey.environment(user)

        children: list[Child] = [
            start.reconciler(
                "projector",
                projector=True,
                FLEETBUS_RECONCILER_NAME="projector",
                **rights("projector"),
            ),
            start.watcher("eu1", **rights("watcher-eu1")),
            start.watcher("hub", **rights("watcher-hub")),
            start.reconciler(
                "shop",
                HELLO,
                projector=False,
                FLEETBUS_RECONCILER_NAME="reconciler.shop",
                **rights("reconciler-shop"),
            ),
            start.distributor("distributor", **rights("distributor")),
            start.query_api("query-api", **rights("query-api")),
        ]
        for child in children:
            stack.push_async_callback(child.stop)
        for child in children:
            await start.ready(child)
        clusters["eu1"].create("v1/pods", POD, "default")
        log = tmp_path / "shop.log"
        await eventually(lambda: "eu1 / default / web" in log.read_text(), timedelta(seconds=20))
    for child in children:
        text = (tmp_path / f"{child.name}.log").read_text().lower()
        assert "violation" not in text, child.name
        assert "noperm" not in text, child.name
