"""The RBAC rules of the two accounts that fleetbus has on a member."""

from __future__ import annotations

from typing import Any

import pytest

from fleetbus.clusters.member_rights import WRITER, token_rules, watcher_rules, writer_rules
from fleetbus.errors import ConfigError
from fleetbus_proto.resources import Resource, parse_resource
from support.rows import each_row

_PODS, _DEPLOYMENTS = parse_resource("v1/pods"), parse_resource("apps/v1/deployments")


def _verbs(rules: list[dict[str, Any]], group: str, resource: str, name: str = "") -> set[str]:
    """The verbs that the rules give for one object, or for all of a resource."""
    return {
        verb
        for rule in rules
        if group in rule["apiGroups"] and resource in rule["resources"]
        if not rule.get("resourceNames") or name in rule["resourceNames"]
        for verb in rule["verbs"]
    }


def test_s7_a_watcher_reads_what_is_watched_and_nothing_else() -> None:
    rules = watcher_rules([_PODS, _DEPLOYMENTS])
    assert _verbs(rules, "", "pods") == {"list", "watch"}
    assert _verbs(rules, "apps", "deployments") == {"list", "watch"}
    assert _verbs(rules, "apiextensions.k8s.io", "customresourcedefinitions") == {"list"}
    assert _verbs(rules, "", "namespaces", "kube-system") == {"get"}
    assert _verbs(rules, "", "namespaces") == set()
    assert _verbs(rules, "", "secrets") == set()
    assert {verb for rule in rules for verb in rule["verbs"]} == {"get", "list", "watch"}


def test_a_writer_of_nothing_only_learns_which_cluster_answers() -> None:
    assert writer_rules([]) == [
        {
            "apiGroups": [""],
            "resources": ["namespaces"],
            "verbs": ["get"],
            "resourceNames": ["kube-system"],
        }
    ]


def test_a_writer_writes_what_was_named() -> None:
    status = Resource("apps", "v1", "deployments/status")
    rules = writer_rules([_DEPLOYMENTS, status])
    writes = {"get", "list", "create", "update", "patch", "delete"}
    assert _verbs(rules, "apps", "deployments") == writes
    assert _verbs(rules, "apps", "deployments/status") == {"get", "update", "patch"}
    assert _verbs(rules, "", "namespaces", "any") == {"get"}
    assert _verbs(rules, "", "secrets") == set()


def test_d10_nobody_deletes_a_namespace() -> None:
    rules = writer_rules([parse_resource("v1/namespaces")])
    assert "create" in _verbs(rules, "", "namespaces")
    assert "delete" not in _verbs(rules, "", "namespaces")


def test_an_account_renews_only_its_own_token() -> None:
    (rule,) = token_rules(WRITER)
    assert rule["resources"] == ["serviceaccounts/token"]
    assert rule["resourceNames"] == [WRITER]
    assert rule["verbs"] == ["create"]


@each_row("plural", ["*", "pods/exec", "serviceaccounts/token", "nodes/proxy"])
def test_s7_wildcards_and_dangerous_subresources_are_refused(plural: str) -> None:
    with pytest.raises(ConfigError, match="no rights can be given"):
        writer_rules([Resource("core", "v1", plural)])
    with pytest.raises(ConfigError, match="no rights can be given"):
        watcher_rules([Resource("core", "v1", plural)])


def test_the_same_resources_give_the_same_rules_in_any_order() -> None:
    assert watcher_rules([_PODS, _DEPLOYMENTS]) == watcher_rules([_DEPLOYMENTS, _PODS, _PODS])
