"""The objects of a cluster, from a seed: the same seed makes the same names and uids.

They come in the order in which a real cluster would have got them: namespaces before what is in
them, owners before what they own. Their mix follows that of large clusters: about four in ten
are pods, most pods belong to Deployments, few applications are large and most are small.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from fleetbus_emulator.generate.objects.config import Config
from fleetbus_emulator.generate.objects.databases import (
    DATABASES,
    DEFINITIONS,
    Databases,
    definition,
)
from fleetbus_emulator.generate.objects.hostile import Hostile
from fleetbus_emulator.generate.objects.infrastructure import NAMESPACES, event, namespace, node
from fleetbus_emulator.generate.objects.jobs import cron_job
from fleetbus_emulator.generate.objects.managed_fields import ManagedFields, without_owners
from fleetbus_emulator.generate.objects.naming import Naming
from fleetbus_emulator.generate.objects.pods import Node
from fleetbus_emulator.generate.objects.words import TEAMS, Zipf
from fleetbus_emulator.generate.objects.workloads import (
    PODS,
    Made,
    Place,
    Workloads,
    standard_labels,
)

JsonObject = dict[str, Any]
OBJECTS_PER_NODE = 120
OBJECTS_PER_NAMESPACE = 150
FEWEST_FOR_CUSTOM = 40
FEWEST_FOR_AGENTS = 400
CONFIG = ("v1/configmaps", "v1/secrets")
BELONGINGS = (
    *CONFIG,
    "autoscaling/v2/horizontalpodautoscalers",
    "discovery.k8s.io/v1/endpointslices",
    "rbac.authorization.k8s.io/v1/rolebindings",
    "rbac.authorization.k8s.io/v1/roles",
    "v1/endpoints",
    "v1/events",
    "v1/serviceaccounts",
    "v1/services",
)
# The types of which there can be as many as are asked for, and their kinds.
UNLIMITED = {
    "apps/v1/deployments": "Deployment",
    "apps/v1/replicasets": "ReplicaSet",
    "apps/v1/statefulsets": "StatefulSet",
    "autoscaling/v2/horizontalpodautoscalers": "HorizontalPodAutoscaler",
    "batch/v1/cronjobs": "CronJob",
    "batch/v1/jobs": "Job",
    "discovery.k8s.io/v1/endpointslices": "EndpointSlice",
    DATABASES: "Database",
    "rbac.authorization.k8s.io/v1/rolebindings": "RoleBinding",
    "rbac.authorization.k8s.io/v1/roles": "Role",
    "v1/configmaps": "ConfigMap",
    "v1/endpoints": "Endpoints",
    "v1/events": "Event",
    PODS: "Pod",
    "v1/secrets": "Secret",
    "v1/serviceaccounts": "ServiceAccount",
    "v1/services": "Service",
}
NEEDED = (NAMESPACES, DEFINITIONS)
NEEDED_KINDS = {"Namespace", "CustomResourceDefinition"}
HOSTILE_EVERY = 8  # of the groups, if asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The objects to fill a cluster with.

    Attributes:
        objects: How many objects, exactly; with `only`, how many of these types.
        seed: The same seed makes the same objects; dates are counted back from `now`.
        cluster: The name of the cluster: others get other objects by the same seed.
        only: The types to keep, like `v1/pods`, with the namespaces and definitions that they
            need; empty for all. Without its owner an object stands alone: the reference to it goes.
        canary: A string in every Secret, for tests that look for leaks.
        hostile: Mix in objects that are valid and hard to handle.
        taken: Names that exist already.
        turn: How often the cluster was filled by this seed before.
        now: Ages are counted from here back.
    """

    objects: int
    seed: int = 0
    cluster: str = ""
    only: Collection[str] = ()
    canary: str = ""
    hostile: bool = False
    taken: Collection[str] = field(default=(), repr=False)
    turn: int = 0
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        if self.objects < 1:
            raise ValueError(f"a population has at least one object, not {self.objects}")
        unknown = sorted({*self.only}.difference(UNLIMITED))
        if unknown:
            raise ValueError(f"only: {unknown} are none of {', '.join(UNLIMITED)}")

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of the types to keep; empty for all."""
        return frozenset(UNLIMITED[gvr] for gvr in self.only)

    def __iter__(self) -> Iterator[Made]:
        """The objects with the names of their types."""
        return itertools.chain.from_iterable(self.groups())

    def groups(self) -> Iterator[list[Made]]:
        """The same in groups that belong together, like a Deployment and all that is below it.

        Where controllers look on, a group must come whole, or they make what is missing.
        """
        left = self.objects
        for objects in _Making(self).groups():
            group = self._chosen(objects, left) if self.only else objects[:left]
            left -= sum(gvr in self.only for gvr, _ in group) if self.only else len(group)
            if group:
                yield group
            if not left:
                return

    def _chosen(self, objects: list[Made], left: int) -> list[Made]:
        """The wanted objects of a group, and those they need."""
        needed = [pair for pair in objects if pair[0] in NEEDED]
        chosen = [(gvr, self._disowned(obj)) for gvr, obj in objects if gvr in self.only]
        return needed + chosen[:left]

    def _disowned(self, obj: JsonObject) -> JsonObject:
        """The object without owners that are not made."""
        owners: list[JsonObject] = obj["metadata"].get("ownerReferences") or []
        if not owners or owners[0]["kind"] in self.kinds:
            return obj
        meta = {k: v for k, v in obj["metadata"].items() if k != "ownerReferences"}
        meta["managedFields"] = [without_owners(entry) for entry in meta["managedFields"]]
        return {**obj, "metadata": meta}


class _Making:
    """One pass through a population."""

    def __init__(self, population: Population) -> None:
        self._population = population
        seed = f"{population.seed}/{population.cluster}/{population.turn}"
        self._random = Random(seed)  # noqa: S311 - objects to play with, no secrets
        self._naming = Naming(self._random, population.taken, population.now)
        self._managed_fields = ManagedFields(
            population.kinds | NEEDED_KINDS if population.only else ()
        )
        self._config = Config(self._naming, self._managed_fields, population.canary)
        self._hostile = Hostile(self._naming)
        self._namespaces: list[str] = []
        self._only = frozenset(population.only)

    def groups(self) -> Iterator[list[Made]]:
        """All groups, and more: the caller stops when there is enough."""
        left = self._population.objects
        for group in self._ground(left):
            left -= len(group)
            yield group
        for group in self._applications():
            left -= len(group)
            if left < 0 and not self._only:
                break  # half a group would be owners without what they own
            yield group
        place = Place("settings", self._namespaces[0])
        while True:
            name = self._naming.unique(f"settings-{self._naming.suffix()}")
            yield [self._config.config_map(place, name)]

    # the ground ---------------------------------------------------------------------------------

    def _ground(self, objects: int) -> Iterator[list[Made]]:
        naming = self._naming
        for _ in range(1 + objects // OBJECTS_PER_NAMESPACE):
            group = list(namespace(naming, self._managed_fields, self._population.seed))
            self._namespaces.append(group[0][1]["metadata"]["name"])
            yield group
        nodes: list[Node] = []
        for _ in range(1 + objects // OBJECTS_PER_NODE):
            new_node, group = node(naming, self._managed_fields)
            nodes.append(new_node)
            yield group
        self._workloads = Workloads(naming, self._managed_fields, nodes)
        self._nodes = nodes
        self._places = Zipf(self._namespaces, 0.8)
        gvr, crd = definition(naming, self._managed_fields)
        self._databases = Databases(naming, self._managed_fields, crd)
        self._has_custom = DATABASES in self._only or (
            not self._only and objects >= FEWEST_FOR_CUSTOM
        )
        if self._has_custom and crd["metadata"]["name"] not in self._population.taken:
            yield [(gvr, crd)]
        if objects >= FEWEST_FOR_AGENTS:
            for _ in range(2):
                yield list(self._workloads.daemon_set("kube-system"))

    # what runs ----------------------------------------------------------------------------------

    def _applications(self) -> Iterator[list[Made]]:
        makers = self._makers()
        weights = [weight for weight, _ in makers]
        choices = [maker for _, maker in makers]
        for number in itertools.count():
            place = self._places.pick(self._random)
            if self._population.hostile and number % HOSTILE_EVERY == 0:
                yield list(self._hostile.objects(place))
            yield list(self._random.choices(choices, weights)[0](place))

    def _makers(self) -> list[tuple[int, Callable[[str], Iterator[Made]]]]:
        """The makers of groups, with weights; only those that make something wanted."""
        makers: list[tuple[int, Callable[[str], Iterator[Made]], tuple[str, ...]]] = [
            (30, self._application, ()),
            (6, self._store, ()),
            (4, self._chore, (PODS, "batch/v1/cronjobs", "batch/v1/jobs")),
            (10, self._loose_config, CONFIG),
        ]
        if self._has_custom:
            makers.append((6, self._custom, (DATABASES,)))
        return [(weight, maker) for weight, maker, types in makers if self._wants(types)]

    def _wants(self, types: Collection[str]) -> bool:
        """Whether one of some types is wanted; no types means many."""
        return not self._population.only or not types or not self._only.isdisjoint(types)

    def _place(self, app: str, where: str) -> Place:
        version = f"{self._random.randint(1, 9)}.{self._random.randint(0, 40)}"
        labels = standard_labels(app, version, self._random.choice(TEAMS))
        return Place(app, where, account=app, labels=labels)

    def _application(self, where: str) -> Iterator[Made]:
        place = self._place(self._naming.application(), where)
        if self._wants(BELONGINGS):
            yield from self._belongings(place)
        pods: list[JsonObject] = []
        for pair in self._workloads.deployment(place):
            yield pair
            if pair[0] == PODS:
                pods.append(pair[1])
        if self._wants(BELONGINGS):
            yield from self._surroundings(place, pods)

    def _surroundings(self, place: Place, pods: list[JsonObject]) -> Iterator[Made]:
        config = self._config
        if self._random.random() < 0.8:  # noqa: PLR2004 - the others have no Service
            yield from config.service(place, pods, {node.name: node.zone for node in self._nodes})
        if self._random.random() < 0.2:  # noqa: PLR2004 - some grow by themselves
            yield config.scaler(place, len(pods))
        for _ in range(self._random.choice((0, 1, 2, 3))):
            yield event(self._naming, self._managed_fields, self._random.choice(pods))

    def _belongings(self, place: Place) -> Iterator[Made]:
        config = self._config
        yield config.account(place, place.account)
        yield config.config_map(place, f"{place.app}-config")
        yield config.secret(place, f"{place.app}-credentials")
        if self._random.random() < 0.3:  # noqa: PLR2004 - the others may do nothing
            yield from config.rights(place, place.app)

    def _store(self, where: str) -> Iterator[Made]:
        place = self._place(self._naming.store(), where)
        if self._wants(BELONGINGS):
            yield from self._belongings(place)
        yield from self._workloads.stateful_set(place)

    def _chore(self, where: str) -> Iterator[Made]:
        yield from cron_job(
            self._naming, self._managed_fields, where, self._random.choice(self._nodes)
        )

    def _loose_config(self, where: str) -> Iterator[Made]:
        app = self._naming.application()
        place = Place(app, where, labels={"app.kubernetes.io/part-of": app.partition("-")[0]})
        for number in range(self._random.choice((1, 2, 4))):
            yield self._config.config_map(place, f"{app}-{number}")
            yield self._config.secret(place, f"{app}-secret-{number}")

    def _custom(self, where: str) -> Iterator[Made]:
        for _ in range(self._random.choice((1, 2, 5))):
            yield self._databases.database(where)
