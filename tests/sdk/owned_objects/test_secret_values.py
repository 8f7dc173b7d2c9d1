"""Messages about an object lose its secret values (rule D14)."""

import base64
from typing import Any

from fleetbus.owned_objects.secret_values import without_secret_values
from support.rows import each_row

LIMIT = 600

SECRET = {"kind": "Secret", "data": {"key": base64.b64encode(b"hunter2-canary").decode()}}


@each_row(
    "message",
    [
        "denied: hunter2-canary is weak",
        f"denied: {base64.b64encode(b'hunter2-canary').decode()}",
        'data.key: Invalid value: "anything at all": too short',
    ],
)
def test_d14_a_secrets_values_are_taken_out(message: str):
    cleaned = without_secret_values(message, SECRET, limit=LIMIT)
    assert "<redacted>" in cleaned
    assert "canary" not in cleaned
    assert "anything" not in cleaned


def test_d14_a_message_about_a_secret_with_unknown_values_is_hidden():
    assert (
        without_secret_values("denied: hunter2-canary is weak", {"kind": "Secret"}, limit=LIMIT)
        == "<redacted>"
    )


@each_row(
    ("message", "line"),
    [
        ("errors:\n  .a: wrong\n  .b: wrong\n", "errors: .a: wrong; .b: wrong"),
        ("denied:\r\n\r\n- one\r\n- two", "denied: - one; - two"),
        ("one  line", "one  line"),
    ],
)
def test_a_message_is_one_line(message: str, line: str):
    assert without_secret_values(message, {"kind": "Pod"}, limit=LIMIT) == line


def test_d14_each_line_of_a_value_is_taken_out():
    secret = {"kind": "Secret", "stringData": {"key": "first-line\nsecond-line"}}
    assert without_secret_values("saw second-line", secret, limit=LIMIT) == "saw <redacted>"


SENSITIVE: list[dict[str, Any]] = [
    {"spec": {"password": "canary"}},
    {"spec": {"env": [{"name": "DB_PASSWORD", "value": "canary"}]}},
    {"spec": {"apiToken": ["canary"]}},
    {"password": "canary"},
]


@each_row("obj", SENSITIVE)
def test_d14_values_with_telling_names_are_taken_out(obj: dict[str, Any]):
    assert without_secret_values("denied: canary", obj, limit=LIMIT) == "denied: <redacted>"


def test_other_messages_stay_whole_and_are_cut_to_size():
    pod = {"kind": "Pod", "spec": {"restartPolicy": "Never"}}
    message = 'spec.restartPolicy: Invalid value: "Never": field is immutable'
    assert without_secret_values(message, pod, limit=LIMIT) == message
    assert len(without_secret_values("x" * 5000, pod, limit=LIMIT)) == LIMIT
