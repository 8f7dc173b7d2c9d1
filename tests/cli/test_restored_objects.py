"""Objects are put back without the fields that their cluster assigned, as by Velero 1.17."""

from __future__ import annotations

from typing import Any

from fleetbus_cli.history.restorable import DeletedObject, restored_tree, select_restorable
from support.rows import each_row


def deleted(resource: str, tree: dict[str, Any], name: str = "a") -> DeletedObject:
    tree = {**tree, "metadata": {"name": name, **tree.get("metadata", {})}}
    return DeletedObject(
        cluster="eu1",
        resource=resource,
        namespace="",
        name=name,
        uid=f"uid-of-{resource}-{name}",
        version="v1",
        deleted_at="2026-01-01T00:00:00Z",
        tree=tree,
    )


CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], list[str]]] = {
    # input, what is put back, what is reported
    "metadata": (
        "core/configmaps",
        {
            "metadata": {
                "uid": "u",
                "resourceVersion": "1",
                "generation": 4,
                "generateName": "a-",
                "selfLink": "/a",
                "creationTimestamp": "x",
                "deletionTimestamp": "x",
                "deletionGracePeriodSeconds": 0,
                "managedFields": [{}],
                "finalizers": ["foregroundDeletion", "acme.org/x"],
                "ownerReferences": [{"kind": "A", "name": "gone", "uid": "gone"}],
                "labels": {"a": "b"},
            },
            "data": {"k": "v"},
            "status": {"x": 1},
        },
        {"metadata": {"finalizers": ["acme.org/x"], "labels": {"a": "b"}}, "data": {"k": "v"}},
        [],
    ),
    "service": (
        "core/services",
        {
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": "10.0.0.1",
                "clusterIPs": ["10.0.0.1"],
                "ports": [
                    {"name": "a", "port": 80, "nodePort": 30080},
                    {"port": 81, "nodePort": 30081},
                ],
                "externalTrafficPolicy": "Local",
                "healthCheckNodePort": 31111,
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "1.2.3.4"}]}},
        },
        {
            "spec": {
                "type": "LoadBalancer",
                "ports": [{"name": "a", "port": 80}, {"port": 81}],
                "externalTrafficPolicy": "Local",
            }
        },
        [
            "spec.clusterIP",
            "spec.clusterIPs",
            "spec.healthCheckNodePort",
            "spec.ports[].nodePort",
        ],
    ),
    "headless service": (
        "core/services",
        {"spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}},
        {"spec": {"clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}},
        [],
    ),
    "external service": (
        "core/services",
        {"spec": {"type": "ExternalName", "externalName": "example.org"}},
        {"spec": {"type": "ExternalName", "externalName": "example.org"}},
        [],
    ),
    "claim": (
        "core/persistentvolumeclaims",
        {
            "metadata": {
                "annotations": {
                    "pv.kubernetes.io/bind-completed": "yes",
                    "pv.kubernetes.io/bound-by-controller": "yes",
                    "volume.kubernetes.io/storage-provisioner": "csi",
                    "volume.beta.kubernetes.io/storage-provisioner": "csi",
                    "volume.kubernetes.io/selected-node": "n1",
                    "mine": "x",
                }
            },
            "spec": {"storageClassName": "fast", "volumeName": "pvc-1"},
            "status": {"phase": "Bound"},
        },
        {"metadata": {"annotations": {"mine": "x"}}, "spec": {"storageClassName": "fast"}},
        [
            "metadata.annotations[pv.kubernetes.io/bind-completed]",
            "metadata.annotations[pv.kubernetes.io/bound-by-controller]",
            "metadata.annotations[volume.kubernetes.io/storage-provisioner]",
            "metadata.annotations[volume.beta.kubernetes.io/storage-provisioner]",
            "metadata.annotations[volume.kubernetes.io/selected-node]",
            "spec.volumeName",
        ],
    ),
    "volume": (
        "core/persistentvolumes",
        {
            "metadata": {"annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}},
            "spec": {
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "n", "name": "c", "uid": "u", "resourceVersion": "7"},
            },
        },
        {
            "metadata": {"annotations": {}},
            "spec": {
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": "n", "name": "c"},
            },
        },
        [
            "spec.claimRef.uid",
            "spec.claimRef.resourceVersion",
            "metadata.annotations[pv.kubernetes.io/bound-by-controller]",
        ],
    ),
    "pod": (
        "core/pods",
        {
            "spec": {
                "nodeName": "n1",
                "priority": 7,
                "priorityClassName": "high",
                "serviceAccountName": "sa",
                "volumes": [
                    {"name": "kube-api-access-x"},
                    {"name": "sa-token-y"},
                    {"name": "data"},
                ],
                "containers": [
                    {"name": "c", "volumeMounts": [{"name": "sa-token-y"}, {"name": "data"}]}
                ],
                "initContainers": [{"name": "i", "volumeMounts": [{"name": "kube-api-access-x"}]}],
                "ephemeralContainers": [{"name": "debug"}],
            },
            "status": {"phase": "Running"},
        },
        {
            "spec": {
                "priorityClassName": "high",
                "serviceAccountName": "sa",
                "volumes": [{"name": "data"}],
                "containers": [{"name": "c", "volumeMounts": [{"name": "data"}]}],
                "initContainers": [{"name": "i", "volumeMounts": []}],
            }
        },
        [
            "spec.nodeName",
            "spec.priority",
            "spec.ephemeralContainers",
            "spec.volumes[] of tokens",
        ],
    ),
    "job": (
        "batch/jobs",
        {
            "metadata": {"labels": {"controller-uid": "u", "job-name": "a", "mine": "x"}},
            "spec": {
                "selector": {"matchLabels": {"batch.kubernetes.io/controller-uid": "u"}},
                "template": {
                    "metadata": {"labels": {"batch.kubernetes.io/controller-uid": "u", "app": "x"}}
                },
            },
        },
        {
            "metadata": {"labels": {"mine": "x"}},
            "spec": {"template": {"metadata": {"labels": {"app": "x"}}}},
        },
        [
            "spec.selector",
            "metadata.labels[controller-uid]",
            "metadata.labels[job-name]",
            "spec.template.metadata.labels[batch.kubernetes.io/controller-uid]",
        ],
    ),
    "service account": (
        "core/serviceaccounts",
        {
            "secrets": [{"name": "a-token-x"}, {"name": "a-dockercfg-y"}, {"name": "mine"}],
            "imagePullSecrets": [{"name": "a-dockercfg-y"}, {"name": "registry"}],
        },
        {"secrets": [{"name": "mine"}], "imagePullSecrets": [{"name": "registry"}]},
        ["secrets[] of tokens", "imagePullSecrets[] of tokens"],
    ),
    "namespace": (
        "core/namespaces",
        {"spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Terminating"}},
        {"spec": {}},
        [],
    ),
}


@each_row("name", CASES)
def test_what_a_cluster_assigned_is_stripped_and_reported(name: str):
    resource, tree, expected, reported = CASES[name]
    restored, stripped = restored_tree(deleted(resource, tree), {})
    assert restored.pop("apiVersion")
    assert restored["metadata"].pop("name") == "a"
    assert restored == {"metadata": {}, **expected}
    assert stripped == reported


def test_a_claim_stays_bound_to_a_volume_that_is_put_back_with_it():
    claim = deleted("core/persistentvolumeclaims", {"spec": {"volumeName": "pv-1"}})
    assert restored_tree(claim, {}, {"pv-1"})[0]["spec"] == {"volumeName": "pv-1"}
    assert restored_tree(claim, {}, {"pv-2"})[0]["spec"] == {}


JOB_FAILED = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}


@each_row(
    ("resource", "tree", "reason"),
    [
        ("core/pods", {"status": {"phase": "Succeeded"}}, "would run again"),
        ("core/pods", {"status": {"phase": "Failed"}}, "would run again"),
        ("core/pods", {"status": {"phase": "Running"}}, ""),
        ("batch/jobs", {"status": {"completionTime": "2026-01-01T00:00:00Z"}}, "would run again"),
        ("batch/jobs", {"status": {"conditions": [JOB_FAILED]}}, "would run again"),
        ("batch/jobs", {"status": {"conditions": [{**JOB_FAILED, "status": "False"}]}}, ""),
        ("batch/jobs", {"status": {"conditions": "odd", "failed": 1}}, ""),
        ("batch/jobs", {"status": {"active": 1}}, ""),
        (
            "core/persistentvolumes",
            {"spec": {"persistentVolumeReclaimPolicy": "Delete"}},
            "reclaim policy is Delete",
        ),
        ("core/persistentvolumes", {"spec": {"persistentVolumeReclaimPolicy": "Retain"}}, ""),
        (
            "apiregistration.k8s.io/apiservices",
            {"metadata": {"labels": {"kube-aggregator.kubernetes.io/automanaged": "true"}}},
            "recreates it",
        ),
    ],
)
def test_what_velero_leaves_out_is_left_out_with_a_reason(
    resource: str, tree: dict[str, Any], reason: str
):
    (candidate,) = select_restorable([deleted(resource, tree)])
    assert reason in candidate.refusal
    assert bool(candidate.refusal) == bool(reason)


@each_row("resource", ["storage.k8s.io/volumeattachments", "storage.k8s.io/csinodes", "core/nodes"])
def test_what_a_node_or_its_controller_makes_is_not_put_back(resource: str):
    assert select_restorable([deleted(resource, {})]) == []
