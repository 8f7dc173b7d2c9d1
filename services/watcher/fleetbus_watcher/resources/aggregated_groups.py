"""API groups that are served by an aggregated API server (rule W17)."""

from __future__ import annotations

from typing import Any

import msgspec

from fleetbus.errors import NotFound
from fleetbus.kube.client import KubeClient
from fleetbus.kube.responses import invalid_response

_PATH = "/apis/apiregistration.k8s.io/v1/apiservices"


class _Spec(msgspec.Struct):
    group: str = ""
    service: dict[str, Any] | None = None
    """None for what the API server serves itself, CRDs above all."""


class _Item(msgspec.Struct):
    spec: _Spec


class _List(msgspec.Struct):
    items: list[_Item]


async def aggregated_groups(client: KubeClient) -> frozenset[str]:
    """Return the groups whose APIService names a service, whether that answers or not.

    Raises:
        KubeError: they could not be read (W8); without APIServices there are no such groups.
    """
    try:
        found = msgspec.convert(await client.get_json(_PATH), _List)
    except NotFound:
        return frozenset()
    except msgspec.ValidationError as e:
        raise invalid_response(f"invalid list of APIServices: {e}") from e
    return frozenset(item.spec.group for item in found.items if item.spec.service is not None)
