"""Objects that are valid and that careless programs stumble over.

Names of the greatest length, with dots, with characters that mean something in URLs, in bus
subjects or in keys of a store; texts with control characters; words that are also verbs, booleans
or subresources.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from fleetbus_emulator.generate.objects.workloads import Made

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_emulator.generate.objects.naming import Naming

JsonObject = dict[str, Any]
RBAC = "rbac.authorization.k8s.io/v1"
LONGEST_NAME, LONGEST_LABEL = 253, 63
# Only RBAC allows these: any name that is one segment of a path, but for slash and percent.
PATH_SEGMENTS = (
    *("system:controller:job", "a:b:c", "*", ">", "a b", "Ünïcode", "日本語", "UPPER", "a_b", "~"),
    *(
        "quote'\"",
        "{json:1}",
        "$(id)",
        "a.>",
        "a.*.b",
        "[0]",
        "#",
        "a;b",
        "tab\there",
        "😀",
        "-",
        "?",
    ),
)
SUBDOMAINS = (
    *("a", "0", "1e3", "0x1f", "true", "null", "no", "status", "scale", "watch", "namespaces"),
    *("a.b.c", "a-b.c-d", "0.1.2.3", "1.2.3", "x--y", "core", "default.svc", "metadata.name"),
)
TEXTS = (
    *("", " ", "\n", "\t\u0000\u001f", "\u2028\u2029", "\ufeff", "é", "e\u0301", "😀", "\u202eabc"),
    *("null", "true", "0", '{"a": [1', "<script>alert(1)</script>", "'; DROP TABLE pods; --"),
    *("${cluster.name}", "{{ .Values.x }}", "%s%n", "\\", "../../etc/passwd"),
)
ROLE: JsonObject = {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}


class Hostile:
    """Makes such objects without end, each with another name.

    Args:
        naming: Tells objects apart.
    """

    def __init__(self, naming: Naming) -> None:
        self._naming = naming

    def objects(self, namespace: str) -> Iterator[Made]:
        """Objects for a namespace, some of them cluster-scoped."""
        naming = self._naming
        long_name = self._unique(".".join(["n" * LONGEST_LABEL] * 4)[: LONGEST_NAME - 4])
        yield self._made("v1", "ConfigMap", "configmaps", namespace, long_name, self._data())
        for name in naming.random.sample(SUBDOMAINS, k=4):
            unique = self._unique(name)
            yield self._made("v1", "ConfigMap", "configmaps", namespace, unique, self._data())
        name = self._unique(naming.random.choice(SUBDOMAINS))
        text = base64.b64encode(naming.random.choice(TEXTS).encode()).decode()
        secret: JsonObject = {"data": {"..2026_01": text, "_": ""}, "type": "example.com/Any.Type"}
        yield self._made("v1", "Secret", "secrets", namespace, name, secret)
        for name in naming.random.sample(PATH_SEGMENTS, k=3):
            yield self._made(RBAC, "Role", "roles", namespace, self._unique(name), ROLE)
        name = self._unique(naming.random.choice(PATH_SEGMENTS))
        yield self._made(RBAC, "ClusterRole", "clusterroles", "", name, ROLE)

    def _unique(self, name: str) -> str:
        return self._naming.unique(name)

    def _made(
        self,
        api_version: str,
        kind: str,
        plural: str,
        namespace: str,
        name: str,
        content: JsonObject,
    ) -> Made:
        naming = self._naming
        labels = {
            "a": "",
            "0.9-_.z": naming.random.choice(("A", "0", "true", "a.b_c-d")),
            f"{'p' * LONGEST_LABEL}.example.com/{'k' * LONGEST_LABEL}": "v" * LONGEST_LABEL,
        }
        annotations = {
            "example.com/text": naming.random.choice(TEXTS),
            "example.com/UPPER_case.Key": "x" * naming.random.choice((1, 300, 4_000)),
        }
        age = naming.age()
        meta = naming.metadata(name, namespace, age, labels, annotations=annotations)
        meta["finalizers"] = []
        if naming.random.random() < 0.2:  # noqa: PLR2004 - some are held when they are deleted
            meta["finalizers"] = ["example.com/hold"]
        else:
            del meta["finalizers"]
        body: JsonObject = {"apiVersion": api_version, "kind": kind, "metadata": meta, **content}
        return f"{api_version}/{plural}", body

    def _data(self) -> JsonObject:
        random = self._naming.random
        data = {"a.b": random.choice(TEXTS), "..": "dots", "UPPER-key_1": random.choice(TEXTS)}
        raw = {"raw.bin": base64.b64encode(random.randbytes(64)).decode()}
        return {"data": data, "binaryData": raw}
