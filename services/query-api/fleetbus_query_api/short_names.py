"""The short names of Kubernetes' own resources and of ours.

The snapshot does not keep what discovery says about short names; kinds serve as singulars.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_BY_RESOURCE: Final[Mapping[str, tuple[str, ...]]] = {
    "core/componentstatuses": ("cs",),
    "core/configmaps": ("cm",),
    "core/endpoints": ("ep",),
    "core/events": ("ev",),
    "core/limitranges": ("limits",),
    "core/namespaces": ("ns",),
    "core/nodes": ("no",),
    "core/persistentvolumeclaims": ("pvc",),
    "core/persistentvolumes": ("pv",),
    "core/pods": ("po",),
    "core/replicationcontrollers": ("rc",),
    "core/resourcequotas": ("quota",),
    "core/serviceaccounts": ("sa",),
    "core/services": ("svc",),
    "apiextensions.k8s.io/customresourcedefinitions": ("crd", "crds"),
    "apps/daemonsets": ("ds",),
    "apps/deployments": ("deploy",),
    "apps/replicasets": ("rs",),
    "apps/statefulsets": ("sts",),
    "autoscaling/horizontalpodautoscalers": ("hpa",),
    "batch/cronjobs": ("cj",),
    "certificates.k8s.io/certificatesigningrequests": ("csr",),
    "events.k8s.io/events": ("ev",),
    "fleetbus.dev/clusters": ("fcl", "cl"),
    "fleetbus.dev/multiclusterresources": ("mcr", "rr"),
    "networking.k8s.io/ingresses": ("ing",),
    "networking.k8s.io/networkpolicies": ("netpol",),
    "policy/poddisruptionbudgets": ("pdb",),
    "scheduling.k8s.io/priorityclasses": ("pc",),
    "storage.k8s.io/storageclasses": ("sc",),
}


def _by_short_name() -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for key, names in _BY_RESOURCE.items():
        for name in names:
            found[name] = (*found.get(name, ()), key)
    return found


SHORT_NAMES: Final[Mapping[str, tuple[str, ...]]] = _by_short_name()
"""Resource keys by short name."""
