"""The volumes of a pod, as folders of this machine, and kept up to date while it runs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from support.kubelet.api import Api, Object
from support.kubelet.environment import NotReadyError, References

TOKENS: Final = "/var/run/secrets/kubernetes.io/serviceaccount"
_RENEW_AT: Final = 0.8
_WRITABLE: Final = frozenset({"emptyDir", "persistentVolumeClaim"})


class Volumes:
    """The volumes of one pod.

    Args:
        api: where Secrets and ConfigMaps are, and where tokens come from.
        pod: whose they are.
        folder: for what lives as long as the pod.
        claims: for what PersistentVolumeClaims keep.
    """

    def __init__(self, api: Api, pod: Object, folder: Path, claims: Path) -> None:
        self._api = api
        self._pod = pod
        self._folder = folder
        self._claims = claims
        self._specs: list[Object] = pod["spec"].get("volumes", [])
        self._tokens: dict[tuple[str, str], tuple[str, float]] = {}

    async def update(self) -> None:
        """Write what has changed; everything, the first time.

        Raises:
            NotReadyError: something that is not optional is missing.
        """
        for spec in self._specs:
            place = self.place(spec["name"])
            if _WRITABLE & spec.keys():
                place.mkdir(parents=True, exist_ok=True)
            else:
                write_atomically(place, await self._content(spec))

    def place(self, name: str) -> Path:
        """Where a volume is on this machine."""
        (spec,) = [volume for volume in self._specs if volume["name"] == name]
        if claim := spec.get("persistentVolumeClaim"):
            return self._claims / self._pod["metadata"]["namespace"] / claim["claimName"]
        return self._folder / name

    async def _content(self, spec: Object) -> dict[str, bytes]:
        references = References(self._api, self._pod)
        match spec:
            case {"secret": source}:
                data = await references.data("secrets", source, source["secretName"])
                return _chosen(data, source)
            case {"projected": {"sources": sources}}:
                parts = [await self._projected(references, source) for source in sources]
                return {path: text for content in parts for path, text in content.items()}
            case _:
                return await self._projected(references, spec)

    async def _projected(self, references: References, spec: Object) -> dict[str, bytes]:
        match spec:
            case {"secret": source}:
                return _chosen(await references.data("secrets", source, source["name"]), source)
            case {"configMap": source}:
                return _chosen(await references.data("configmaps", source, source["name"]), source)
            case {"downwardAPI": source}:
                items: list[Object] = source.get("items", [])
                field = references.field
                return {
                    item["path"]: field(item["fieldRef"]["fieldPath"]).encode() for item in items
                }
            case {"text": source}:
                return {source["path"]: source["value"].encode()}
            case {"serviceAccountToken": source}:
                return {source["path"]: (await self._token(source)).encode()}
            case _:
                raise NotReadyError(f"not understood: volume {sorted(spec)}")

    async def _token(self, source: Object) -> str:
        """A token for the audience, bound to the pod; a new one when 80 % of its time is over."""
        audience, seconds = source.get("audience", ""), source.get("expirationSeconds", 3600)
        key = (audience, source["path"])
        token, until = self._tokens.get(key, ("", 0.0))
        if time.monotonic() < until:
            return token
        meta = self._pod["metadata"]
        account = self._pod["spec"].get("serviceAccountName", "default")
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        spec = {
            "audiences": [audience] if audience else [],
            "expirationSeconds": seconds,
            "boundObjectRef": bound,
        }
        path = f"/api/v1/namespaces/{meta['namespace']}/serviceaccounts/{account}/token"
        token = (await self._api.post(path, {"spec": spec}))["status"]["token"]
        self._tokens[key] = (token, time.monotonic() + _RENEW_AT * seconds)
        return token


def with_token(pod: Object, authority: str) -> Object:
    """The pod with the volume that admission adds in a real API server, and the server's CA."""
    spec = pod["spec"]
    mounts = [m["mountPath"] for c in spec["containers"] for m in c.get("volumeMounts", ())]
    if spec.get("automountServiceAccountToken") is False or TOKENS in mounts:
        return pod
    sources: list[Object] = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"text": {"path": "ca.crt", "value": authority}},
        {
            "downwardAPI": {
                "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
            }
        },
    ]
    volume = {"name": "kube-api-access", "projected": {"sources": sources}}
    mount = {"name": "kube-api-access", "mountPath": TOKENS, "readOnly": True}
    more = {
        kind: [{**c, "volumeMounts": [*c.get("volumeMounts", ()), mount]} for c in spec[kind]]
        for kind in ("initContainers", "containers")
        if kind in spec
    }
    return {**pod, "spec": {**spec, **more, "volumes": [*spec.get("volumes", ()), volume]}}


def _chosen(data: Mapping[str, bytes], source: Object) -> dict[str, bytes]:
    if "items" not in source:
        return dict(data)
    if lacking := [item["key"] for item in source["items"] if item["key"] not in data]:
        raise NotReadyError(f"references non-existent key: {', '.join(lacking)}")
    return {item["path"]: data[item["key"]] for item in source["items"]}


def write_atomically(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write all files at once, as kubelet does: names are links into `..data`, which is replaced.

    Nothing happens if nothing has changed.
    """
    current = folder / "..data"
    if current.exists() and _read(current.resolve()) == dict(content):
        return
    old = current.resolve() if current.exists() else None
    fresh = folder / f"..{time.time_ns()}"
    for path, text in content.items():
        place = fresh / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch(mode=0o640)
        place.write_bytes(text)
    fresh.mkdir(parents=True, exist_ok=True)
    link = folder / "..data_tmp"
    link.symlink_to(fresh.name)
    link.rename(current)
    _link(folder, {Path(path).parts[0] for path in content})
    if old is not None:
        shutil.rmtree(old)


def _link(folder: Path, names: Iterable[str]) -> None:
    expected = set(names)
    for path in folder.iterdir():
        if not path.name.startswith("..") and path.name not in expected:
            path.unlink()
    for name in expected:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("..data", name))


def _read(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
