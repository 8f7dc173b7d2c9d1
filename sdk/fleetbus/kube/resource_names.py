"""Singulars and short names of Kubernetes' own resources and ours, as in kubectl.

Commands resolve names without asking a server, so they have those of Kubernetes 1.37; a test
compares them with its sources. Discovery has them for every resource, and the snapshot keeps what
it says of all resources that this table lacks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Final

from fleetbus.process.close_names import close_names
from fleetbus_proto.resources import Resource, ResourceName

_MIN_SIMILARITY: Final = 0.7
"""From 0 to 1, for names that differ in spelling."""

_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "admissionregistration.k8s.io/mutatingadmissionpolicies": ("mutatingadmissionpolicy",),
    "admissionregistration.k8s.io/mutatingadmissionpolicybindings": (
        "mutatingadmissionpolicybinding",
    ),
    "admissionregistration.k8s.io/mutatingwebhookconfigurations": ("mutatingwebhookconfiguration",),
    "admissionregistration.k8s.io/validatingadmissionpolicies": ("validatingadmissionpolicy",),
    "admissionregistration.k8s.io/validatingadmissionpolicybindings": (
        "validatingadmissionpolicybinding",
    ),
    "admissionregistration.k8s.io/validatingwebhookconfigurations": (
        "validatingwebhookconfiguration",
    ),
    "apiextensions.k8s.io/customresourcedefinitions": ("customresourcedefinition", "crd", "crds"),
    "apiregistration.k8s.io/apiservices": ("apiservice",),
    "apps/controllerrevisions": ("controllerrevision",),
    "apps/daemonsets": ("daemonset", "ds"),
    "apps/deployments": ("deployment", "deploy"),
    "apps/replicasets": ("replicaset", "rs"),
    "apps/statefulsets": ("statefulset", "sts"),
    "autoscaling/horizontalpodautoscalers": ("horizontalpodautoscaler", "hpa"),
    "batch/cronjobs": ("cronjob", "cj"),
    "batch/jobs": ("job",),
    "certificates.k8s.io/certificatesigningrequests": ("certificatesigningrequest", "csr"),
    "certificates.k8s.io/clustertrustbundles": ("clustertrustbundle",),
    "certificates.k8s.io/podcertificaterequests": ("podcertificaterequest",),
    "coordination.k8s.io/leasecandidates": ("leasecandidate",),
    "coordination.k8s.io/leases": ("lease",),
    "core/componentstatuses": ("componentstatus", "cs"),
    "core/configmaps": ("configmap", "cm"),
    "core/endpoints": ("endpoints", "ep"),
    "core/events": ("event", "ev"),
    "core/limitranges": ("limitrange", "limits"),
    "core/namespaces": ("namespace", "ns"),
    "core/nodes": ("node", "no"),
    "core/persistentvolumeclaims": ("persistentvolumeclaim", "pvc"),
    "core/persistentvolumes": ("persistentvolume", "pv"),
    "core/pods": ("pod", "po"),
    "core/podtemplates": ("podtemplate",),
    "core/replicationcontrollers": ("replicationcontroller", "rc"),
    "core/resourcequotas": ("resourcequota", "quota"),
    "core/secrets": ("secret",),
    "core/serviceaccounts": ("serviceaccount", "sa"),
    "core/services": ("service", "svc"),
    "discovery.k8s.io/endpointslices": ("endpointslice",),
    "events.k8s.io/events": ("event", "ev"),
    "fleetbus.dev/clusters": ("cluster", "fcl"),
    "fleetbus.dev/multiclusterresources": ("multiclusterresource", "mcr", "rr"),
    "flowcontrol.apiserver.k8s.io/flowschemas": ("flowschema",),
    "flowcontrol.apiserver.k8s.io/prioritylevelconfigurations": ("prioritylevelconfiguration",),
    "internal.apiserver.k8s.io/storageversions": ("storageversion",),
    "lifecycle.k8s.io/evictionrequests": ("evictionrequest",),
    "lifecycle.k8s.io/evictions": ("eviction",),
    "networking.k8s.io/ingressclasses": ("ingressclass",),
    "networking.k8s.io/ingresses": ("ingress", "ing"),
    "networking.k8s.io/ipaddresses": ("ipaddress", "ip"),
    "networking.k8s.io/networkpolicies": ("networkpolicy", "netpol"),
    "networking.k8s.io/servicecidrs": ("servicecidr",),
    "node.k8s.io/runtimeclasses": ("runtimeclass",),
    "policy/poddisruptionbudgets": ("poddisruptionbudget", "pdb"),
    "rbac.authorization.k8s.io/clusterrolebindings": ("clusterrolebinding",),
    "rbac.authorization.k8s.io/clusterroles": ("clusterrole",),
    "rbac.authorization.k8s.io/rolebindings": ("rolebinding",),
    "rbac.authorization.k8s.io/roles": ("role",),
    "resource.k8s.io/deviceclasses": ("deviceclass",),
    "resource.k8s.io/devicetaintrules": ("devicetaintrule",),
    "resource.k8s.io/resourceclaims": ("resourceclaim",),
    "resource.k8s.io/resourceclaimtemplates": ("resourceclaimtemplate",),
    "resource.k8s.io/resourcepoolstatusrequests": ("resourcepoolstatusrequest",),
    "resource.k8s.io/resourceslices": ("resourceslice",),
    "scheduling.k8s.io/compositepodgroups": ("compositepodgroup",),
    "scheduling.k8s.io/podgroups": ("podgroup",),
    "scheduling.k8s.io/priorityclasses": ("priorityclass", "pc"),
    "scheduling.k8s.io/workloads": ("workload",),
    "storage.k8s.io/csidrivers": ("csidriver",),
    "storage.k8s.io/csinodes": ("csinode",),
    "storage.k8s.io/csistoragecapacities": ("csistoragecapacity",),
    "storage.k8s.io/storageclasses": ("storageclass", "sc"),
    "storage.k8s.io/volumeattachments": ("volumeattachment",),
    "storage.k8s.io/volumeattributesclasses": ("volumeattributesclass", "vac"),
    "storagemigration.k8s.io/storageversionmigrations": ("storageversionmigration",),
}
"""The singular, which is the kind in lower case, and then the short names of each resource key."""


def _by_name(chosen: slice) -> Mapping[str, Collection[str]]:
    keys_by_name: dict[str, tuple[str, ...]] = {}
    for key, names in _NAMES.items():
        for name in names[chosen]:
            keys_by_name[name] = (*keys_by_name.get(name, ()), key)
    return keys_by_name


CATEGORIES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(
        (
            "apps/daemonsets",
            "apps/deployments",
            "apps/replicasets",
            "apps/statefulsets",
            "autoscaling/horizontalpodautoscalers",
            "batch/cronjobs",
            "batch/jobs",
            "core/pods",
            "core/replicationcontrollers",
            "core/services",
        ),
        ("all",),
    ),
    **dict.fromkeys(
        (
            "admissionregistration.k8s.io/mutatingadmissionpolicies",
            "admissionregistration.k8s.io/mutatingadmissionpolicybindings",
            "admissionregistration.k8s.io/mutatingwebhookconfigurations",
            "admissionregistration.k8s.io/validatingadmissionpolicies",
            "admissionregistration.k8s.io/validatingadmissionpolicybindings",
            "admissionregistration.k8s.io/validatingwebhookconfigurations",
            "apiextensions.k8s.io/customresourcedefinitions",
            "apiregistration.k8s.io/apiservices",
        ),
        ("api-extensions",),
    ),
}
"""The categories of each resource key that is in one."""
_ALL_NAMES: Final = _by_name(slice(None))


def names_of(key: str) -> Sequence[str]:
    """The singular and the short names of a resource key; none if they are not known."""
    return _NAMES.get(key, ())


def is_reserved(word: str) -> bool:
    """Whether a word is the singular or a short name of a resource in the table."""
    return word in _ALL_NAMES


def built_in_plurals() -> Collection[str]:
    """The plurals of Kubernetes' own resources and ours."""
    return {key.rpartition("/")[2] for key in _NAMES}


def with_plural(name: ResourceName) -> ResourceName:
    """The same resource by its plural, and by its group if the name is unique.

    An unknown name counts as a plural: no API server is asked.
    """
    keys = [key.split("/") for key in _ALL_NAMES.get(name.plural, ())]
    candidates = [(group, plural) for group, plural in keys if name.group in (None, group)]
    if not candidates:
        return name
    group = candidates[0][0] if len(candidates) == 1 else name.group
    return ResourceName(group, name.version, candidates[0][1])


def suggest_resource(resource: Resource, available: Collection[str]) -> str:
    """Suggest the closest resource name among the known ones; "" if none is close.

    A singular or short name comes first, then a similar spelling; the group decides between equals.

    Args:
        resource: the name that was not found.
        available: resource keys, like `apps/deployments`.
    """
    for group in (resource.group, None):
        named = with_plural(ResourceName(group, None, resource.plural))
        if f"{named.group}/{named.plural}" in available:
            return f"{named.group}/{named.plural}"
    groups: dict[str, list[str]] = {}
    for key in sorted(available):
        group, _, plural = key.rpartition("/")
        groups.setdefault(plural, []).append(group)
    for plural in close_names(resource.plural, groups, cutoff=_MIN_SIMILARITY):
        group = max(groups[plural], key=lambda candidate: _similarity(candidate, resource.group))
        return f"{group}/{plural}"
    return ""


def _similarity(first: str, other: str) -> float:
    longest = 253  # of a group; comparing takes the square of the length
    return SequenceMatcher(None, first[:longest], other[:longest]).ratio()
