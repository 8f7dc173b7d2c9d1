"""Namespaces: how they begin, and how they end."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from support.api.conformance_client import Api, until
from support.api.conformance_objects import Space, config_map

NAMESPACES = "/api/v1/namespaces"


@pytest.fixture
def fresh(api: Api, space: Space, name: str) -> Generator[str]:
    """The path of a namespace of this case alone."""
    namespace = f"{space.namespace}-{name}"
    assert api.post(NAMESPACES, {"metadata": {"name": namespace}}).status == 201
    yield f"{NAMESPACES}/{namespace}"
    held = f"{NAMESPACES}/{namespace}/configmaps/held"
    api.merge(held, {"metadata": {"finalizers": None}})
    api.delete(f"{NAMESPACES}/{namespace}")


def test_a_namespace_is_active_and_labelled(api: Api, fresh: str):
    reply = api.get(fresh)
    assert reply.spec == {"finalizers": ["kubernetes"]}
    assert reply.body["status"] == {"phase": "Active"}
    name = reply.meta["name"]
    assert reply.meta["labels"] == {"kubernetes.io/metadata.name": name}
    assert "generation" not in reply.meta


def test_every_namespace_has_an_account_and_the_root_certificates(api: Api, fresh: str):
    until(lambda: api.get(f"{fresh}/serviceaccounts").names == ["default"])
    until(lambda: api.get(f"{fresh}/configmaps").names == ["kube-root-ca.crt"])


def test_a_terminating_namespace_takes_nothing_new(api: Api, fresh: str):
    meta = {"finalizers": ["example.com/f"]}
    assert api.post(f"{fresh}/configmaps", config_map("held", meta)).status == 201
    deleted = api.delete(fresh)
    assert (deleted.kind, deleted.body["status"]["phase"]) == ("Namespace", "Terminating")
    name = deleted.meta["name"]
    late = api.post(f"{fresh}/configmaps", config_map("late"))
    assert late.failed == (403, "Forbidden")
    assert late.causes == [("metadata.namespace", "NamespaceTerminating")]
    assert late.message == (
        f'configmaps "late" is forbidden: unable to create new content in namespace {name} '
        "because it is being terminated"
    )


def test_a_namespace_goes_with_all_that_is_in_it(api: Api, fresh: str):
    api.post(f"{fresh}/configmaps", config_map("a"))
    api.post(f"{fresh}/secrets", {"metadata": {"name": "b"}})
    before = api.get(NAMESPACES).rv
    api.delete(fresh)
    until(lambda: api.get(fresh).status == 404, 90)
    assert api.get(f"{fresh}/configmaps").items == []
    selector = f"metadata.name={fresh.rpartition('/')[2]}"
    stream = api.watch(NAMESPACES, resourceVersion=before, fieldSelector=selector)
    types = [event["type"] for event in stream.events]
    assert types[0] == "MODIFIED"
    assert types[-1] == "DELETED"
    assert stream.events[0]["object"]["status"]["phase"] == "Terminating"


def test_a_namespace_has_the_name_of_a_label(api: Api):
    reply = api.post(NAMESPACES, {"metadata": {"name": "with.dots"}})
    assert reply.failed == (422, "Invalid")
    assert reply.causes == [("metadata.name", "FieldValueInvalid")]
