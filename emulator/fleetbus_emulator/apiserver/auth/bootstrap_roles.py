"""The roles and bindings that every cluster with RBAC begins with, as of Kubernetes 1.34.

Of the about seventy of a real server those are here that people bind or that everybody has; those
of its own components (controllers, kubelets, scheduler) are not, because none of them run here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleetbus_emulator.apiserver.auth.access import AUTHENTICATED, MASTERS, UNAUTHENTICATED
from fleetbus_emulator.apiserver.auth.roles import GROUP

if TYPE_CHECKING:
    from collections.abc import Iterator

JsonObject = dict[str, Any]
Table = tuple[tuple[str, str, str], ...]
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"
AUTHORIZATION, AUTHENTICATION = "authorization.k8s.io", "authentication.k8s.io"
READ = "get list watch"
WRITE = "create delete deletecollection patch update"
ALL = "create delete deletecollection get list patch update watch"
PUBLIC_PATHS = ["/healthz", "/livez", "/readyz", "/version", "/version/"]
DISCOVERY_PATHS = [
    "/api",
    "/api/*",
    "/apis",
    "/apis/*",
    "/healthz",
    "/livez",
    "/openapi",
    "/openapi/*",
    "/readyz",
    "/version",
    "/version/",
]
SCALED = "daemonsets deployments deployments/scale replicasets replicasets/scale"
STATEFUL = "statefulsets statefulsets/scale"
# group, resources, verbs
TO_ADMIN: Table = (
    (AUTHORIZATION, "localsubjectaccessreviews", "create"),
    (GROUP, "rolebindings roles", ALL),
)
TO_EDIT: Table = (
    ("", "pods/attach pods/exec pods/portforward pods/proxy secrets services/proxy", READ),
    ("", "serviceaccounts", "impersonate"),
    ("", "pods pods/attach pods/exec pods/portforward pods/proxy", WRITE),
    ("", "pods/eviction", "create"),
    (
        "",
        (
            "configmaps events persistentvolumeclaims replicationcontrollers "
            "replicationcontrollers/scale secrets serviceaccounts services services/proxy"
        ),
        WRITE,
    ),
    ("", "serviceaccounts/token", "create"),
    ("apps", f"{SCALED} deployments/rollback {STATEFUL}", WRITE),
    ("autoscaling", "horizontalpodautoscalers", WRITE),
    ("batch", "cronjobs jobs", WRITE),
    (
        "extensions",
        f"{SCALED} deployments/rollback ingresses networkpolicies replicationcontrollers/scale",
        WRITE,
    ),
    ("policy", "poddisruptionbudgets", WRITE),
    ("networking.k8s.io", "ingresses networkpolicies", WRITE),
    ("coordination.k8s.io", "leases", ALL),
    ("resource.k8s.io", "resourceclaims resourceclaimtemplates", WRITE),
)
TO_VIEW: Table = (
    (
        "",
        (
            "configmaps endpoints persistentvolumeclaims persistentvolumeclaims/status pods "
            "replicationcontrollers replicationcontrollers/scale serviceaccounts services "
            "services/status"
        ),
        READ,
    ),
    (
        "",
        (
            "bindings events limitranges namespaces/status pods/log pods/status "
            "replicationcontrollers/status resourcequotas resourcequotas/status"
        ),
        READ,
    ),
    ("", "namespaces", READ),
    ("discovery.k8s.io", "endpointslices", READ),
    (
        "apps",
        (
            f"controllerrevisions {SCALED} daemonsets/status deployments/status replicasets/status "
            f"{STATEFUL} statefulsets/status"
        ),
        READ,
    ),
    ("autoscaling", "horizontalpodautoscalers horizontalpodautoscalers/status", READ),
    ("batch", "cronjobs cronjobs/status jobs jobs/status", READ),
    (
        "extensions",
        (
            f"{SCALED} daemonsets/status deployments/status ingresses ingresses/status "
            "networkpolicies replicasets/status replicationcontrollers/scale"
        ),
        READ,
    ),
    ("policy", "poddisruptionbudgets poddisruptionbudgets/status", READ),
    ("networking.k8s.io", "ingresses ingresses/status networkpolicies", READ),
    (
        "resource.k8s.io",
        "resourceclaims resourceclaims/status resourceclaimtemplates",
        READ,
    ),
)
AUTH_DELEGATOR: Table = (
    (AUTHENTICATION, "tokenreviews", "create"),
    (AUTHORIZATION, "subjectaccessreviews", "create"),
)
BASIC_USER: Table = (
    (AUTHORIZATION, "selfsubjectaccessreviews selfsubjectrulesreviews", "create"),
    (AUTHENTICATION, "selfsubjectreviews", "create"),
)
ABOVE = {"edit": "admin", "view": "edit"}  # the role that contains the other
# The groups that a ClusterRole is bound to by a ClusterRoleBinding of the same name.
BOUND: dict[str, tuple[str, ...]] = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}


def bootstrap_objects() -> Iterator[tuple[str, JsonObject]]:
    """Each object with the plural of its type."""
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    every_path = {"nonResourceURLs": ["*"], "verbs": ["*"]}
    roles: dict[str, list[JsonObject]] = {
        "cluster-admin": [everything, every_path],
        "system:auth-delegator": _rules(AUTH_DELEGATOR),
        "system:basic-user": _rules(BASIC_USER),
        "system:discovery": [{"nonResourceURLs": DISCOVERY_PATHS, "verbs": ["get"]}],
        "system:public-info-viewer": [{"nonResourceURLs": PUBLIC_PATHS, "verbs": ["get"]}],
    }
    for name, rules in roles.items():
        yield "clusterroles", {**_head("ClusterRole", name), "rules": rules}
    for name, rules in (("admin", TO_ADMIN), ("edit", TO_EDIT), ("view", TO_VIEW)):
        labels = {f"{AGGREGATE}{name}": "true"}
        role = _head("ClusterRole", f"system:aggregate-to-{name}", labels)
        yield "clusterroles", {**role, "rules": _rules(rules)}
        labels = {f"{AGGREGATE}{ABOVE[name]}": "true"} if name in ABOVE else {}
        role = _head("ClusterRole", name, labels)
        selector = {"matchLabels": {f"{AGGREGATE}{name}": "true"}}
        yield "clusterroles", {**role, "aggregationRule": {"clusterRoleSelectors": [selector]}}
    for name, groups in BOUND.items():
        ref = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": GROUP, "kind": "Group", "name": group} for group in groups]
        binding = _head("ClusterRoleBinding", name)
        yield "clusterrolebindings", {**binding, "roleRef": ref, "subjects": subjects}


def _head(kind: str, name: str, labels: dict[str, str] | None = None) -> JsonObject:
    metadata = {
        "name": name,
        "annotations": {"rbac.authorization.kubernetes.io/autoupdate": "true"},
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults", **(labels or {})},
    }
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": metadata}


def _rules(table: Table) -> list[JsonObject]:
    return [
        {"apiGroups": [group], "resources": sorted(resources.split()), "verbs": verbs.split()}
        for group, resources, verbs in table
    ]
