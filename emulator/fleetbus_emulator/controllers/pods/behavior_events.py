"""Tells, by an Event on the object, of settings to misbehave that make no sense."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fleetbus_emulator.apiserver import Change
from fleetbus_emulator.apiserver.json_tree import mapping
from fleetbus_emulator.controllers.pods.behavior import Images, read_settings, settings_of
from fleetbus_emulator.controllers.runtime.index import Ref
from fleetbus_emulator.controllers.runtime.view import controller_uid
from fleetbus_emulator.controllers.runtime.world import AT_ONCE, Kinds, World

JsonObject = dict[str, Any]
REASON = "InvalidSimulation"


class BehaviorEvents:
    """Reads the annotations of our domain, and records Events for invalid ones."""

    name = "behavior-events"
    watches: Kinds = frozenset()
    rank = AT_ONCE

    def __init__(self, world: World, images: Images) -> None:
        self._world = world
        self._images = images

    def requests_for(self, change: Change, ref: Ref) -> Iterable[Ref]:
        """Objects whose settings are new; a managed pod has them from its template."""
        if change.type == "DELETED" or controller_uid(change.new) is not None:
            return []
        settings = self._asked(change.new)
        before = self._asked(change.old) if change.old is not None else {}
        return [ref] if settings and settings != before else []

    def reconcile(self, ref: Ref) -> None:
        """Record an Event for each setting that is ignored, once."""
        for place, text in self._asked(self._world.view[ref]).items():
            for problem in read_settings({place[1]: text})[1]:
                self._world.warn(ref, REASON, problem, repeat=False)

    def _asked(self, obj: JsonObject) -> dict[tuple[str, str], str]:
        """The settings on the object, in its templates and by its images, each by its place."""
        template = mapping(obj, "spec", "template") or mapping(
            obj, "spec", "jobTemplate", "spec", "template"
        )
        places = {
            "object": settings_of(obj),
            "template": settings_of(template),
            "job": settings_of(mapping(obj, "spec", "jobTemplate")),
            "image": self._images.settings_of(template or obj),
        }
        return {
            (place, name): text
            for place, settings in places.items()
            for name, text in settings.items()
        }
