"""Objects and lines that no API server should send, and what must become of them (rules W16, B8).

A corpus that is kept: what once broke something stays in it. Each entry is one config map or
cluster role as bytes; `seeded` makes more of them by damaging sound ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random

LAST_APPLIED = b"kubectl.kubernetes.io/last-applied-configuration"
CANARY = b"canary-4711"
LEGAL_NAME = "".join(map(chr, [*range(1, 127), 0xE9, 0x2603, 0x1F600])).replace("/", "")
"""Every byte that a name of RBAC may have, and some of more than one."""


class Fate(Enum):
    """The required outcome for an object."""

    WHOLE = "published with its body"
    DEGRADED = "published without its body, and counted"
    LOST = "not even the key can be read: nothing is published, nothing is swept"


@dataclass(frozen=True, slots=True)
class Hostile:
    """One object; `is_framed` if a list that holds it is still a list around it."""

    title: str
    body: bytes
    fate: Fate
    is_framed: bool = True


def document(
    name: str, version: str, *, metadata: bytes = b"", data: bytes = b'{"k":"v"}'
) -> bytes:
    """A sound config map, with more in its metadata and other data if wanted."""
    head = (
        f'"name":"{name}","namespace":"default","uid":"u-{name}","resourceVersion":"{version}"'
    ).encode()
    applied = b'"annotations":{"' + LAST_APPLIED + b'":"' + CANARY + b'"}'
    extra = metadata or applied
    return (
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{' + head + b"," + extra + b"},"
        b'"data":' + data + b"}"
    )


_VALUES = {
    Fate.WHOLE: {
        "1e400": b"1e400",
        "5,000 digits": b"9" * 5000,
        "a name twice": b'{"k":1,"k":2}',
        "500 deep": b"[" * 500 + b"]" * 500,
        "escaped nul": b'"\\u0000"',
        "a surrogate pair": b'"\\ud83d\\ude00"',
        "3 MiB": b'"' + b"x" * 3 * 2**20 + b'"',
        "empty": b"{}",
    },
    Fate.DEGRADED: {
        "10,000 deep": b"[" * 10_000 + b"]" * 10_000,
        "maps 10,000 deep": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
        "NaN": b"NaN",
        "Infinity": b"-Infinity",
        "lone surrogate": b'"\\ud800"',
        "two low surrogates": b'"\\udc00\\udc00"',
        "lone surrogate as a name": b'{"\\ud800":1}',
        "not UTF-8": b'"\xff\xfe"',
        "not UTF-8 as a name": b'{"\xc3\x28":1}',
        "surrogate in UTF-8": b'"\xed\xa0\x80"',
        "a control byte": b'"\x01"',
        "a bad escape": b'"\\x41"',
        "a leading zero": b"01",
        "a trailing comma": b'{"a":1,}',
        "single quotes": b"{'a':1}",
        "a comment": b"/* canary */ 1",
        "no value": b"",
        "a bare word": b"tru",
        "9 MiB": b'"' + b"x" * 9 * 2**20 + b'"',
    },
}
_METADATA = {
    Fate.WHOLE: {
        "labels of other types": b'"labels":{"a":5,"b":[]}',
        "labels that are none": b'"labels":"x"',
        "owners that are none": b'"ownerReferences":{"uid":7}',
        "managedFields that are none": b'"managedFields":"x"',
        "annotations null": b'"annotations":null',
        "a name given twice": b'"name":"dropped","name":"NAME"',
    },
    Fate.DEGRADED: {
        "annotations that are none": b'"annotations":["x"]',
        "uid a number": b'"uid":5',
        "uid a list": b'"uid":[["canary"]]',
        "uid not printable": b'"uid":"a\\u001fb"',
        "uid not UTF-8": b'"uid":"\xff"',
    },
    Fate.LOST: {
        "name a number": b'"name":5',
        "name null": b'"name":null',
        "name empty": b'"name":""',
        "name not UTF-8": b'"name":"\xff"',
        "name a lone surrogate": b'"name":"\\ud800"',
        "name too long for a subject": b'"name":"' + b"x" * 5000 + b'"',
        "namespace a map": b'"namespace":{}',
        "namespace reserved": b'"namespace":"-"',
        "version a number": b'"resourceVersion":5',
        "version empty": b'"resourceVersion":""',
        "version of letters": b'"resourceVersion":"abc"',
        "version with zeros before it": b'"resourceVersion":"007"',
        "version negative": b'"resourceVersion":"-1"',
        "version of other digits": '"resourceVersion":"\u0661"'.encode(),
        "version of more than 128 bits": b'"resourceVersion":"1' + b"0" * 39 + b'"',
    },
}
_BROKEN = {
    "nothing": b"",
    "null": b"null",
    "a number": b"5",
    "a string": b'"x"',
    "a list": b"[]",
    "an empty map": b"{}",
    "metadata null": b'{"metadata":null}',
    "metadata a list": b'{"metadata":[]}',
    "no name": b'{"metadata":{"resourceVersion":"VERSION"}}',
    "no version": b'{"metadata":{"name":"NAME"}}',
}


def corpus(prefix: str = "h", version: int = 1000) -> list[Hostile]:
    """Every entry; names are `<prefix>-<number>`, versions grow from `version` on."""
    hostiles: list[Hostile] = []
    for fate, title, metadata, data in _entries():
        number = len(hostiles)
        name, suffix = f"{prefix}-{number}", str(version + number)
        content = document(
            name, suffix, metadata=metadata.replace(b"NAME", name.encode()), data=data
        )
        hostiles.append(Hostile(title, content, fate))
    hostiles.append(Hostile("every legal byte", _legal(version + len(hostiles)), Fate.WHOLE))
    for title, body in _BROKEN.items():
        name, suffix = f"{prefix}-{len(hostiles)}".encode(), b"%d" % (version + len(hostiles))
        content = body.replace(b"NAME", name).replace(b"VERSION", suffix)
        hostiles.append(Hostile(title, content, Fate.LOST, is_framed=body.startswith(b"{")))
    full = document(f"{prefix}-cut", str(version + len(hostiles)))
    ends = (len(full) - 1, len(full) // 2, 5)
    hostiles += [Hostile(f"cut at {at}", full[:at], Fate.LOST, is_framed=False) for at in ends]
    return hostiles


def _entries() -> Iterator[tuple[Fate, str, bytes, bytes]]:
    for fate, values in _VALUES.items():
        for title, value in values.items():
            yield fate, title, b"", b'{"k":' + value + b"}"
    for fate, values in _METADATA.items():
        for title, value in values.items():
            yield fate, title, value, b"{}"


def _legal(version: int) -> bytes:
    text = "".join(f"\\u{ord(c):04x}" if ord(c) < 0x20 or c in '"\\' else c for c in LEGAL_NAME)
    return document("x", str(version)).replace(b'"name":"x"', f'"name":"{text}"'.encode())


def watch_line(body: bytes, kind: bytes = b"MODIFIED") -> bytes:
    """One line of a watch, without its newline."""
    return b'{"type":"' + kind + b'","object":' + body + b"}"


BOOKMARK = (
    b'{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"VERSION"}}}'
)
"""It has neither a name nor a uid, and is sound."""

NO_EVENTS = {
    "garbage": b"garbage",
    "a page": b"<html>log in</html>",
    "a number": b"5",
    "a list": b"[]",
    "an empty map": b"{}",
    "no object": b'{"type":"ADDED"}',
    "an object null": b'{"type":"ADDED","object":null}',
    "an object that is a list": b'{"type":"ADDED","object":[]}',
    "no type": b'{"object":{"metadata":{"name":"a","resourceVersion":"9"}}}',
    "a type that is a number": b'{"type":5,"object":{"metadata":{"name":"a"}}}',
    "an unknown type": b'{"type":"MOVED","object":{"metadata":{"name":"a","resourceVersion":"9"}}}',
    "our own type": b'{"type":"UNREADABLE","object":{"metadata":{"resourceVersion":"9"}}}',
    "a bookmark of nothing": b'{"type":"BOOKMARK","object":{}}',
    "a bookmark of letters": b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"x"}}}',
    "a byte order mark": b"\xef\xbb\xbf" + watch_line(document("bom", "9")),
    "two events": watch_line(document("one", "9")) + watch_line(document("two", "10")),
    "an event and more": watch_line(document("one", "9")) + b"}",
    "not UTF-8": b"\xff\xff\xff",
    "a line over 32 MiB": watch_line(document("big", "9", data=b'"' + b"x" * 33 * 2**20 + b'"')),
}
"""Lines of which nobody can say what they mean."""


def damaged(random: Random, body: bytes) -> bytes:
    """A document with some bytes changed, gone, doubled or added."""
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(body) + 1)
        length = random.choice((0, 1, 1, 2, 5, 40))
        piece = random.choice(
            (b"", random.randbytes(length), random.choice(_PIECES), body[at : at + length] * 2)
        )
        body = body[:at] + piece + body[at + length :]
    return body


_PIECES = (
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"1e999", b"\xff", b"\\ud800"),
    *(
        b'"metadata":{}',
        b'"name":"x"',
        b'"resourceVersion":"7"',
        b"\x00",
        b"NaN",
        b'"annotations":5',
    ),
)
