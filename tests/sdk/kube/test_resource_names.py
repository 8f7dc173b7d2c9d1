"""Short names, singulars and plurals of resources."""

from __future__ import annotations

import pytest

from fleetbus.kube.resource_names import with_plural
from fleetbus_proto.resources import parse_resource_name


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("deploy", ("apps", None, "deployments")),
        ("pod", ("core", None, "pods")),
        ("v1/po", ("core", "v1", "pods")),
        ("cm", ("core", None, "configmaps")),
        ("ing", ("networking.k8s.io", None, "ingresses")),
        ("ev", (None, None, "events")),  # of two groups
        ("pods", (None, None, "pods")),
        ("widget", (None, None, "widget")),
        ("job.example.com", ("example.com", None, "job")),  # somebody else's
    ],
)
def test_singulars_and_short_names_resolve_as_in_kubectl(
    word: str, meant: tuple[str | None, str | None, str]
):
    assert with_plural(parse_resource_name(word)[0]) == meant
