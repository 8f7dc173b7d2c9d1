"""One PodGhost in a cluster for each Pod of other clusters.

FLEETBUS_EXAMPLE_SOURCES names the clusters of the Pods, FLEETBUS_EXAMPLE_DESTINATION that of the
ghosts; its definition is in crd.yaml.
"""

import os
from datetime import timedelta

import fleetbus

SOURCES = os.environ.get("FLEETBUS_EXAMPLE_SOURCES", "cluster1").split(",")
DESTINATION = os.environ.get("FLEETBUS_EXAMPLE_DESTINATION", "cluster2")

podghost = fleetbus.Children(
    "podghost",
    parents="v1/pods",
    parent_clusters=SOURCES,
    children="examples.fleetbus.dev/v1alpha1/podghosts",
    child_clusters=[DESTINATION],
    finalizer=False,  # Pods come and go without waiting for anybody
    recheck=timedelta(seconds=float(os.environ.get("FLEETBUS_EXAMPLE_AGAIN_SECONDS", "5"))),
)


@podghost.desired
async def ghost(pod: fleetbus.Object, cluster: str, _fleet: fleetbus.Fleet) -> list[fleetbus.Child]:
    metadata = pod["metadata"]
    body = {
        "apiVersion": "examples.fleetbus.dev/v1alpha1",
        "kind": "PodGhost",
        # Readable, and never that of another Pod: `a-b/c` and `a/b-c` have two ghosts.
        "metadata": {"name": fleetbus.child_name(pod, cluster), "namespace": "default"},
        "spec": {"cluster": cluster, "namespace": metadata["namespace"], "name": metadata["name"]},
    }
    return [fleetbus.Child(DESTINATION, body)]
