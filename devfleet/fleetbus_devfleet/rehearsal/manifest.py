"""The MultiClusterResource that is rehearsed, with its timers scaled."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, cast

from fleetbus.errors import CaptureError
from fleetbus.kube.json_fields import mapping
from fleetbus.kube.manifest_yaml import read_documents
from fleetbus.process.durations import InvalidTime, parse_duration
from fleetbus.process.file_errors import file_problem

if TYPE_CHECKING:
    from pathlib import Path

JsonObject = dict[str, Any]
RESOURCE: Final = "fleetbus.dev/v1alpha1/multiclusterresources"
_KIND: Final = "MultiClusterResource"
_API_VERSION: Final = "fleetbus.dev/v1alpha1"
_DEFAULT_TIMEOUT: Final = "10m"
_CHECKS: Final = "fleetbus.checks"
"""Group of entry points: the distributor's own check of a spec is one."""
_SHORTEST: Final = 5.0
"""Seconds; a loaded machine needs them to make anything healthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A MultiClusterResource of a file.

    Attributes:
        document: as it will be written to the emulated hub.
        scaled: the timers that are shorter than in the file, for people.
    """

    document: JsonObject
    scaled: list[str] = field(default_factory=list[str])

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return str(self.document["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.document["metadata"]["name"])

    @property
    def spec(self) -> JsonObject:
        """Its spec."""
        return cast("JsonObject", self.document["spec"])

    @property
    def waves(self) -> list[str]:
        """The names of the waves that it declares."""
        waves = mapping(self.spec, "rollout").get("waves")
        return [str(mapping(wave).get("name")) for wave in cast("list[Any]", waves or [])]

    @property
    def templates(self) -> list[JsonObject]:
        """Its templates, one or several."""
        several = cast("list[Any]", self.spec.get("templates") or [])
        return [mapping(template) for template in [*several, self.spec.get("template")] if template]


def read_manifest(path: Path, namespace: str, *, speed: float) -> Manifest:
    """Read a file with one MultiClusterResource, and divide the timers of its rollout by `speed`.

    Raises:
        CaptureError: the file cannot be read, is invalid YAML, holds something else, or a spec that
            the distributor refuses.
    """
    try:
        documents = read_documents(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as e:
        raise CaptureError(f"{path}: cannot be read: {file_problem(e)}") from e
    except ValueError as e:
        raise CaptureError(f"{path}: {e}") from e
    if len(documents) != 1:
        raise CaptureError(f"{path}: has {len(documents)} documents, not one {_KIND}")
    document = mapping(documents[0])
    if (document.get("apiVersion"), document.get("kind")) != (_API_VERSION, _KIND):
        actual = f"{document.get('kind')} of {document.get('apiVersion')}"
        raise CaptureError(f"{path}: is not a {_KIND} of {_API_VERSION}, but {actual}")
    metadata = mapping(document, "metadata")
    if not isinstance(metadata.get("name"), str) or not isinstance(document.get("spec"), dict):
        raise CaptureError(f"{path}: a {_KIND} needs metadata.name and spec")
    for check in entry_points(group=_CHECKS, name="multiclusterresources"):
        if problems := check.load()(document):
            raise CaptureError(f"{path}: {'; '.join(problems)}")
    placed = {"namespace": namespace, **metadata}
    spec, scaled = _scaled(cast("JsonObject", document["spec"]), speed)
    manifest = {"apiVersion": _API_VERSION, "kind": _KIND, "metadata": placed, "spec": spec}
    return Manifest(document=manifest, scaled=scaled)


def _scaled(spec: JsonObject, speed: float) -> tuple[JsonObject, list[str]]:
    """The spec with shorter timers, and what was changed; what is malformed stays as it is."""
    rollout = spec.get("rollout")
    if not isinstance(rollout, dict) or speed == 1:
        return spec, []
    scaled: list[str] = []
    changed = dict(cast("JsonObject", rollout))
    gate = dict(mapping(changed, "healthGate"))
    gate.setdefault("timeout", _DEFAULT_TIMEOUT)
    changed["healthGate"] = _shortened(gate, "healthGate", speed, scaled)
    changed |= _gates(changed, "", speed, scaled)
    if isinstance(waves := changed.get("waves"), list):
        changed["waves"] = [
            {
                **mapping(wave),
                **_gates(mapping(wave), f"{mapping(wave).get('name')}.", speed, scaled),
            }
            for wave in cast("list[Any]", waves)
        ]
    return {**spec, "rollout": changed}, scaled


def _gates(holder: JsonObject, place: str, speed: float, scaled: list[str]) -> JsonObject:
    gates = holder.get("gates")
    if not isinstance(gates, list):
        return {}
    mappings = [mapping(gate) for gate in cast("list[Any]", gates)]
    return {
        "gates": [
            _shortened(gate, f"{place}gate {gate.get('name')}", speed, scaled) for gate in mappings
        ]
    }


def _shortened(holder: JsonObject, place: str, speed: float, scaled: list[str]) -> JsonObject:
    changed = dict(holder)
    for name in ("timeout", "period"):
        try:
            seconds = parse_duration(str(holder.get(name, ""))).total_seconds()
        except InvalidTime:  # the server refuses it by name
            continue
        shorter = min(seconds, max(seconds / speed, _SHORTEST))
        if shorter < seconds:
            changed[name] = f"{shorter:g}s"
            scaled.append(f"{place} {name} {holder[name]} → {shorter:g}s")
    return changed
