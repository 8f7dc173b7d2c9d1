"""Dropping and redacting before publishing, by the settings: rules S1, W5, W16."""

from __future__ import annotations

import base64
import copy
import json
import re
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbus.errors import ConfigError
from fleetbus.kube.list_watch.listing import read_map
from fleetbus.kube.redaction_paths import MARK, Cut, cut_members, parse_path
from fleetbus.process.settings import load_settings
from fleetbus_watcher.main import main
from fleetbus_watcher.settings import WatcherSettings
from fleetbus_watcher.transform.rules import Rule, matches
from fleetbus_watcher.transform.transform import VERSION, transform_of
from support.eventually import eventually
from support.processes.in_process_commands import one_line, status_of
from support.rigs.watcher import Rig
from support.rows import each_row

PODS = "core/pods"
HIDDEN = "<redacted>"
POD: dict[str, Any] = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "a",
        "annotations": {"vault.io/token": "t", "vault.io/role": "r", "note": "n"},
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "containers": [
            {"name": "one", "env": [{"name": "A", "value": "1"}, {"name": "B"}]},
            {"name": "two", "args": ["x", "y"], "ports": None},
        ]
    },
}


def rule(resource: str = PODS, **fields: Any) -> Rule:
    return Rule.model_validate({"resource": resource, **fields})


def transformed(obj: Any, *rules: Rule, key: str = PODS) -> Any:
    fields = read_map(json.dumps(obj).encode())
    return json.loads(transform_of(rules, key).apply(fields, read_map(fields["metadata"])))


# --- paths ------------------------------------------------------------------------------------


@each_row(
    ("text", "path"),
    [
        ("spec", ("spec",)),
        (".spec.a-b", ("spec", "a-b")),
        ("spec.containers[*].env[*].value", ("spec", "containers", "*", "env", "*", "value")),
        ("metadata.annotations[vault.io/*]", ("metadata", "annotations", "vault.io/*")),
        ("data['a]b'][\"c'd\"]", ("data", "a]b", "c'd")),
        ("[spec].x[0]", ("spec", "x", "0")),
        ("spec.*.b*d", ("spec", "*", "b*d")),
    ],
)
def test_a_path_names_one_pattern_for_each_level(text: str, path: tuple[str, ...]):
    assert parse_path(text) == path


@each_row(
    "text",
    [
        *("", ".", "a.", "a..b", "a[", "a[]", "a]b", "a[b]c", "[a].[b]", "a['b]", "a[''].b"),
        *("/spec/a", "$.spec", "metadata.annotations.vault.io/token", "a.b\\.c", " spec", "spec a"),
        *("metadata", "*", "*.name", "metadata.*", "metadata[u*d]", "kind", "metadata.namespace"),
    ],
)
def test_a_path_that_would_hide_nothing_or_too_much_is_refused(text: str):
    with pytest.raises(ValueError, match="path"):
        parse_path(text)


_NAMES = st.sampled_from(["a", "b", "a.b", "0", "1", ""])
_TREES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.text('xé"', max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=12,
)
_OBJECTS = st.dictionaries(_NAMES, _TREES, max_size=4)
_PATHS = st.lists(st.sampled_from(["a", "b", "*", "a*", "0", "*b"]), min_size=1, max_size=4)
_CUTS = st.lists(st.tuples(_PATHS, st.booleans()), max_size=4)


@given(_OBJECTS, _CUTS)
def test_s1_what_is_cut_out_of_the_bytes_is_what_would_be_cut_out_of_the_tree(
    tree: dict[str, Any], cuts: list[tuple[list[str], bool]]
):
    root = Cut()
    for path, is_dropped in cuts:
        place = root.at(tuple(path))
        place.is_dropped, place.mark = (
            (True, place.mark) if is_dropped else (place.is_dropped, MARK)
        )
    members = read_map(json.dumps(tree).encode())
    cut_members(members, root)
    assert json.loads(msgspec.json.encode(members)) == _expected(tree, cuts)


def _expected(tree: Any, cuts: list[tuple[list[str], bool]]) -> Any:
    """The same, plainly: hide first, then drop, from the last item on."""
    expected = copy.deepcopy(tree)
    for path, is_dropped in cuts:
        if not is_dropped:
            _hide(expected, path)
    dropped = [path for path, is_dropped in cuts if is_dropped]
    return _dropped(expected, dropped)


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(pattern.replace("*", ".*"), name, re.DOTALL) is not None


def _members(tree: Any) -> dict[Any, Any]:
    if isinstance(tree, list):
        return dict(enumerate(cast("list[Any]", tree)))
    return cast("dict[Any, Any]", tree) if isinstance(tree, dict) else {}


def _hide(tree: Any, path: list[str]) -> None:
    for name, value in list(_members(tree).items()):
        if _fits(path[0], str(name)):
            if path[1:]:
                _hide(value, path[1:])
            else:
                tree[name] = _hidden(value)


def _hidden(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_hidden(item) for item in cast("list[Any]", tree)]
    if isinstance(tree, dict):
        return {name: _hidden(item) for name, item in cast("dict[str, Any]", tree).items()}
    return None if tree is None else HIDDEN


def _dropped(tree: Any, paths: list[list[str]]) -> Any:
    left: list[tuple[Any, Any]] = []
    for name, value in _members(tree).items():
        fitting = [path for path in paths if _fits(path[0], str(name))]
        if any(len(path) == 1 for path in fitting):
            continue
        left.append((name, _dropped(value, [path[1:] for path in fitting])))
    if isinstance(tree, list):
        return [value for _, value in left]
    return dict(left) if isinstance(tree, dict) else tree


# --- rules ------------------------------------------------------------------------------------


def test_s1_dropped_is_gone_hidden_keeps_its_name_and_all_else_stays():
    chosen = rule(
        drop=["spec.containers[*].args", "metadata.annotations[note]"],
        redact=["spec.containers[*].env[*].value", "metadata.annotations[vault.io/t*]"],
    )
    expected = copy.deepcopy(POD)
    del expected["metadata"]["managedFields"], expected["spec"]["containers"][1]["args"]
    expected["metadata"]["annotations"] = {"vault.io/token": HIDDEN, "vault.io/role": "r"}
    expected["spec"]["containers"][0]["env"][0]["value"] = HIDDEN
    assert transformed(POD, chosen) == expected
    assert transformed(POD, chosen, key="core/nodes") == transformed(POD)


def test_s1_bytes_beside_what_is_cut_stay_as_the_server_sent_them():
    fields = read_map(b'{"kind":"X","metadata":{"name":"a"},"spec":{"a":1,"b":{ "c" : 1.0 }}}')
    done = transform_of((rule(drop=["spec.a"]),), PODS).apply(fields, read_map(fields["metadata"]))
    assert done == b'{"kind":"X","metadata":{"name":"a"},"spec":{"b":{ "c" : 1.0 }}}'


@each_row("path", ["spec.p", "spec.m.p", "spec.m[*]", "spec.l[*].p"])
def test_s1_a_member_written_twice_is_hidden_twice(path: str):
    spec = b'{"p":"K","p":1,"m":{"p":"K"},"m":{"p":1},"l":[{"p":"K","p":1}]}'
    fields = read_map(b'{"kind":"X","metadata":{"name":"a"},"spec":' + spec + b"}")
    hidden = transform_of((rule(redact=[path]),), PODS)
    done = hidden.apply(fields, read_map(fields["metadata"]))
    place = {"spec.p": b'"p":"<redacted>","m"', "spec.l[*].p": b'"l":[{"p":"<redacted>"}]'}
    assert place.get(path, b'"m":{"p":"<redacted>"}') in done


def test_managed_fields_are_kept_for_whom_they_are_wanted():
    keeping = rule("*", keepManagedFields=True)
    assert transformed(POD, keeping) == POD
    assert "managedFields" not in transformed(POD)["metadata"]


@each_row(
    ("pattern", "key", "fits"),
    [
        ("*", "apps/deployments", True),
        ("*/*", "core/pods", True),
        ("*.example.com/*", "a.example.com/widgets", True),
        ("*.example.com/*", "example.org/widgets", False),
        ("core/pod*", "core/podtemplates", True),
        ("core/pods", "core/podsx", False),
        ("core/pods", "xcore/pods", False),
    ],
)
def test_a_rule_is_for_the_resources_that_its_pattern_fits(pattern: str, key: str, fits: bool):
    assert matches(rule(pattern), key) is fits


def test_s1_the_values_of_a_secret_are_hidden_and_its_names_stay():
    secret = {
        "metadata": {"name": "s", "annotations": {"x": "y"}},
        "type": "Opaque",
        "data": {"password": "Y2FuYXJ5", "empty": None},
        "stringData": {"token": "canary"},
    }
    body = transformed(secret, key="core/secrets")
    assert body["stringData"] == {"token": HIDDEN}
    # Clients decode these values, so the mark is base64 too.
    assert base64.b64decode(body["data"]["password"]).decode() == HIDDEN
    assert (body["data"].keys(), body["type"]) == ({"password", "empty"}, "Opaque")
    assert transformed(secret, key="core/configmaps") == secret
    for odd in ("canary", ["canary", {"canary": ["canary"]}], 5, True):
        done = transformed(secret | {"data": odd}, key="core/secrets")["data"]
        assert not {'"canary"', "5", "true"} & set(
            re.findall(r'"[^"]*"(?!:)|5|true', json.dumps(done))
        )


def test_s1_what_cannot_be_looked_through_is_refused_whole():
    fields = read_map(
        b'{"metadata":{"name":"a"},"spec":{"\\ud800":1}}'.replace(b"\\ud800", b"\xff")
    )
    hidden = transform_of((rule(drop=["spec.x"]),), PODS)
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        hidden.apply(fields, read_map(fields["metadata"]))


# --- versions ---------------------------------------------------------------------------------


def version(*rules: Rule, key: str = PODS) -> str:
    return transform_of(rules, key).version


def test_w5_equal_transforms_have_equal_versions_however_they_are_written():
    first = rule(drop=["spec.a", "spec.b"], redact=["data[x]"])
    other = (rule(drop=["[spec].b"]), rule("core/*", redact=["data.x"], drop=[".spec.a"]))
    assert version(first) == version(*other)
    assert version() == version(rule("core/nodes", drop=["spec"])) == VERSION


def test_w5_each_part_of_a_transform_changes_its_version():
    versions = [
        version(),
        version(key="core/secrets"),
        version(rule(drop=["spec.a"])),
        version(rule(drop=["spec.a.b"])),
        version(rule(redact=["spec.a"])),
        version(rule(drop=["spec.a"], keepManagedFields=True)),
        version(rule(keepManagedFields=True)),
    ]
    assert len(set(versions)) == len(versions)


async def test_w5_a_changed_rule_costs_an_epoch_of_exactly_the_resources_it_is_for(rig: Rig):
    rig.write("a", "canary")
    resources: dict[str, Any] = {"resources": ("configmaps", "services")}
    async with rig.watching(**resources):
        await eventually(lambda: rig.checkpoint("services"))
        await eventually(rig.checkpoint)
    hidden = rule("core/configmaps", redact=["data"])
    async with rig.watching(**resources, transforms=(hidden,)):
        await eventually(lambda: _has_transform(rig, version(hidden, key="core/configmaps")))
        assert (len(rig.requests("list")), len(rig.requests("list", "services"))) == (2, 1)
        rig.write("a", "canary again")
        await eventually(rig.is_mirrored)
    first, *later = [event.object for event in await rig.events()]
    assert b"canary" in (first or b"")
    assert len(later) == 2
    assert all(json.loads(body or b"")["data"] == {"k": HIDDEN} for body in later)
    async with rig.watching_on(**resources, transforms=(hidden,)):
        assert len(rig.requests("list")) == 2


async def _has_transform(rig: Rig, version_wanted: str) -> bool:
    record = await rig.checkpoint()
    return record is not None and record["transform"] == version_wanted


# --- Secrets ----------------------------------------------------------------------------------


def test_s1_of_a_secret_only_annotations_that_say_whose_it_is_show_their_values():
    copied = json.dumps({"kind": "Secret", "data": {"password": "Y2FuYXJ5"}})
    keepers = (
        *("kapp.k14s.io/original", "banzaicloud.com/last-applied"),
        *("objectset.rio.cattle.io/applied", "reconcile.external-secrets.io/data", "mine"),
    )
    plain = {"meta.helm.sh/release-name": "web", "fleetbus.dev/owner": "{}"}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": copied}
    annotations = plain | applied | dict.fromkeys(keepers, copied)
    secret = {"metadata": {"name": "s", "labels": {"app": "web"}, "annotations": annotations}}
    body = transformed(secret, key="core/secrets")
    assert body["metadata"]["annotations"] == plain | dict.fromkeys(keepers, HIDDEN)
    assert body["metadata"]["labels"] == {"app": "web"}
    only_applied = {"metadata": {"name": "s", "annotations": applied}}
    assert transformed(only_applied, key="core/secrets") == {"metadata": {"name": "s"}}
    none = {"metadata": {"name": "s", "annotations": None}}
    assert transformed(none, key="core/secrets") == none
    annotations_shown = transformed(secret, key="core/configmaps")["metadata"]["annotations"]
    assert annotations_shown == plain | dict.fromkeys(keepers, copied)


async def test_s1_secrets_are_read_when_that_is_wanted_and_never_what_helm_keeps(rig: Rig):
    def make(name: str, kind: str) -> None:
        data = {"release": base64.b64encode(b"canary").decode()}
        secret = {"metadata": {"name": name}, "type": kind, "data": data}
        rig.cluster.create("v1/secrets", secret, "default")

    make("sh.helm.release.v1.x.v1", "helm.sh/release.v1")
    make("plain", "Opaque")
    async with rig.watching(resources=("secrets",), secrets=True):
        make("sh.helm.release.v1.x.v2", "helm.sh/release.v1")
        make("later", "Opaque")
        rig.cluster.delete("v1/secrets", "default", "later")
        await eventually(lambda: _has_been_deleted(rig))
        events = await rig.events("secrets")
    assert {event.name for event in events} == {"plain", "later"}
    for event in events:
        body = json.loads(event.object or b"")
        assert body["data"].keys() == {"release"}
        assert "canary" not in base64.b64decode(body["data"]["release"]).decode()
    # W6: the selector that keeps Helm's out is none that a Secret could leave.
    assert not any(event.left_selection for event in events)


async def _has_been_deleted(rig: Rig) -> bool:
    return any(str(event.verb) == "deleted" for event in await rig.events("secrets"))


async def test_s1_everything_includes_secrets_only_where_they_are_wanted(rig: Rig):
    async with rig.watching(resources=("*",), secrets=True, deny=()):
        await eventually(lambda: rig.status("secrets"))
    async with rig.watching_on(resources=("*",), secrets=True, deny=("core/secrets",)):
        beats = len(await rig.heartbeats())
        await eventually(lambda: _beats(rig, beats + 1))
        assert await rig.status("secrets") is None


async def _beats(rig: Rig, number: int) -> bool:
    return len(await rig.heartbeats()) >= number


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([{"resource": "pods"}], "TRANSFORMS.0.resource: Value error, 'pods' is no group/plural"),
        ([{"resource": "core/pods", "drop": ["spec."]}], "TRANSFORMS.0.drop.0: .*path 'spec.'"),
        (
            [{"resource": "*"}, {"resource": "*", "redact": ["kind"]}],
            "TRANSFORMS.1.redact.0: .*kind",
        ),
        ([{"resource": "*", "remove": ["spec"]}], "TRANSFORMS.0.remove: Extra inputs"),
        ([{"drop": ["spec"]}], "TRANSFORMS.0.resource: Field required"),
        ({"resource": "*"}, "TRANSFORMS"),
    ],
)
def test_a_rule_that_is_wrong_is_reported_by_its_place(
    rules: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FLEETBUS_WATCHER_TRANSFORMS", json.dumps(rules))
    with pytest.raises(ConfigError, match=f"FLEETBUS_WATCHER_{message}"):
        load_settings(WatcherSettings, cluster="a")
    monkeypatch.delenv("FLEETBUS_WATCHER_TRANSFORMS")
    file = tmp_path / "rules.yaml"
    file.write_text(json.dumps(rules))
    in_file = message.replace("TRANSFORMS", "TRANSFORMS_FILE")
    with pytest.raises(ConfigError, match=f"FLEETBUS_WATCHER_{in_file}"):
        load_settings(WatcherSettings, cluster="a", transforms_file=str(file))


def test_rules_of_the_environment_and_of_a_file_hold_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    file = tmp_path / "rules.yaml"
    file.write_text("- resource: core/pods\n  redact:\n  - spec.containers[*].env[*].value\n")
    monkeypatch.setenv("FLEETBUS_WATCHER_TRANSFORMS_FILE", str(file))
    monkeypatch.setenv("FLEETBUS_WATCHER_TRANSFORMS", '[{"resource":"*","keepManagedFields":true}]')
    settings = load_settings(WatcherSettings, cluster="a")
    body = transformed(POD, *settings.rules)
    assert body["spec"]["containers"][0]["env"][0] == {"name": "A", "value": HIDDEN}
    assert body["metadata"] == POD["metadata"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("- a: {canary", "invalid YAML, line 1"), ("canary", "valid tuple")],
)
def test_a_file_of_rules_that_cannot_be_read_is_reported_without_its_content(
    tmp_path: Path, content: str | None, message: str
):
    file = tmp_path / "rules.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ConfigError, match=f"TRANSFORMS_FILE.*{message}") as caught:
        load_settings(WatcherSettings, cluster="a", transforms_file=str(file))
    assert "canary" not in str(caught.value)


def test_the_command_refuses_a_bad_path_with_status_2_and_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    rules = [{"resource": "core/pods", "redact": ["metadata.annotations.vault.io/token"]}]
    monkeypatch.setenv("FLEETBUS_WATCHER_TRANSFORMS", json.dumps(rules))
    assert status_of(main, ["--cluster", "a"]) == 2
    error = one_line(capsys)
    assert error.startswith("fleetbus-watcher: setting FLEETBUS_WATCHER_TRANSFORMS.0.redact.0: ")
    assert "write 'io/token' in brackets" in error


@each_row(
    "name",
    [
        "kubectl.kubernetes.io/last-applied-configuration",
        "kubectl.kubernetes.io\\/last-applied-configuration",
        "kubectl.kubernetes.io/last\\u002dapplied-configuration",
        "\\u006bubectl.kubernetes.io/last-applied-configuration",
    ],
)
def test_s1_the_last_applied_annotation_goes_however_its_name_is_written(name: str):
    raw = f'{{"metadata":{{"name":"a","annotations":{{"{name}":"{{}}","note":"n"}}}}}}'.encode()
    obj = read_map(raw)
    body = transform_of((), PODS).apply(obj, read_map(obj["metadata"]))
    assert json.loads(body)["metadata"]["annotations"] == {"note": "n"}
