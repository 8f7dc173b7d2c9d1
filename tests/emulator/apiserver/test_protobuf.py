"""Bodies in protobuf: what kubectl from 1.32 on sends, and the table that they are read by."""

import ast
import base64
import inspect
import json
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.support.kube_calls import Calls, config_map
from emulator.support.kubectl_descriptors import Described, descriptors
from fleetbus_emulator.apiserver import ApiError, Cluster
from fleetbus_emulator.apiserver.encoding import messages, protobuf
from fleetbus_emulator.apiserver.encoding.messages import Field, Message
from support.processes.kubectls import kubectls

MODEL, FIELDS = re.compile(r"class (\w+)\("), re.compile(r"attribute_map = (\{.*?\})", re.DOTALL)
PROTOBUF = "application/vnd.kubernetes.protobuf"
# What kubectl 1.33 sent for a command, and the object as it shows it itself (`--dry-run=client`).
RECORDED: list[dict[str, Any]] = json.loads(
    Path(__file__).with_name("kubectl_bodies.json").read_text()
)
TABLE = messages.parse(
    Path(inspect.getfile(messages)).with_name(messages.TABLE).read_text()
).messages


def varint(value: int) -> bytes:
    low, remainder = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(remainder) if remainder else bytes([low])


def field(number: int, value: int | str | bytes) -> bytes:
    """A field on the wire."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def body(api_version: str, kind: str, raw: bytes) -> bytes:
    names = field(1, api_version) + field(2, kind)
    return b"k8s\0" + field(1, names) + field(2, raw)


@pytest.fixture
def calls() -> Calls:
    return Calls(Cluster("alpha", seed=1))


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda recorded: recorded["command"])
def test_a_body_of_kubectl_is_read_as_the_object_that_kubectl_shows(recorded: dict[str, Any]):
    assert protobuf.decode(base64.b64decode(recorded["body"])) == recorded["object"]


def test_an_object_sent_in_protobuf_is_stored_like_one_in_json(calls: Calls):
    command = "create deployment web --image=nginx:1 --replicas=3 --port=8080"
    recorded = next(entry for entry in RECORDED if entry["command"] == command)
    place = "/apis/apps/v1/namespaces/{}/deployments"
    calls.post("/api/v1/namespaces", {"metadata": {"name": "other"}})
    created = calls.post(
        place.format("default"), base64.b64decode(recorded["body"]), content=PROTOBUF
    )
    from_json = calls.post(place.format("other"), recorded["object"])
    assert (created.status, created.content_type) == (201, "application/json")
    assert created.document["spec"] == from_json.document["spec"]
    assert created.document["kind"] == "Deployment"


def test_options_of_a_delete_may_come_in_protobuf(calls: Calls):
    created = calls.post("/api/v1/namespaces/default/configmaps", config_map("a"))
    wrong_uid = body("v1", "DeleteOptions", field(2, field(1, "other")))
    place = "/api/v1/namespaces/default/configmaps/a"
    assert calls.delete(place, wrong_uid, content=PROTOBUF).status == 409
    right_uid = body("v1", "DeleteOptions", field(2, field(1, created.meta["uid"])))
    assert calls.delete(place, right_uid, content=PROTOBUF).status == 200


def test_an_unknown_kind_is_415_and_the_message_says_what_to_do(calls: Calls):
    place = "/api/v1/namespaces/default/configmaps"
    reply = calls.post(place, body("example.com/v1", "Widget", b""), content=PROTOBUF)
    assert (reply.status, reply.document["reason"]) == (415, "UnsupportedMediaType")
    assert "cannot read example.com/v1, Kind=Widget from protobuf" in reply.message
    assert "create -f" in reply.message


@pytest.mark.parametrize(
    "broken",
    [
        b"{}",
        b"",
        b"k8s\0\xff",
        body("v1", "ConfigMap", b"\x0a\x7f"),
        body("v1", "ConfigMap", b"\x0b"),
        body("v1", "ConfigMap", b"\x00\x00"),
        body("v1", "ConfigMap", field(1, 1)),
        body("v1", "ConfigMap", field(1, field(1, b"\xff\xfe"))),
        body("v1", "ConfigMap", field(1, field(8, field(1, 2**63 - 1)))),
        body("v1", "ConfigMap", field(4, "true")),
    ],
)
def test_a_broken_body_is_400(calls: Calls, broken: bytes):
    reply = calls.post("/api/v1/namespaces/default/configmaps", broken, content=PROTOBUF)
    assert (reply.status, reply.document["reason"]) == (400, "BadRequest")


@settings(max_examples=200)
@given(st.data())
def test_no_damaged_body_is_anything_but_an_object_or_a_refusal(data: st.DataObject):
    recorded = data.draw(st.sampled_from(RECORDED))
    raw = bytearray(base64.b64decode(recorded["body"]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(4, len(raw) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(raw[: data.draw(st.integers(4, len(raw)))])
    try:
        orjson.dumps(protobuf.decode(damaged))
    except ApiError as error:
        assert error.code in (400, 415)  # noqa: PT017 - many damaged bodies are still bodies


def test_fields_of_a_newer_kubernetes_are_passed_over():
    newer = field(2, field(1, "a") + field(2, "1")) + field(31, "of tomorrow")
    assert protobuf.decode(body("v1", "ConfigMap", newer)) == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "data": {"a": "1"},
    }


def test_numbers_are_signed_and_lists_of_them_may_be_packed():
    toleration = field(5, 2**64 - 1)  # tolerationSeconds: -1
    context = field(4, b"\x01\x02")  # supplementalGroups, packed
    raw = field(2, field(22, toleration) + field(14, context))
    spec = protobuf.decode(body("v1", "Pod", raw))["spec"]
    assert spec["tolerations"] == [{"tolerationSeconds": -1}]
    assert spec["securityContext"] == {"supplementalGroups": [1, 2]}


def test_a_zero_behind_a_pointer_is_kept_and_any_other_is_left_out():
    zeros = field(1, 0) + field(5, 0) + field(7, 0)  # replicas, minReadySeconds, paused
    obj = protobuf.decode(body("apps/v1", "Deployment", field(2, zeros)))
    assert obj["spec"] == {"replicas": 0}


def test_times_quantities_and_numbers_or_texts_are_written_as_in_json():
    raw = field(1, field(8, field(1, 1))) + field(2, field(4, field(1, 1) + field(2, 1000)))
    lease = protobuf.decode(body("coordination.k8s.io/v1", "Lease", raw))
    assert lease["metadata"] == {"creationTimestamp": "1970-01-01T00:00:01Z"}
    assert lease["spec"] == {"renewTime": "1970-01-01T00:00:01.000001Z"}
    hard = field(1, field(1, "cpu") + field(2, field(1, "500m")))
    quota = protobuf.decode(body("v1", "ResourceQuota", field(2, hard)))
    assert quota["spec"] == {"hard": {"cpu": "500m"}}
    limits = field(1, field(1, 1) + field(3, "50%")) + field(3, field(1, 0) + field(2, 0))
    budget = protobuf.decode(body("policy/v1", "PodDisruptionBudget", field(2, limits)))
    assert budget["spec"] == {"minAvailable": "50%", "maxUnavailable": 0}


# the table ----------------------------------------------------------------------------------------


def described(message: Message, entry: Field) -> Described:
    """A field of the table as a descriptor tells it."""
    kind = entry.type
    if entry.is_map:
        kind = f"{message.full_name}.{entry.name[0].upper()}{entry.name[1:]}Entry"
    return Described(entry.name.lower(), entry.number, kind, entry.is_list or entry.is_map)


@pytest.mark.skipif("1.33" not in kubectls(), reason="kubectl 1.33 is not installed")
def test_the_table_says_what_the_descriptors_in_kubectl_say():
    described_types = descriptors(kubectls()["1.33"])
    for name, message in TABLE.items():
        actual = {number: described(message, entry) for number, entry in message.numbers.items()}
        # generated.proto has uID and aPIGroup where JSON has uid and apiGroup.
        expected = {
            number: Described(d.name.lower(), d.number, d.type, d.repeated)
            for number, d in described_types[name].items()
        }
        assert actual == expected, name
        for entry in message.numbers.values():
            if entry.is_map:
                place = described(message, entry).type
                assert described_types[place][2].type == entry.type


def known_to_kubernetes_asyncio() -> dict[str, set[str]]:
    """The fields of the library's models, read from its text: its import costs two seconds."""
    models = distribution("kubernetes_asyncio").locate_file("kubernetes_asyncio/client/models")
    by_model: dict[str, set[str]] = {}
    for path in Path(str(models)).glob("*.py"):
        text = path.read_text()
        name, fields = MODEL.search(text), FIELDS.search(text)
        if name and fields:
            by_model[name[1]] = set(ast.literal_eval(fields[1]).values())
    return by_model


def test_the_table_has_no_field_that_kubernetes_asyncio_does_not_know():
    models = known_to_kubernetes_asyncio()
    compared = 0
    for message in TABLE.values():
        fields = models.get(f"{message.package.rpartition('.')[2].upper()}{message.name}")
        if fields is not None:  # else the library has no model of its own for it
            assert messages.json_fields(message.full_name).keys() <= fields, message.full_name
            compared += 1
    assert compared > 300


def test_every_type_in_the_table_is_a_scalar_or_in_the_table():
    for message in TABLE.values():
        for entry in message.numbers.values():
            assert entry.scalar or entry.type in TABLE, (message.full_name, entry.name)
