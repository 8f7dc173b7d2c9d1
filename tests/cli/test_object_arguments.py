"""TYPE and TYPE/NAME of `fleetbus get`, for every name that Kubernetes allows."""

from __future__ import annotations

from hypothesis import given

from fleetbus_cli.objects.arguments import split_name
from fleetbus_proto.resources import is_usual_version
from support.wire.kubernetes_names import API_GROUPS, API_VERSIONS, OBJECT_NAMES, PLURALS


@given(API_GROUPS, API_VERSIONS, PLURALS, OBJECT_NAMES)
def test_t19_a_type_and_a_name_are_distinguished_whatever_they_are_called(
    group: str, version: str, plural: str, name: str
):
    if is_usual_version(plural):
        return  # `v1/pods` is a type of the core group
    group = f"{group}.example.org"  # as in each definition
    full = f"{group}/{version}/{plural}"
    assert split_name(full) == (full, "")
    assert split_name(f"{full}/{name}") == (full, name)
    assert split_name(f"v1/{plural}/{name}") == (f"v1/{plural}", name)
    assert split_name(f"{plural}/{name}") == (plural, name)
    assert split_name(f"{plural}.{version}.{group}/{name}") == (f"{plural}.{version}.{group}", name)
