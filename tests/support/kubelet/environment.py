"""Environment and command of a container, as the pod spec says them."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Final

from support.kubelet.api import Api, Object

_REFERENCE: Final = re.compile(r"\$(\$|\((?P<name>[A-Za-z_][\w.-]*)\))")
_LABEL: Final = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")


class NotReadyError(Exception):
    """Something that the pod names is missing; kubelet tries again."""


class References:
    """Reads Secrets, ConfigMaps and fields of the pod for one pod.

    Args:
        pod: as it is now; its status has the address.
    """

    def __init__(self, api: Api, pod: Object) -> None:
        self._api = api
        self.pod = pod

    async def data(self, kind: str, source: Object, name: str) -> dict[str, bytes]:
        """The data of a Secret or ConfigMap (`secrets` or `configmaps`); empty if it is optional.

        Raises:
            NotReadyError: it does not exist.
        """
        namespace = self.pod["metadata"]["namespace"]
        found = await self._api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        if found is None and not source.get("optional"):
            raise NotReadyError(f"{kind[:-1]} {name!r} not found")
        texts: dict[str, str] = (found or {}).get("data") or {}
        if kind == "secrets":
            return {key: base64.b64decode(text) for key, text in texts.items()}
        binary: dict[str, str] = (found or {}).get("binaryData") or {}
        decoded = {key: base64.b64decode(text) for key, text in binary.items()}
        return decoded | {key: text.encode() for key, text in texts.items()}

    def field(self, path: str) -> str:
        """A field of the pod for the downward API."""
        if found := _LABEL.fullmatch(path):
            return str(self.pod["metadata"].get(found[1], {}).get(found[2], ""))
        value = self.pod
        for part in path.split("."):
            value = value.get(part, {})
        if not isinstance(value, str):
            raise NotReadyError(f"fieldPath {path!r} is not set, or not understood")
        return value

    async def _value(self, one: Object) -> str | None:
        """A variable's value from elsewhere; None if it is optional and missing."""
        match one:
            case {"fieldRef": {"fieldPath": path}}:
                return self.field(path)
            case {"secretKeyRef": source}:
                kind = "secrets"
            case {"configMapKeyRef": source}:
                kind = "configmaps"
            case _:
                raise NotReadyError(f"not understood: valueFrom {sorted(one)}")
        found = (await self.data(kind, source, source["name"])).get(source["key"])
        if found is None and not source.get("optional"):
            raise NotReadyError(
                f"couldn't find key {source['key']} in {kind[:-1]} {source['name']}"
            )
        return None if found is None else found.decode()

    async def environment(self, container: Object, first: Mapping[str, str]) -> dict[str, str]:
        """The whole environment.

        Args:
            container: of the pod's spec.
            first: of the image and of the cluster; the spec may replace it.
        """
        found = dict(first)
        for one in container.get("envFrom", ()):
            kind = "secrets" if "secretRef" in one else "configmaps"
            source = one.get("secretRef") or one["configMapRef"]
            values = await self.data(kind, source, source["name"])
            found |= {one.get("prefix", "") + key: text.decode() for key, text in values.items()}
        for one in container.get("env", ()):
            if "valueFrom" in one:
                value = await self._value(one["valueFrom"])
            else:
                value = expanded(one.get("value", ""), found)
            if value is not None:
                found[one["name"]] = value
        return found


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; a name that is unknown stays as it is written, and `$$` is a dollar."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[1] == "$" else environment.get(found["name"], found[0])

    return _REFERENCE.sub(replace, text)


def command_of(container: Object, environment: Mapping[str, str]) -> list[str]:
    """Program and arguments; images here have no ENTRYPOINT."""
    words = [*container.get("command", ()), *container.get("args", ())]
    if not words:
        raise NotReadyError("no command specified")
    return [expanded(word, environment) for word in words]
