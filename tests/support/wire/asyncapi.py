"""The AsyncAPI document of the bus, made from the code; `make golden` writes it to proto/.

Field descriptions are the docstrings under the fields, so the document cannot say less than the
code. msgspec's schemas are those of JSON: `object` is base64 there and binary in msgpack, and a
reader that validates has to make that one change.
"""

from __future__ import annotations

import ast
import inspect
from typing import Any, Final

import msgspec
import yaml

from fleetbus_proto import calls, distribution, events, headers, registration, votes
from fleetbus_proto.calls import Body, Cancel, Credit, Failed, Head, Open, Working
from fleetbus_proto.distribution import AffectedObject, DistributionEvent
from fleetbus_proto.events import AuditPage, EpochEnd, Event, Heartbeat, Message
from fleetbus_proto.registration import Registration, RegistrationAnswer, SignedRegistration
from fleetbus_proto.subjects import DISTRIBUTION_STREAM, STREAM, DistributionVerb, Verb
from fleetbus_proto.votes import Vote
from support.wire.samples import MESSAGE_KEY

JsonObject = dict[str, Any]

_KINDS: Final = (Event, EpochEnd, AuditPage, Heartbeat)
FRAMES: Final = (Open, Body, Credit, Cancel, Head, Working, Failed)
REGISTRATIONS: Final = (SignedRegistration, Registration, RegistrationAnswer)
_REF: Final = "#/components/schemas/{name}"
_PARAMETERS: Final = {
    "cluster": "Name of the cluster, a DNS-1123 label.",
    "group": "API group, `core` for the core group; encoded.",
    "resource": "Plural name of the resource; encoded.",
    "namespace": "Namespace, `-` for a cluster-scoped object; encoded.",
    "name": "Name of the object; encoded.",
    "verb": "What happened: added, modified, deleted, or listed by a relist.",
    "replica": "Name of the watcher replica; encoded.",
    "revision": "Number of the revision and hash of its content; encoded.",
    "wave": "Name of the wave; encoded.",
    "gate": "Name of the gate; encoded.",
    "place": "Name of the cluster, or `_fleet` if it is about none in particular; encoded.",
    "event": "What happened.",
    "instance": "The process of the agent that has taken the call; `every-agent` if it is unknown.",
    "component": "Part of fleetbus that calls, like `distributor`.",
    "process": "Random name of its process.",
    "call": "Number of the call.",
}


def document() -> JsonObject:
    """The whole document, AsyncAPI 3.0, from the point of view of fleetbus."""
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "fleetbus events",
            "version": str(events.FORMAT),
            "license": {"name": "Apache-2.0"},
            "description": (
                "Every change of every watched object of a fleet of Kubernetes clusters. "
                f"Votes and what the distributor tells are stored in the JetStream stream "
                f"{DISTRIBUTION_STREAM}, everything else but `control`, calls and registrations in "
                f"{STREAM}. "
                "proto/README.md says what order, repeats and epochs mean; both are the contract."
            ),
        },
        "defaultContentType": headers.CONTENT_TYPE,
        "servers": {
            "nats": {
                "host": "{address}",
                "protocol": "nats",
                "variables": {"address": {"default": "127.0.0.1:4222"}},
            }
        },
        "channels": _channels(),
        "operations": _operations(),
        "components": {"messages": _messages(), "schemas": _schemas()},
    }


def text() -> str:
    """The document as the file holds it."""
    head = "# Made from the code by `make golden`; do not edit.\n"
    return head + yaml.safe_dump(document(), sort_keys=False, allow_unicode=True, width=100)


def _channels() -> JsonObject:
    return {
        "events": _channel(
            "fleetbus.events.{cluster}.{group}.{resource}.{namespace}.{name}.{verb}",
            "One change of one object.",
            Event,
        ),
        "epochs": _channel(
            "fleetbus.epochs.{cluster}.{group}.{resource}",
            "The end of a complete list, or one page of an audit.",
            EpochEnd,
            AuditPage,
        ),
        "status": _channel(
            "fleetbus.status.{cluster}.{replica}", "Heartbeats of one watcher replica.", Heartbeat
        ),
        "votes": _channel(
            "fleetbus.votes.{namespace}.{name}.{revision}.{wave}.{gate}",
            "Votes on one gate of a rollout; `status.rollout.votes` is the part before the wave.",
            Vote,
        ),
        "distribution": _channel(
            "fleetbus.distribution.{namespace}.{name}.{place}.{event}",
            "What became of a MultiClusterResource, whose namespace and name these are.",
            DistributionEvent,
        ),
        "calls": _channel(
            "fleetbus.api.{cluster}",
            "Requests for the API server of a cluster that the hub cannot reach; its agents "
            "subscribe with the queue group `agents`. Not stored.",
            Open,
        ),
        "followingFrames": _channel(
            "fleetbus.api.{cluster}.{instance}",
            "Frames that follow a request, for the agent that has taken it. Not stored.",
            Body,
            Credit,
            Cancel,
        ),
        "answers": _channel(
            "fleetbus.answers.{cluster}.{component}.{process}.{call}",
            "The answer to a request. Not stored.",
            Head,
            Body,
            Credit,
            Working,
            Failed,
        ),
        "registrations": _channel(
            "fleetbus.registration.{cluster}",
            "An agent tells the hub the nkey that it will log in with: what it signs is a "
            "Registration. The answer goes to the reply subject. Not stored.",
            *REGISTRATIONS,
        ),
    }


def _channel(address: str, description: str, *kinds: type[msgspec.Struct]) -> JsonObject:
    named: dict[str, JsonObject] = {
        name: {"description": said}
        for name, said in _PARAMETERS.items()
        if f"{{{name}}}" in address
    }
    if "verb" in named:
        named["verb"]["enum"] = [verb.value for verb in Verb]
    if "event" in named:
        named["event"]["enum"] = [verb.value for verb in DistributionVerb]
    names = [kind.__name__ for kind in kinds]
    return {
        "address": address,
        "description": description,
        "parameters": named,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
    }


def _operations() -> JsonObject:
    channels = {
        "publishEvents": ("events", "A watcher publishes each change of an object."),
        "publishEpochs": ("epochs", "A watcher ends a complete list, or audits."),
        "publishStatus": ("status", "A watcher says that it lives and how far it is."),
        "publishVotes": ("votes", "Anybody who has the right votes on a gate."),
        "publishDistribution": ("distribution", "The distributor tells what has changed."),
        "publishCalls": ("calls", "A process of the hub sends a request to an agent."),
        "publishFollowingFrames": ("followingFrames", "It goes on with its request."),
        "publishAnswers": ("answers", "An agent answers for its own cluster."),
        "publishRegistrations": ("registrations", "An agent registers, or changes its nkey."),
    }
    return {
        name: {
            "action": "send",
            "channel": {"$ref": f"#/channels/{channel}"},
            "summary": summary,
        }
        for name, (channel, summary) in channels.items()
    }


def _messages() -> JsonObject:
    of_watchers = {
        kind.__name__: {
            "name": kind.__struct_config__.tag,
            "summary": _first_line(kind),
            "contentType": headers.CONTENT_TYPE,
            "headers": {"$ref": _REF.format(name="Headers")},
            "payload": {"$ref": _REF.format(name=kind.__name__)},
        }
        for kind in _KINDS
    }
    vote = {
        "name": "vote",
        "summary": _first_line(Vote),
        "contentType": votes.CONTENT_TYPE,
        "payload": {"$ref": _REF.format(name="Vote")},
    }
    published = {
        "name": DistributionEvent.__struct_config__.tag,
        "summary": _first_line(DistributionEvent),
        "contentType": distribution.CONTENT_TYPE,
        "payload": {"$ref": _REF.format(name="DistributionEvent")},
    }
    frames = {
        kind.__name__: {
            "name": kind.__struct_config__.tag,
            "summary": _first_line(kind),
            "contentType": headers.CONTENT_TYPE,
            "payload": {"$ref": _REF.format(name=kind.__name__)},
        }
        for kind in FRAMES
    }
    registrations = {
        kind.__name__: {
            "name": kind.__name__,
            "summary": _first_line(kind),
            "contentType": registration.CONTENT_TYPE,
            "payload": {"$ref": _REF.format(name=kind.__name__)},
        }
        for kind in REGISTRATIONS
    }
    others = {"Vote": vote, "DistributionEvent": published}
    return of_watchers | others | frames | registrations


def _schemas() -> JsonObject:
    own_types: tuple[type, ...] = (
        *(Vote, DistributionEvent, AffectedObject, DistributionVerb, *REGISTRATIONS),
    )
    others = {each_type.__name__: each_type for each_type in own_types}
    kinds = (*_KINDS, Vote, DistributionEvent, *FRAMES, *REGISTRATIONS)
    _, found = msgspec.json.schema_components(kinds, ref_template=_REF)
    schemas: JsonObject = {}
    for name, schema in found.items():
        kind = others.get(name) or getattr(events, name, None) or getattr(calls, name)
        described = _field_docstrings(kind)
        properties = {
            field: {
                **field_schema,
                **({"description": described[field]} if field in described else {}),
            }
            for field, field_schema in schema.get("properties", {}).items()
        }
        schemas[name] = {**schema, "description": _first_line(kind)}
        if properties:
            schemas[name]["properties"] = properties
    schemas["Headers"] = _header_schema()
    return schemas


def _header_schema() -> JsonObject:
    # Every message has them all, so one of each kind shows their names.
    names = list(headers.build(_any_heartbeat(), MESSAGE_KEY))
    fixed = {
        headers.FORMAT_HEADER: str(events.FORMAT),
        "content-type": headers.CONTENT_TYPE,
        "ce-specversion": "1.0",
    }
    return {
        "type": "object",
        "description": "CloudEvents in binary mode; values are percent-encoded ASCII.",
        "properties": {
            name: {"type": "string", **({"const": fixed[name]} if name in fixed else {})}
            for name in names
        },
        "required": names,
    }


def _any_heartbeat() -> Message:
    return Heartbeat(
        cluster="a",
        replica="a",
        boot="a",
        incarnation=events.Incarnation(1, "a"),
        connected=True,
        resources=[],
        observed_at="",
    )


def _first_line(kind: type) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]


def _field_docstrings(kind: type) -> dict[str, str]:
    """Return the docstring of each field, by the field's name on the wire."""
    if not issubclass(kind, msgspec.Struct):
        return {}
    wire = {f.name: f.encode_name for f in msgspec.structs.fields(kind)}
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    described: dict[str, str] = {}
    for before, after in zip(definition.body, definition.body[1:], strict=False):
        match before, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(str(said))):
                described[wire[name]] = " ".join(said.split())
            case _:
                pass
    return described
