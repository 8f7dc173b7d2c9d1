"""Rule S7: hostile kubeconfigs, and objects of the hub that nobody expected."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.clusters.info import ClusterInfo
from fleetbus.clusters.providers.cluster import ClusterProvider
from fleetbus.clusters.providers.cluster_api import ClusterApiProvider
from fleetbus.clusters.providers.cluster_inventory import ClusterInventoryProvider
from fleetbus.clusters.providers.file import read_clusters
from fleetbus.clusters.providers.secrets import SecretsProvider
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import KubeConfig, read_upload, upload_refusal
from fleetbus.kube.connection.yaml_document import parse_yaml
from support.rows import each_row


def document(**changes: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://one"}}],
        "users": [{"name": "a", "user": {"token": "s3cret"}}],
    }
    return plain | changes


BOMB: Final = (
    "a0: &a0 [l,l,l,l,l,l,l,l,l,l]\n"
    + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    + "contexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: *a8, cluster: {}}]\n"
)


def test_s7_a_bomb_of_aliases_is_refused_at_once():
    started = time.monotonic()
    assert "YAML aliases are not allowed (line 2)" in upload_refusal(KubeConfig(BOMB))
    assert time.monotonic() - started < 1


@each_row("bracket", ["[", "{a: ", "- "])
def test_s7_depth_is_refused_before_the_parser_of_c_overflows_its_stack(bracket: str):
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_yaml(bracket * 50_000)


def test_s7_an_upload_has_256_kib_at_most():
    assert upload_refusal(KubeConfig(json.dumps(document(extensions="x" * 250_000)))) == ""
    large = json.dumps(document(extensions="\u00e9" * 131_000), ensure_ascii=False)
    assert len(large) < 2**18
    assert upload_refusal(KubeConfig(large)) == "kubeconfig: larger than 256 KiB"


def test_s7_an_upload_of_the_largest_size_is_read_within_a_second():
    entry = "- {{name: e{0}, extension: {{a: b}}}}\n"
    extensions = "".join(map(entry.format, range(6_000)))
    text = f"{yaml.safe_dump(document())}extensions:\n{extensions}"
    assert 2**17 < len(text) < 2**18
    started = time.process_time()
    read_upload(text, "Secret a/b")
    assert time.process_time() - started < 2


NOT_STRINGS: Final[list[tuple[dict[str, Any], str]]] = [
    ({"clusters": [{"name": ["a"], "cluster": {}}]}, "name of an entry of 'clusters'"),
    ({"users": [{"name": None, "user": {}}]}, "name of an entry of 'users'"),
    ({"contexts": [{"name": {}, "context": {}}]}, "name of an entry of 'contexts'"),
    ({"clusters": [{"name": "a", "cluster": {"server": ["x"]}}]}, "'server' is not a string"),
    ({"users": [{"name": "a", "user": {"token": {"a": 1}}}]}, "'token' is not a string"),
]


@each_row(("changes", "reason"), NOT_STRINGS)
def test_s7_names_and_credentials_are_strings(changes: dict[str, Any], reason: str):
    assert reason in upload_refusal(KubeConfig(json.dumps(document(**changes))))


def test_s7_nothing_but_the_current_context_of_an_upload_is_kept():
    both = [{"name": n, "user": {"token": f"t0ken-{n}"}} for n in ("a", "b")]
    config = read_upload(yaml.safe_dump(document(users=both)), "Secret n/s")
    assert "t0ken-a" in config.document
    assert "t0ken-b" not in config.document
    assert config.document.startswith("{"), "JSON, which is parsed fifty times as fast"


# --- no field of any object ends a provider --------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
Objects = dict[tuple[str, str], Any]


def encoded(**data: str) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}


def secret(labels: dict[str, str], data: dict[str, str], name: str = "eu1") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "n", "uid": "u", "resourceVersion": "1"}
    return {"metadata": {**metadata, "labels": labels}, "data": data}


KUBECONFIG: Final = json.dumps(document())
OURS: Final = secret({"fleetbus.dev/kubeconfig": "true"}, encoded(kubeconfig=KUBECONFIG))
ARGO: Final = secret(
    {"argocd.argoproj.io/secret-type": "cluster"},
    encoded(server="https://one", name="eu1", config='{"tlsClientConfig": {"serverName": "h"}}'),
)
MEMBER: Final = {
    "metadata": {"name": "eu1", "labels": {"region": "eu"}},
    "spec": {"kubeconfigSecretRef": {"namespace": "n", "name": "eu1"}, "resources": ["v1/pods"]},
}
CAPI: Final[dict[str, Any]] = {
    "metadata": {"name": "eu1", "namespace": "n", "labels": {}},
    "status": {
        "initialization": {"controlPlaneInitialized": True},
        "conditions": [{"type": "ControlPlaneInitialized", "status": "True"}],
    },
}
CAPI_SECRET: Final = secret({}, encoded(value=KUBECONFIG), "eu1-kubeconfig")
PROFILE: Final = {
    "metadata": {"name": "eu1", "namespace": "n"},
    "status": {
        "conditions": [{"type": "ControlPlaneHealthy", "status": "True", "message": "m"}],
        "accessProviders": [{"name": "p", "cluster": {"server": "https://one"}}],
    },
}
PROFILE_SECRET: Final = secret({"x-k8s.io/cluster-profile": "eu1"}, encoded(Config=KUBECONFIG))


def places(obj: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in a tree."""
    if isinstance(obj, dict):
        children: Any = cast("dict[str, Any]", obj).items()
    else:
        children = enumerate(cast("list[Any]", obj)) if isinstance(obj, list) else ()
    return [at, *(place for key, value in children for place in places(value, (*at, key)))]


def replaced(obj: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = json.loads(json.dumps(obj))
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return changed


def encode_inner(obj: Any, key: str, value: Any) -> Any:
    """The same Secret, with a document under a key that says something else."""
    return {**obj, "data": {**obj["data"], **encoded(**{key: json.dumps(value)})}}


PLUGIN = {"command": "x", "apiVersion": "client.authentication.k8s.io/v1"}
PROVIDERS: Final[dict[str, tuple[Callable[[], Any], tuple[Any, ...], str]]] = {
    "secrets": (lambda: SecretsProvider(None, namespace="n"), (OURS,), "kubeconfig"),
    "argo": (lambda: SecretsProvider(None, namespace="n"), (ARGO,), "config"),
    "cluster": (lambda: ClusterProvider(None), (MEMBER, OURS), "kubeconfig"),
    "cluster-api": (
        lambda: ClusterApiProvider(None, namespace="n"),
        (CAPI, CAPI_SECRET),
        "value",
    ),
    "inventory": (
        lambda: ClusterInventoryProvider(None, namespace="n"),
        (PROFILE, PROFILE_SECRET),
        "Config",
    ),
    "plugin": (
        lambda: ClusterInventoryProvider(None, namespace="n", plugins={"p": PLUGIN}),
        (PROFILE,),
        "",
    ),
}


def found_of(objects: tuple[Any, ...], kind: str) -> list[Objects]:
    """The contents of the mirrors for these objects, each beside a valid one named `good`."""
    variants: list[Objects] = []
    for obj in objects:
        name = str(obj["metadata"]["name"])
        namespace = "" if kind == "cluster" and obj is objects[0] else "n"
        variants.append(
            {(namespace, name): obj, (namespace, name.replace("eu1", "good")): good(obj)}
        )
    return variants if kind != "plugin" else [*variants, {}]


def good(obj: Any) -> Any:
    text = json.dumps(obj).replace("eu1", "good")
    if obj is ARGO:
        return replaced(json.loads(text), ("data", "name"), encoded(name="good")["name"])
    return json.loads(text)


@pytest.mark.parametrize("kind", PROVIDERS)
@given(data=st.data())
def test_s7_no_value_of_any_field_of_one_object_harms_another(kind: str, data: st.DataObject):
    make, objects, key = PROVIDERS[kind]
    variants = found_of(objects, kind)
    assert "good" in names_of(make(), variants)
    index = data.draw(st.integers(0, len(objects) - 1))
    obj = objects[index]
    if key and key in obj.get("data", {}) and data.draw(st.booleans()):
        inner = json.loads(base64.b64decode(obj["data"][key]))
        place = data.draw(st.sampled_from(places(inner)))
        broken = encode_inner(obj, key, replaced(inner, place, data.draw(VALUES)))
    else:
        place = data.draw(st.sampled_from([p for p in places(obj) if p]))
        broken = replaced(obj, place, data.draw(VALUES))
    (at,) = [where for where, value in variants[index].items() if value is obj]
    variants[index][at] = broken
    assert "good" in names_of(make(), variants)


def names_of(provider: Any, object_sets: list[Objects]) -> list[str]:
    infos: list[ClusterInfo] = provider._read(object_sets)
    return [info.name for info in infos if not info.problem]


@given(data=st.data())
def test_s7_no_value_of_any_field_of_a_clusters_file_harms_another(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
):
    folder = tmp_path_factory.getbasetemp() / "s7-file"
    folder.mkdir(exist_ok=True)
    (folder / "k").write_text(KUBECONFIG)
    entry = {
        "name": "eu1",
        "kubeconfig": "k",
        "context": "a",
        "labels": {"region": "eu"},
        "hub": True,
        "resources": ["v1/pods"],
        "deny": ["core/events"],
    }
    foreign = {"metadata": {"clusterName": "eu1", "configPath": "k", "resources": [{"rType": "x"}]}}
    shape = data.draw(st.sampled_from([entry, foreign]))
    broken = replaced(shape, data.draw(st.sampled_from(places(shape))), data.draw(VALUES))
    path: Path = folder / "clusters.yaml"
    clusters = [broken, {"name": "good", "kubeconfig": "k"}]
    path.write_text(yaml.dump({"clusters": clusters}, Dumper=yaml.CSafeDumper))
    assert [info.name for info in read_clusters(path) if not info.problem][-1:] == ["good"]


@given(place=st.sampled_from(places(document())), value=VALUES)
def test_s7_an_upload_is_read_or_refused_whatever_it_holds(place: tuple[Any, ...], value: Any):
    text = json.dumps(replaced(document(), place, value))
    try:
        config = read_upload(text, "Secret n/s")
    except ConfigError:
        return
    assert isinstance(upload_refusal(config), str)
