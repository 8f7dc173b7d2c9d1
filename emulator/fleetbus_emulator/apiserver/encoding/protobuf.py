"""Kubernetes' protobuf bodies, decoded into what they would be in JSON.

kubectl from 1.32 on, and Go clients for built-in types, send them. A body is a prefix and a
runtime.Unknown: apiVersion and kind of the object, and the object itself. A Go client writes every
field that is no pointer, also when it is empty; what JSON would leave out is left out here.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from fleetbus_emulator.apiserver.encoding import messages
from fleetbus_emulator.apiserver.encoding.messages import META, Field, Message
from fleetbus_emulator.apiserver.encoding.protobuf_wire import WireError, read_fields, read_varints
from fleetbus_emulator.apiserver.errors import ApiError, bad_request

JsonObject = dict[str, Any]
PREFIX = b"k8s\0"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# The fields of runtime.Unknown and of its TypeMeta.
TYPE_META, RAW = 1, 2
API_VERSION, KIND = 1, 2
SIGN_BIT, WORD = 1 << 63, 1 << 64


def decode(body: bytes) -> JsonObject:
    """The object of a body, with apiVersion and kind.

    Raises:
        ApiError: 400, it is no message; 415, it is one of an unknown kind.
    """
    if not body.startswith(PREFIX):
        raise bad_request("provided data does not appear to be a protobuf message, expected prefix")
    try:
        parts = dict(read_fields(body[len(PREFIX) :]))
        names = dict(read_fields(_bytes(parts.get(TYPE_META, b""))))
        api_version = _bytes(names.get(API_VERSION, b"")).decode()
        kind = _bytes(names.get(KIND, b"")).decode()
        message = _message_of(api_version, kind)
        obj = _read_message(message, _bytes(parts.get(RAW, b"")))
    except (WireError, ValueError, OverflowError) as error:
        raise bad_request(f"the body is no Kubernetes protobuf message: {error}") from None
    return {"apiVersion": api_version, "kind": kind, **obj}


def _message_of(api_version: str, kind: str) -> Message:
    message = messages.of_kind(api_version, kind)
    if message is None and kind == "DeleteOptions":
        message = messages.message(f"{META}.DeleteOptions")  # every group has it under its own name
    if message is None:
        raise ApiError(
            415,
            "UnsupportedMediaType",
            f"this server cannot read {api_version}, Kind={kind} from protobuf; send it as JSON or "
            "YAML, with kubectl by `create -f` or `apply -f` instead of a `create KIND` command",
        )
    return message


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise WireError("a number where bytes are expected")
    return value


def _read_message(message: Message, data: bytes) -> JsonObject:
    obj: JsonObject = {}
    for number, raw in read_fields(data):
        entry = message.numbers.get(number)
        if entry is None:
            continue  # a field of a newer Kubernetes, which an older server does not know either
        if entry.is_map:
            name, value = _read_entry(entry, _bytes(raw))
            obj.setdefault(entry.name, {})[name] = value
        elif entry.is_list:
            obj.setdefault(entry.name, []).extend(_read_items(entry, raw))
        elif entry.inline:
            obj |= _read_message(messages.message(entry.type), _bytes(raw))
        else:
            value = _read_value(entry, raw)
            if value or entry.kept or isinstance(value, dict):
                obj[entry.name] = value
    return {name: value for name, value in obj.items() if value is not None}


def _read_entry(entry: Field, data: bytes) -> tuple[str, Any]:
    parts = dict(read_fields(data))
    name = _bytes(parts.get(1, b"")).decode()
    return name, _read_value(entry, parts.get(2, b"" if entry.type not in _NUMBERS else 0))


def _read_items(entry: Field, raw: int | bytes) -> list[Any]:
    if entry.type in _NUMBERS and isinstance(raw, bytes):
        return [_read_value(entry, item) for item in read_varints(raw)]
    return [_read_value(entry, raw)]


def _read_value(entry: Field, raw: int | bytes) -> Any:
    if entry.type in _NUMBERS:
        if isinstance(raw, bytes):
            raise WireError(f"bytes where {entry.name} should be a number")
        return _NUMBERS[entry.type](raw)
    data = _bytes(raw)
    if entry.type == "string":
        return data.decode()
    if entry.type == "bytes":
        return base64.b64encode(data).decode()
    special = _SPECIAL.get(entry.type)
    return special(data) if special else _read_message(messages.message(entry.type), data)


def _signed(value: int) -> int:
    return value - WORD if value & SIGN_BIT else value


_NUMBERS: dict[str, Callable[[int], int]] = {"int32": _signed, "int64": _signed, "bool": bool}


# messages that JSON writes otherwise --------------------------------------------------------------


def _moment(data: bytes) -> datetime | None:
    parts = {number: _signed(v) for number, v in read_fields(data) if isinstance(v, int)}
    if not parts:
        return None
    return EPOCH + timedelta(seconds=parts.get(1, 0), microseconds=parts.get(2, 0) // 1000)


def _time(data: bytes) -> str | None:
    moment = _moment(data)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None


def _micro_time(data: bytes) -> str | None:
    moment = _moment(data)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ") if moment else None


def _quantity(data: bytes) -> str:
    return _bytes(dict(read_fields(data)).get(1, b"")).decode() or "0"


def _int_or_string(data: bytes) -> int | str:
    parts = dict(read_fields(data))
    if parts.get(1):
        return _bytes(parts.get(3, b"")).decode()
    number = parts.get(2, 0)
    return _signed(number) if isinstance(number, int) else 0


def _json(data: bytes) -> Any:
    raw = _bytes(dict(read_fields(data)).get(1, b""))
    return orjson.loads(raw) if raw else None


def _texts(data: bytes) -> list[str]:
    return [_bytes(item).decode() for _, item in read_fields(data)]


_SPECIAL: dict[str, Callable[[bytes], Any]] = {
    f"{META}.Time": _time,
    f"{META}.MicroTime": _micro_time,
    f"{META}.FieldsV1": _json,
    f"{messages.ALIASES['resource']}.Quantity": _quantity,
    f"{messages.ALIASES['intstr']}.IntOrString": _int_or_string,
    f"{messages.ALIASES['runtime']}.RawExtension": _json,
    "k8s.io.api.authentication.v1.ExtraValue": _texts,
    "k8s.io.api.authorization.v1.ExtraValue": _texts,
}
