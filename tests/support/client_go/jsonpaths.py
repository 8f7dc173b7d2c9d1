"""JSONPath templates of every kind, for a comparison with client-go."""

from __future__ import annotations

from typing import Any, Final

OBJECT: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "web",
        "labels": {"app.kubernetes.io/name": "w", "a": "1", "x y": "2"},
        "empty": {},
    },
    "spec": {
        "replicas": 3,
        "zero": 0,
        "paused": False,
        "active": True,
        "ports": [80, 443, 8080],
        "ratio": 0.5,
        "large": 12345678901,
        "none": None,
        "text": 'say "hi"\n',
        "list": [],
        "nested": [[1, 2], [3]],
        "a.b": "dotted",
        "a": {"b": "deep"},
    },
    "status": {
        "conditions": [
            {"type": "Ready", "status": "True", "at": 5, "on": True, "f": 1.5},
            {"type": "Synced", "status": "False", "at": 7, "on": False, "f": 2.5},
            {"type": "A'b", "status": "Unknown", "at": 7, "extra": {"at": 1}},
        ]
    },
}
_NAMES: Final = (
    *(".metadata.name", "metadata.name", "$.metadata.name", "@.metadata.name", ".metadata['name']"),
    *(".metadata.labels.a", ".metadata.labels['a']", ".metadata.labels.app\\.kubernetes\\.io/name"),
    *(
        ".metadata.labels['app\\.kubernetes\\.io/name']",
        ".metadata.labels['app.kubernetes.io/name']",
    ),
    *(".spec['a.b']", ".spec['a\\.b']", ".spec.a\\.b", ".spec.a.b", ".metadata.labels['x y']"),
    *(
        '.metadata["name"]',
        ".spec['replicas','ratio']",
        ".spec['replicas', 'ratio']",
        ".spec[name]",
    ),
    *(
        ".missing",
        ".missing.name",
        ".spec.missing[0]",
        ".spec.none",
        ".spec.none.x",
        ".spec.none[0]",
    ),
    *(".spec.replicas", ".spec.zero", ".spec.paused", ".spec.active", ".spec.ratio", ".spec.large"),
    *(
        ".spec.text",
        ".spec.ports",
        ".spec.list",
        ".metadata.empty",
        ".spec.nested",
        ".spec.a",
        ".kind.",
    ),
    *(
        ".metadata.labels.*",
        ".metadata.empty.*",
        ".spec.list[*]",
        "[*]",
        ".kind[0]",
        ".spec.replicas.x",
    ),
    *(
        "..at",
        ".status..at",
        "..name",
        "..missing",
        "..",
        ".spec..",
        "..a..b",
        "..['type']",
        "..[0]",
    ),
    *(".spec.ports.0", ".metadata .name", " .metadata.name ", ".metadata.name.", ".metadata..name"),
)
_SLICES: Final = (
    *(
        "0",
        "1",
        "2",
        "3",
        "-1",
        "-3",
        "-4",
        "0:2",
        "1:",
        ":1",
        ":",
        "*",
        "::2",
        "0:3:2",
        "-2:",
        ":-1",
    ),
    *(
        "-1:",
        "1:1",
        "0:0",
        "2:1",
        "0:4",
        "3:",
        "-5:",
        "::0",
        "::-1",
        "0:2:",
        "0,2",
        "0, 2",
        "-1,0",
        "0:1,2",
    ),
    *("", "-", "a", "0.5", "'0'", " 0", "0 "),
)
_FILTERS: Final = (
    *('@.type=="Ready"', "@.type=='Ready'", '@.type == "Ready"', '@.type!="Ready"', '@.type<"S"'),
    *(
        '@.type>="Ready"',
        "@.at>5",
        "@.at<=5",
        "@.at==5",
        "@.at == 5.0",
        "@.f>1.5",
        "@.f==2.5",
        "@.f>2",
    ),
    *(
        '@.at=="5"',
        "@.on==true",
        "@.on == false",
        "@.on!=true",
        "@.on>true",
        "@.missing",
        "@.at",
        "@.extra",
    ),
    *(
        "@.missing==1",
        "@.missing!=1",
        "@.extra.at==1",
        "@.extra.at",
        '"Ready"==@.type',
        "@.at==@.f",
        "@",
    ),
    *(
        "@.type=='A\\'b'",
        '@.type=="A\'b"',
        "@.at=5",
        "@.at===5",
        "@.at<>5",
        "",
        "@.type==",
        "@.at>-1",
    ),
    *(
        "@.extra==1",
        "@.status==True",
        '@.status=="True" ',
        " @.status=='True'",
        "@['type']=='Ready'",
    ),
)
_TEMPLATES: Final = (
    *(
        "name: {.metadata.name}!",
        "{.kind}{.metadata.name}",
        "{.kind} {.metadata.name}",
        "plain",
        "",
    ),
    *(
        '{.kind}{"\\t"}{.spec.replicas}{"\\n"}',
        "{'a'}",
        '{"a\\"b"}',
        "{'a\\'b'}",
        '{"{"}',
        "{'é'}",
        '{"\\u00e9"}',
    ),
    *(
        "{.kind .metadata.name}",
        '{.kind "x"}',
        "{.metadata .name}",
        "{true}",
        "{false}",
        "{5}",
        "{-1.5}",
    ),
    *(
        "{range .status.conditions[*]}{.type}={.status}{'\\n'}{end}",
        "{range .spec.ports[*]}{@},{end}",
    ),
    *("{range .spec.ports}{@},{end}", "{range .missing}{.x}{end}!", "{range .spec.list[*]}x{end}!"),
    *(
        "{range .spec.nested[*]}{range @[*]}{@};{end}|{end}",
        "{range .spec.nested[*]}[{range .a[*]}{end}]{end}",
    ),
    *("{range .status.conditions[?(@.at>5)]}{.type} {end}", "{range .metadata.labels.*}{@} {end}"),
    *(
        "{range .spec.ports[*]}{@}{end}{range .spec.ports[*]}{@}{end}",
        "{end}",
        "{range .a}",
        "{range}{end}",
    ),
    *(
        "{",
        "{.a",
        "}",
        "{}",
        "{ }",
        "a}b",
        "{.kind}}",
        "{x}",
        "{.a(}",
        "{foo bar}",
        "{'a}",
        "{.kind | x}",
    ),
    *(
        "{$}",
        "{@}",
        "{.}",
        "{$.kind}{@.kind}",
        "{range .spec.ports[*]}{$}{end}",
        "{.kind}\n{.kind}",
    ),
)


def templates() -> list[str]:
    """All of them, each once."""
    texts = [
        *(f"{{{path}}}" for path in _NAMES),
        *(f"{{.spec.ports[{index}]}}" for index in _SLICES),
        *(f"{{.status.conditions[{index}].type}}" for index in _SLICES),
        *(
            f"{{.spec.nested[{index}][{other}]}}"
            for index in ("*", "0", "-1")
            for other in ("*", "0")
        ),
        *(f"{{.status.conditions[?({condition})].type}}" for condition in _FILTERS),
        *(
            f"{{.spec.ports[?({condition})]}}"
            for condition in ("@>100", "@ == 80", "@!=80", "@>1.5", "@")
        ),
        *_TEMPLATES,
    ]
    return list(dict.fromkeys(texts))
