"""A mistake in a controller is an error when it is declared or started, not later."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from fleetbus.children.controller import Children
from fleetbus.controller.controller import Controller
from fleetbus.controller.watch import read_resource
from fleetbus.decorator import Decorator
from fleetbus.errors import ConfigError
from fleetbus.fleet.fleet import Fleet
from fleetbus.reconcile import Request, Result
from fleetbus.worker.host import check_controllers
from fleetbus_proto.resources import parse_resource
from support.rows import each_row


async def reconcile(_request: Request, _fleet: Fleet) -> Result | None:
    return None


def whole(name: str = "copier", **options: Any) -> Controller:
    controller = Controller(name, **options)
    controller.watch("v1/pods")
    controller.reconcile(reconcile)
    return controller


@each_row("name", ["", "Copier", "a b", "a.b", "-a", "a" * 64, "a\n"])
def test_a_name_that_is_no_label_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="DNS-1123"):
        Controller(name)


@each_row(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": "8"},
        {"max_per_cluster": 0.5},
        {"timeout": timedelta()},
        {"timeout": 30},
        {"backoff": timedelta(seconds=1)},
        {"backoff": 5},
    ],
)
def test_limits_that_let_nothing_run_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="'copier'"):
        Controller("copier", **options)


@each_row("resource", ["", "no resource", "a/b/c/d", "Pods!"])
def test_a_resource_that_cannot_be_read_is_refused_by_name(resource: str) -> None:
    controller = Controller("copier")
    for watch in (controller.watch, controller.watch_owned):
        with pytest.raises(ConfigError, match="controller 'copier'"):
            watch(resource)


def test_a_selector_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"clusters='region in \(eu'"):
        Controller("copier").watch("v1/pods", clusters="region in (eu")


async def later(_old: Any, _new: Any) -> bool:
    return True


@each_row(
    ("filters", "message"),
    [
        ({"selector": "app in (web"}, r"selector='app in \(web'"),
        ({"annotation_selector": "a b"}, "annotation_selector='a b'"),
        ({"selector": None}, "selector=None"),
        ({"clusters": ["Prod"]}, "'Prod' is neither a name nor a pattern"),
        ({"clusters": later}, "clusters must be a plain function"),
        ({"predicate": later}, "predicate must be a plain function"),
        ({"predicate": "yes"}, "predicate must be a function, not 'yes'"),
        ({"predicate": len}, r"predicate is called with \(old, new\), not as"),
        ({"clusters": lambda: True}, r"clusters is called with \(cluster\), not as"),
    ],
)
def test_a_filter_that_cannot_work_is_one_clear_line(filters: Any, message: str) -> None:
    controller = Controller("copier")
    for watch in (controller.watch, controller.watch_owned):
        with pytest.raises(ConfigError, match=f"controller 'copier': .*{message}") as failure:
            watch("v1/pods", **filters)
        assert "\n" not in str(failure.value)


async def _alone(_request: Request) -> None: ...


alone: Any = _alone


@each_row(
    ("register", "parameters"),
    [
        (lambda: Controller("c").reconcile(alone), r"request, fleet\), not as _alone\(_request"),
        (lambda: Controller("c").watch("v1/pods", map=alone), "object, request, fleet"),
        (lambda: Decorator("c", resource="v1/pods").decorate(alone), "object, cluster"),
        (lambda: children().desired(alone), "parent, cluster, fleet"),
        (lambda: children().propagate(alone), "parent, children, fleet"),
    ],
)
def test_a_function_that_cannot_be_called_as_it_will_be_is_refused(
    register: Callable[[], object], parameters: str
) -> None:
    with pytest.raises(ConfigError, match=rf"controller 'c': \S+ is called with \({parameters}"):
        register()


def children() -> Children:
    return Children("c", parents="v1/pods", parent_clusters=["a"], children="v1/configmaps")


def test_a_map_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="map must be a function"):
        Controller("copier").watch("v1/pods", map=["v1/pods"])  # type: ignore[arg-type]


def test_equal_declarations_have_equal_numbers_in_every_process_and_others_have_others() -> None:
    def declared() -> list[int]:
        controller = Controller("copier")
        controller.watch("v1/pods", clusters=["b", "a"], selector="app=web")
        controller.watch("v1/pods", clusters=["b", "a"], selector="app=web")
        controller.watch("v1/pods", clusters=["a", "b"], selector="app=db")
        controller.watch_owned("v1/pods")
        return [watch.id for watch in controller.watches]

    assert declared() == declared()
    assert len(set(declared())) == 4


def test_namespaces_must_be_a_list_since_the_letters_of_a_text_are_no_namespaces() -> None:
    controller = Controller("copier")
    for watch in (controller.watch, controller.watch_owned):
        with pytest.raises(ConfigError, match="must be a list"):
            watch("v1/pods", namespaces="default")


def test_a_second_reconcile_function_is_refused() -> None:
    controller = whole()
    with pytest.raises(ConfigError, match="two reconcile functions"):
        controller.reconcile(reconcile)


def test_an_object_whose_call_is_async_may_reconcile() -> None:
    class Reconciler:
        async def __call__(self, _request: Request, _fleet: Fleet) -> Result | None:
            return None

    controller = Controller("copier")
    controller.watch("v1/pods")
    function = controller.reconcile(Reconciler())
    assert controller.function() is function


def test_a_controller_without_watch_or_function_does_not_start() -> None:
    idle, silent = Controller("idle"), Controller("silent")
    idle.reconcile(reconcile)
    silent.watch("v1/pods")
    with pytest.raises(ConfigError, match="'idle' watches nothing"):
        check_controllers([whole(), idle])
    with pytest.raises(ConfigError, match="'silent' has no @reconcile function"):
        check_controllers([whole(), silent])


def test_names_that_are_reserved_or_used_twice_are_refused() -> None:
    with pytest.raises(ConfigError, match="two controllers are named copier"):
        check_controllers([whole(), whole()])
    with pytest.raises(ConfigError, match=r"'projector' is reserved, see .*test_controller\.py:\d"):
        check_controllers([whole("projector")])


@each_row(
    "make",
    [
        lambda: Controller("placed"),
        lambda: Children("placed", parents="v1/configmaps", children="v1/pods"),
        lambda: Decorator("placed", resource="v1/pods"),
    ],
)
def test_the_place_of_a_controller_is_a_line_of_its_author(make: Callable[[], Controller]) -> None:
    file, _, line = make().place.rpartition(":")
    assert (file, line.isdigit()) == (__file__, True)


@each_row(
    "text", ["v1/pods", "core.v1.pods", "v1.apps.deployments", "apps.v1.deployments", "a.io/v1/pod"]
)
def test_every_form_of_a_plural_is_a_resource(text: str) -> None:
    assert str(read_resource(text)) == str(parse_resource(text))


@each_row(
    ("text", "nearest"),
    [
        ("v1/Pod", "v1/pods"),
        ("apps/v1/Deployment", "apps/v1/deployments"),
        ("v1/pod", "v1/pods"),
        ("core.v1.cm", "v1/configmaps"),
    ],
)
def test_a_kind_a_singular_and_a_short_name_are_refused_with_the_plural(
    text: str, nearest: str
) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'"):
        read_resource(text)
