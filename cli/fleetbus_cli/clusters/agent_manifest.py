"""The manifest that `fleetbus join --agent` prints for `kubectl apply` in the member.

Its objects are those of charts/fleetbus-agent, which `make reference` renders into
`agent_objects.json`, so that both ways install the same.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from dataclasses import dataclass
from typing import Any, Final, cast

from fleetbus.kube.unwatched_types import DENIED

NAMESPACE: Final = "fleetbus-agent"
_PLACEHOLDER: Final = "-placeholder"
_CHECKSUM: Final = "checksum/registration"
_VIEW: Final = ":rights:view"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentInstall:
    """The choices of one installation in a member."""

    cluster: str
    url: str
    """Where the member reaches NATS."""
    ca: str = ""
    """The CA of its certificate, in PEM; empty for one that the image trusts."""
    seed: str
    """The seed of the one-time nkey."""
    image: str
    """With its tag or digest."""
    rights: str = "readOnly"
    """readOnly, namespaces or full."""
    namespaces: tuple[str, ...] = ()
    """Where the hub may write, for the rights `namespaces`."""

    def __repr__(self) -> str:
        return f"AgentInstall(cluster={self.cluster!r}, url={self.url!r}, rights={self.rights!r})"


def manifest(install: AgentInstall) -> list[dict[str, Any]]:
    """The objects, the namespace first."""
    folder = importlib.resources.files("fleetbus_cli.clusters")
    objects: list[Any] = json.loads((folder / "agent_objects.json").read_text("utf-8"))
    namespace: dict[str, Any] = {"apiVersion": "v1", "kind": "Namespace"}
    namespace["metadata"] = {"name": NAMESPACE}
    made = [_filled(obj, install) for each in objects for obj in _kept(each, install)]
    return [namespace, *made]


def helm_values(install: AgentInstall) -> dict[str, Any]:
    """The same as values of the chart."""
    values: dict[str, Any] = {
        "cluster": install.cluster,
        "nats": {"url": install.url} | ({"ca": install.ca} if install.ca else {}),
        "registration": {"seed": install.seed},
        "access": {"mode": install.rights, "namespaces": list(install.namespaces)},
    }
    if image := _image_values(install.image):
        values["image"] = image
    return values


def _image_values(image: str) -> dict[str, str]:
    """Those of a reference with a digest or a tag; of another the chart's own serve."""
    if "@" in image:
        repository, _, digest = image.partition("@")
        return {"repository": repository, "digest": digest}
    repository, _, tag = image.rpartition(":")
    return {"repository": repository, "tag": tag} if repository and "/" not in tag else {}


def _kept(obj: dict[str, Any], install: AgentInstall) -> list[dict[str, Any]]:
    """The object, once for each namespace that it is made for; none if it is not needed."""
    if obj["kind"] == "ConfigMap" and not install.ca:
        return []
    if obj["metadata"].get("namespace") != f"namespace{_PLACEHOLDER}":
        return [obj]
    return [
        {**obj, "metadata": {**obj["metadata"], "namespace": name}} for name in install.namespaces
    ]


def _filled(obj: dict[str, Any], install: AgentInstall) -> dict[str, Any]:
    filled = cast("dict[str, Any]", _replaced(obj, install))
    metadata: dict[str, Any] = filled["metadata"]
    if filled["kind"] == "ClusterRoleBinding" and metadata["name"].endswith(_VIEW):
        role = "cluster-admin" if install.rights == "full" else "view"
        # Named after its role, which a binding cannot change.
        metadata["name"] = f"{metadata['name'].removesuffix(_VIEW)}:rights:{role}"
        filled["roleRef"]["name"] = role
    if filled["kind"] == "Deployment":
        template = filled["spec"]["template"]
        checksum = hashlib.sha256(f"{install.seed}\n".encode()).hexdigest()[:32]
        template["metadata"]["annotations"][_CHECKSUM] = checksum
        for container in template["spec"]["containers"]:
            for entry in container["env"]:
                if entry["name"] == "FLEETBUS_AGENT_READ_ONLY":
                    entry["value"] = str(install.rights == "readOnly").lower()
                if entry["name"] == "FLEETBUS_WATCHER_DENY" and install.rights == "full":
                    entry["value"] = json.dumps(DENIED, separators=(",", ":"))
    return filled


def _replaced(tree: Any, install: AgentInstall) -> Any:
    """The tree with the values in place of the placeholders, and without what the CA needs."""
    if isinstance(tree, list):
        items = cast("list[Any]", tree)
        return [_replaced(item, install) for item in items if install.ca or not _is_of_ca(item)]
    if isinstance(tree, dict):
        fields = cast("dict[str, Any]", tree)
        return {key: _replaced(value, install) for key, value in fields.items()}
    values = {
        f"cluster{_PLACEHOLDER}": install.cluster,
        f"nats://url{_PLACEHOLDER}": install.url,
        f"image{_PLACEHOLDER}:tag": install.image,
        "-----BEGIN CERTIFICATE-----\n": install.ca,
        "SU" + "A" * 56: install.seed,
    }
    return values.get(tree, tree) if isinstance(tree, str) else tree


def _is_of_ca(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    return cast("dict[str, Any]", item).get("name") in ("ca", "FLEETBUS_NATS_CA_FILE")
