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
        obj = await self._api.get(f"/api/v1/namespaces/{namespace}/{kind}/{name}")
        if obj is None and not source.get("optional"):
            raise NotReadyError(f"{kind[:-1]} {name!r} not found")
        texts: dict[str, str] = (obj or {}).get("data") or {}
        if kind == "secrets":
            return {key: base64.b64decode(text) for key, text in texts.items()}
        binary: dict[str, str] = (obj or {}).get("binaryData") or {}
        decoded = {key: base64.b64decode(text) for key, text in binary.items()}
        return decoded | {key: text.encode() for key, text in texts.items()}

    def field(self, path: str) -> str:
        """A field of the pod for the downward API."""
        if match := _LABEL.fullmatch(path):
            return str(self.pod["metadata"].get(match[1], {}).get(match[2], ""))
        value = self.pod
        for segment in path.split("."):
            value = value.get(segment, {})
        if not isinstance(value, str):
            raise NotReadyError(f"fieldPath {path!r} is not set, or not understood")
        return value

    async def _value(self, value_from: Object) -> str | None:
        """A variable's value from elsewhere; None if it is optional and missing."""
        match value_from:
            case {"fieldRef": {"fieldPath": path}}:
                return self.field(path)
            case {"secretKeyRef": source}:
                kind = "secrets"
            case {"configMapKeyRef": source}:
                kind = "configmaps"
            case _:
                raise NotReadyError(f"not understood: valueFrom {sorted(value_from)}")
        content = (await self.data(kind, source, source["name"])).get(source["key"])
        if content is None and not source.get("optional"):
            raise NotReadyError(
                f"couldn't find key {source['key']} in {kind[:-1]} {source['name']}"
            )
        return None if content is None else content.decode()

    async def environment(self, container: Object, first: Mapping[str, str]) -> dict[str, str]:
        """The whole environment.

        Args:
            container: of the pod's spec.
            first: of the image and of the cluster; the spec may replace it.
        """
        variables = dict(first)
        for variable in container.get("envFrom", ()):
            kind = "secrets" if "secretRef" in variable else "configmaps"
            source = variable.get("secretRef") or variable["configMapRef"]
            values = await self.data(kind, source, source["name"])
            variables |= {
                variable.get("prefix", "") + key: text.decode() for key, text in values.items()
            }
        for variable in container.get("env", ()):
            if "valueFrom" in variable:
                value = await self._value(variable["valueFrom"])
            else:
                value = expanded(variable.get("value", ""), variables)
            if value is not None:
                variables[variable["name"]] = value
        return variables


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; a name that is unknown stays as it is written, and `$$` is a dollar."""

    def replace(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else environment.get(match["name"], match[0])

    return _REFERENCE.sub(replace, text)


def command_of(container: Object, environment: Mapping[str, str]) -> list[str]:
    """Program and arguments; images here have no ENTRYPOINT."""
    words = [*container.get("command", ()), *container.get("args", ())]
    if not words:
        raise NotReadyError("no command specified")
    return [expanded(word, environment) for word in words]
