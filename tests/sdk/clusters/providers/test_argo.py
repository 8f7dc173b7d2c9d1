"""Cluster Secrets of Argo CD: each field is used, or a problem of the cluster."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from fleetbus.clusters.providers.secrets import SecretsProvider
from fleetbus.clusters.registry import Clusters
from fleetbus.kube.connection.config import KubeConfig, connect
from fleetbus_emulator.apiserver import Cluster
from support.eventually import eventually
from support.rigs.hub_providers import ARGO, OURS, following, kubeconfig, secret, telling


async def test_cluster_secrets_of_argo_cd_are_clusters(hub: Cluster, access: KubeConfig):
    # No caData: a certificate that is none would be refused when the connection is made.
    config = {"bearerToken": "t0ken", "tlsClientConfig": {"serverName": "api.eu1"}}
    hub.create(
        "v1/secrets",
        secret(
            "cluster-1.2.3.4-99",
            {**ARGO, "env": "prod"},
            name="EU 1",
            server="https://1.2.3.4",
            config=json.dumps(config),
        ),
    )
    async with telling(SecretsProvider(access, namespace="default")) as sets:
        (info,) = await sets.next()
    assert (info.name, dict(info.labels)) == ("eu-1", {"env": "prod"})
    assert info.config is not None
    connection = await connect(info.config)
    assert connection.host == "https://1.2.3.4"
    assert connection.server_hostname == "api.eu1"
    assert dict(connection.headers) == {"Authorization": "Bearer t0ken"}


_ARGO_SERVER = "https://10.20.30.40:6443"
_IN_CLUSTER = {"server": "https://kubernetes.default.svc"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            {"config": {"execProviderConfig": {"command": "argocd-k8s-auth"}}},
            "'execProviderConfig'",
        ),
        ({"config": {"awsAuthConfig": {"clusterName": "a"}}}, "'awsAuthConfig' is not allowed"),
        ({"config": {"tlsClientConfig": {"insecure": True}}}, "'insecure' is not allowed"),
        ({"config": {"tlsClientConfig": {"insecure": "no"}}}, "'insecure' is not allowed"),
        ({"config": {"tlsClientConfig": {"caData": "?"}}}, "'certificate-authority-data'"),
        ({"config": {"tlsClientConfig": {"certData": "eA=="}}}, "'client-key' is missing"),
        ({"config": {"bearerToken": "t", "username": "me"}}, "only one is allowed"),
        ({"config": {"bearerToken": 5}}, "'bearerToken' is not a string"),
        ({"config": {"proxyUrl": "socks5://p:1080"}}, "'proxy-url'"),
        ({"config": {"proxyUrl": "http://169.254.169.254"}}, "proxy-url: 169.254.169.254"),
        ({"config": {"disableCompression": "yes"}}, "'disableCompression' is not true or false"),
        ({"config": {}, "namespaces": "a,b"}, "data key 'namespaces'"),
        (_IN_CLUSTER, "is the hub itself"),
        ({**_IN_CLUSTER, "config": {"tlsClientConfig": {"insecure": False}}}, "is the hub itself"),
        ({**_IN_CLUSTER, "config": None}, "is the hub itself"),
        ({"server": "https://kubernetes.default.svc/"}, "is the hub itself"),
        ({}, "has no data key 'config'"),
    ],
)
async def test_s7_what_cannot_be_honoured_in_a_secret_of_argo_cd_is_a_problem(
    hub: Cluster, access: KubeConfig, data: dict[str, Any], reason: str
):
    fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in data.items()}
    hub.create("v1/secrets", secret("c", ARGO, **{"server": _ARGO_SERVER, **fields}))
    async with telling(SecretsProvider(access, namespace="default")) as sets:
        (info,) = await sets.next()
    assert info.config is None
    assert info.problem.startswith("Secret default/c")
    assert reason in info.problem


async def test_every_other_field_of_a_secret_of_argo_cd_is_used(hub: Cluster, access: KubeConfig):
    config = {
        "username": "me",
        "password": "pass",
        "tlsClientConfig": {"insecure": False, "serverName": "kubernetes", "caData": None},
        "awsAuthConfig": None,
        "execProviderConfig": None,
        "disableCompression": True,
        "proxyUrl": "http://way-out.example.org:3128",
    }
    data = {"namespaces": "", "clusterResources": "false", "project": "p", "shard": "1"}
    text = json.dumps(config)
    body = secret("c", ARGO, name="via-proxy", server=f"{_ARGO_SERVER}/", config=text, **data)
    hub.create("v1/secrets", body)
    token = json.dumps({"bearerToken": "t"})
    hub.create("v1/secrets", secret("d", ARGO, **_IN_CLUSTER, config=token))
    async with telling(SecretsProvider(access, namespace="default")) as sets:
        info, itself = await sets.next()
    assert (info.name, info.problem) == ("via-proxy", "")
    assert info.config is not None
    connection = await connect(info.config)
    assert connection.host == _ARGO_SERVER
    assert connection.proxy == "http://way-out.example.org:3128"
    assert connection.server_hostname == "kubernetes"
    login = base64.b64encode(b"me:pass").decode()
    assert dict(connection.headers) == {
        "Authorization": f"Basic {login}",
        "Accept-Encoding": "identity",
    }
    assert itself.config is not None, "with credentials of its own it is a cluster like others"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('{"tlsClientConfig": "none"}', "'tlsClientConfig' is not a map"),
        ('{"tlsClientConfig": [1]}', "'tlsClientConfig' is not a map"),
        ('{"bearerToken": {"a": 1}}', "'bearerToken' is not a string"),
        ("[]", "data key 'config' is not a map"),
        ("{", "data key 'config' is not JSON"),
    ],
)
async def test_s7_a_malformed_secret_of_argo_cd_leaves_the_others_alone(
    hub: Cluster, access: KubeConfig, config: str, reason: str
):
    hub.create("v1/secrets", secret("zoo", OURS, kubeconfig=kubeconfig()))
    clusters = Clusters([SecretsProvider(access, namespace="default")])
    async with following(clusters):
        await eventually(lambda: [info.name for info in clusters.all()] == ["zoo"])
        hub.create("v1/secrets", secret("typo", ARGO, server="https://x", config=config))
        hub.create("v1/secrets", secret("late", OURS, kubeconfig=kubeconfig()))
        await eventually(lambda: [info.name for info in clusters.all()] == ["late", "typo", "zoo"])
        problems = {info.name: info.problem for info in clusters.all()}
    named = "" if "data" in reason else "config: "
    assert problems == {"late": "", "typo": f"Secret default/typo: {named}{reason}", "zoo": ""}
