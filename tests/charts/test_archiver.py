"""The archiver of the chart: off unless wanted, one place for its archive, and its own rights."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fleetbus.bus.connection import connected
from fleetbus.bus.durable_names import ARCHIVER
from fleetbus.bus.durables import consumer_info, ensure_archiver
from fleetbus.bus.jetstream import ensure_stream
from fleetbus.process.health import Health
from fleetbus.process.settings import SharedSettings, load_settings
from fleetbus_archiver.main import run
from fleetbus_archiver.settings import ArchiverSettings
from fleetbus_proto.admission import subject_of
from fleetbus_proto.codec import encode
from fleetbus_proto.headers import build
from support.api.rendered_chart import SEED, VALUES, Object, find, render
from support.eventually import eventually
from support.rows import each_row
from support.servers.rendered_servers import rendered_nats
from support.stores.snapshot import Source
from support.wire.samples import MESSAGE_KEY

NAME = "fb-fleetbus-archiver"
ON_VOLUME: Object = VALUES["archive on a volume"]
IN_BUCKET: Object = VALUES["everything"]
POD = Source().added("web", 1)


def names(values: Object) -> set[str]:
    return {obj["metadata"]["name"] for obj in render(values)}


def deployment(values: Object) -> Object:
    return find(render(values), "Deployment", NAME)["spec"]


def environment(spec: Object) -> dict[str, Any]:
    (container,) = spec["template"]["spec"]["containers"]
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def egress(values: Object) -> list[Object]:
    return find(render(values), "NetworkPolicy", NAME)["spec"]["egress"]


def test_nothing_of_it_is_rendered_unless_it_is_enabled():
    assert not [name for name in names({}) if "archive" in name]
    projector = find(render({}), "Deployment", "fb-fleetbus-projector")["spec"]
    assert "FLEETBUS_RECONCILER_ARCHIVER" not in environment(projector)
    projector = find(render(IN_BUCKET), "Deployment", "fb-fleetbus-projector")["spec"]
    assert environment(projector)["FLEETBUS_RECONCILER_ARCHIVER"] == "true"


def test_a9_the_query_api_reads_the_bucket_with_a_secret_of_its_own_if_it_has_one():
    def query_api(values: Object) -> Object:
        return find(render(values), "Deployment", "fb-fleetbus-query-api")["spec"]

    def secrets(spec: Object) -> dict[str, str]:
        volumes = spec["template"]["spec"]["volumes"]
        return {
            volume["name"]: volume["secret"]["secretName"]
            for volume in volumes
            if "secret" in volume
        }

    spec = query_api(IN_BUCKET)
    archiver = IN_BUCKET["archiver"]
    assert environment(spec)["FLEETBUS_QUERY_API_ARCHIVE_URL"] == archiver["url"]
    assert secrets(spec)["archive-credentials"] == archiver["credentialsSecret"]
    own_secret = {**IN_BUCKET, "queryApi": {"archiveCredentialsSecret": "reader"}}
    assert secrets(query_api(own_secret))["archive-credentials"] == "reader"
    assert secrets(deployment(own_secret))["archive-credentials"] == archiver["credentialsSecret"]
    for values in (ON_VOLUME, {}):
        assert "FLEETBUS_QUERY_API_ARCHIVE_URL" not in environment(query_api(values))
        assert "archive-credentials" not in secrets(query_api(values))


def test_one_process_archives_and_the_next_begins_when_it_has_ended():
    for values in (IN_BUCKET, ON_VOLUME):
        spec = deployment(values)
        assert spec["replicas"] == 1
        assert spec["strategy"] == {"type": "Recreate"}


def test_s2_a_bucket_has_its_credentials_from_files_of_a_secret():
    spec = deployment(IN_BUCKET)
    variables = environment(spec)
    assert variables["FLEETBUS_ARCHIVER_URL"] == "s3://events/fleet"
    assert variables["FLEETBUS_ARCHIVER_CREDENTIALS_DIR"] == "/etc/fleetbus/archive"
    assert variables["FLEETBUS_ARCHIVER_KEEP"] == "30d"
    volumes = {volume["name"]: volume for volume in spec["template"]["spec"]["volumes"]}
    assert volumes["archive-credentials"]["secret"]["secretName"] == "archive-login"
    assert "archive" not in volumes
    assert "fb-fleetbus-archive" not in names(IN_BUCKET)


def test_a_volume_is_kept_with_the_archive_when_the_release_goes():
    claim = find(render(ON_VOLUME), "PersistentVolumeClaim", "fb-fleetbus-archive")
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    spec = deployment(ON_VOLUME)["template"]["spec"]
    (volume,) = [each_volume for each_volume in spec["volumes"] if each_volume["name"] == "archive"]
    assert volume["persistentVolumeClaim"]["claimName"] == "fb-fleetbus-archive"
    url = environment(deployment(ON_VOLUME))["FLEETBUS_ARCHIVER_URL"]
    (mount,) = [
        each_mount
        for each_mount in spec["containers"][0]["volumeMounts"]
        if each_mount["name"] == "archive"
    ]
    assert url.startswith(f"file://{mount['mountPath']}/")
    own_claim = {"enabled": True, "persistence": {"enabled": True, "existingClaim": "mine"}}
    assert "fb-fleetbus-archive" not in names({"archiver": own_claim})


@pytest.mark.parametrize("both", [False, True])
def test_it_is_refused_with_no_place_and_with_two(both: bool):
    archiver = {"enabled": True, "url": "s3://events/p", "persistence": {"enabled": True}}
    with pytest.raises(Exception, match=r"set exactly one of archiver\.url"):
        render({"archiver": archiver if both else {"enabled": True}})


def test_s9_it_reaches_nats_and_the_bucket_and_nothing_of_a_volume_but_nats():
    ports = [[port["port"] for port in rule["ports"]] for rule in egress(IN_BUCKET)]
    assert ports == [[4222], [443]]
    assert [[port["port"] for port in rule["ports"]] for rule in egress(ON_VOLUME)] == [[4222]]
    minio = {"namespaceSelector": {"matchLabels": {"name": "minio"}}}
    policy = {"archive": [minio], "archivePorts": [9000]}
    rule = egress({**IN_BUCKET, "networkPolicy": policy})[1]
    assert rule == {"ports": [{"port": 9000, "protocol": "TCP"}], "to": [minio]}


@each_row(
    ("name", "text"),
    [("keep", "0.5h"), ("keep", "0d"), ("keep", "99999d"), ("chunkAge", "0s"), ("chunkAge", "48h")],
)
def test_a_value_that_the_archiver_would_refuse_is_refused_before(name: str, text: str):
    """Else the pod of a release that was accepted would never start."""
    values = {"archiver": {**IN_BUCKET["archiver"], name: text}}
    with pytest.raises(Exception, match=f"{name}|pattern"):
        render(values)


def test_a_controller_and_a_subscriber_cannot_take_its_durable():
    with pytest.raises(Exception, match="belongs to somebody else"):
        render(
            {
                "externalSubscribers": [
                    {"name": "x", "subjects": ["fleetbus.events.>"], "durable": "archiver"}
                ]
            }
        )


async def test_s4_it_archives_with_the_rights_of_its_user_and_no_others(tmp_path: Path):
    values = {**IN_BUCKET, "credentials": {"seed": SEED}}
    health = Health()
    async with (
        rendered_nats(values, tmp_path) as server,
        connected(server.access("projector"), name="projector") as projector,
        connected(server.access("pool"), name="_pool.test") as pool,
    ):
        await ensure_stream(projector)
        await ensure_archiver(projector)
        headers = build(POD, MESSAGE_KEY)
        await pool.request(subject_of(POD), encode(POD), headers=headers)
        variables = server.environment("archiver")
        fields = {key.removeprefix("FLEETBUS_").lower(): value for key, value in variables.items()}
        settings = ArchiverSettings(url=f"file://{tmp_path}/archive")
        shared = load_settings(SharedSettings, **fields)
        archiver = asyncio.create_task(run(settings, shared, health=health), name="archiver")

        async def is_archived() -> bool:
            info = await consumer_info(projector, ARCHIVER)
            assert info is not None
            return info["ack_floor"]["stream_seq"] == 1

        try:
            await eventually(is_archived)
            await eventually(lambda: health.is_ready)
        finally:
            archiver.cancel()
            await asyncio.gather(archiver, return_exceptions=True)
