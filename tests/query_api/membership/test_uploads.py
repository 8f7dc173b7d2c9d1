"""Uploads to join with are not trusted, and dead addresses hold up nobody (S7, T20)."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.rigs.membership import kubeconfig
from support.rigs.secured_api import grant, rule

if TYPE_CHECKING:
    from support.rigs.membership import MembershipRig

LIST = "/fleet/v1/resources/pods?namespace=prod"
SERVER = "https://192.0.2.1:6443"
"""An address of TEST-NET-1: nobody answers there."""


def with_cluster(**fields: Any) -> str:
    tree = json.loads(kubeconfig(SERVER, token="t"))
    tree["clusters"][0]["cluster"] |= fields
    return json.dumps(tree)


REFUSED = {
    "exec": (kubeconfig(SERVER, exec={"command": "id"}), "'exec' is not allowed"),
    "a file of a token": (
        kubeconfig(SERVER, tokenFile="/etc/passwd"),
        "'tokenFile' is not allowed",
    ),
    "a file of a key": (kubeconfig(SERVER, **{"client-key": "/k"}), "'client-key' is not allowed"),
    "a file of a CA": (with_cluster(**{"certificate-authority": "/ca"}), "certificate-authority"),
    "insecure": (with_cluster(**{"insecure-skip-tls-verify": True}), "insecure-skip-tls-verify"),
    "a proxy": (with_cluster(**{"proxy-url": "http://169.254.169.254"}), "proxy-url"),
    "link-local": (kubeconfig("https://169.254.169.254", token="t"), "169.254.169.254"),
    "plain http": (kubeconfig("http://192.0.2.1", token="t"), "http"),
    "aliases": ("clusters: &a []\nusers: *a\n", "alias"),
    "another document": ("a: b", "not a kubeconfig"),
    "no context": ("{clusters: [], users: [], contexts: []}", "current-context"),
    "bytes": ("\x00\x01", "kubeconfig"),
    "nothing": ("", "not a kubeconfig"),
    "nested": ("[" * 20_000, "kubeconfig"),
}


async def test_s7_a_kubeconfig_that_must_not_be_used_is_400(
    rig: MembershipRig, subtests: pytest.Subtests
):
    for content, word in REFUSED.values():
        with subtests.test(content=content, word=word):
            answer = await rig.join(rig.joiner("ann"), "c3", content)
            assert answer.status_code == 400, answer.text
            assert word in answer.json()["error"]
            assert rig.written() == []


async def test_s7_requests_that_are_no_upload_are_400(rig: MembershipRig):
    ann = rig.joiner("ann")
    headers = {"Authorization": f"Bearer {ann}"}
    good = rig.kubeconfig("eu1")
    cases: list[tuple[dict[str, Any], dict[str, str], str]] = [
        ({"files": {"kubeconfig": ("f", good)}}, {}, "cluster=NAME"),
        ({"files": {"kubeconfig": ("f", good)}}, {"cluster": "A/b"}, "A/b"),
        ({"files": {"kubeconfig": ("f", good)}}, {"cluster": "c3", "insecure": "yes"}, "insecure"),
        ({"files": {"kubeconfig": ("f", good)}}, {"cluster": "c3", "nmae": "x"}, "nmae"),
        ({"content": good}, {"cluster": "c3"}, "curl -F"),
        ({"files": {"config": ("f", good)}}, {"cluster": "c3"}, "curl -F"),
        ({"files": [("kubeconfig", ("f", good))] * 2}, {"cluster": "c3"}, "one field"),
        ({"files": {"kubeconfig": ("f", b"\xff\xfe")}}, {"cluster": "c3"}, "UTF-8"),
        (
            {"content": "x", "headers": {"content-type": "multipart/form-data"}},
            {"cluster": "c3"},
            "one field",
        ),
    ]
    for body, query, word in cases:
        sent = {**body, "headers": headers | body.get("headers", {})}
        answer = await rig.api.client.post("/v1/join", params=query, **sent)
        assert (answer.status_code, word in answer.json()["error"]) == (400, True), answer.text
    large = await rig.join(ann, "c3", "#" * 300_000)
    assert (large.status_code, "256 KiB" in large.json()["error"]) == (413, True)
    assert rig.written() == []


@pytest.mark.full  # it waits for 8 s
async def test_t20_a_dead_address_is_answered_within_10_s_and_holds_up_nobody(rig: MembershipRig):
    ann, reader = rig.joiner("ann"), rig.api.user("reader")
    grant(rig.api.hub, "reader", rule("list", "fleetbus.dev", "clusters/pods"))
    await rig.api.servers.partition("us1")  # accepts connections, and answers none of them
    before = time.monotonic()
    joining = asyncio.create_task(rig.join(ann, "c3", rig.kubeconfig("us1")))
    refused = await rig.join(ann, "c4", kubeconfig("https://127.0.0.1:1", token="t"))
    assert (refused.status_code, "cannot be used" in refused.json()["error"]) == (400, True)
    slowest = 0.0
    while not joining.done():
        began = time.monotonic()
        assert (await rig.api.get(reader, LIST)).status_code == 200
        slowest = max(slowest, time.monotonic() - began)
        await asyncio.sleep(0.1)  # the pace of the reads
    answer = await joining
    assert time.monotonic() - before < 10
    assert (answer.status_code, "does not answer" in answer.json()["error"]) == (400, True)
    assert slowest < 1
    assert rig.written() == []
