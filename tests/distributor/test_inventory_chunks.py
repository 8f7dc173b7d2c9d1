"""An intent that is too large for one status is in chunks of its own (rule D2)."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleetbus.deletions.budget import objects_on_record
from fleetbus.errors import ServerError
from fleetbus.finalizers import finalizers_of
from fleetbus.fleet.inventory_chunks import CHUNKS, hash_of
from fleetbus.fleet.orphans import read_intents
from fleetbus.ownership import FINALIZER, MULTI_CLUSTER_RESOURCES
from fleetbus_distributor.errors import IntentError
from fleetbus_distributor.hub import chunks
from fleetbus_distributor.hub.document import Document
from fleetbus_distributor.plan import intent
from fleetbus_distributor.plan.intent import Inventory, Mark, Owned
from fleetbus_distributor.render.template import ObjectRef
from support.rigs.distributor import CONFIG_MAP, HUB, Rig

MAPS = "v1/configmaps"
NAMES = ("t1", "t2")


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intent, "MAX_BYTES", 300)
    monkeypatch.setattr(intent, "PART_BYTES", 300)


def place(rig: Rig, *, objects: int = 3, clusters: tuple[str, ...] = NAMES) -> None:
    rig.create(templates=templates(objects), placement=placement(*clusters))


def templates(count: int) -> list[dict[str, Any]]:
    metadata = [{"name": f"m{number}", "namespace": "default"} for number in range(count)]
    return [{**copy.deepcopy(CONFIG_MAP), "metadata": one} for one in metadata]


def placement(*names: str) -> dict[str, Any]:
    return {"clusters": [{"name": name} for name in names]}


def stored(rig: Rig) -> dict[str, Any]:
    return rig.resource()["status"]["intent"]


def listed(rig: Rig) -> list[str]:
    return sorted(one["name"] for one in stored(rig)["chunks"])


def present(rig: Rig) -> list[str]:
    return sorted(name for _, name in rig.hub.names(CHUNKS))


def maps(rig: Rig) -> list[str]:
    return [
        f"{name}/{one}"
        for name in NAMES
        for _, one in rig.clusters[name].names(MAPS)
        if one.startswith("m")
    ]


async def sweep(rig: Rig, *, after: timedelta) -> int:
    hub = rig.fleet.cluster(HUB).live
    return await chunks.sweep(
        hub, await hub.list(MULTI_CLUSTER_RESOURCES), now=datetime.now(UTC) + after
    )


# --- the form ---------------------------------------------------------------------------------


def test_d2_50_objects_on_1000_clusters_are_recorded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    refs = [ObjectRef("v1", "ConfigMap", "default", f"map-{n}") for n in range(50)]
    inventory: Inventory = {
        f"cluster-{n:04}": {ref.key: Owned(ref, f"{n:036}") for ref in refs} for n in range(1000)
    }
    bases = {name: intent.Basis(3, "abcd1234") for name in inventory}
    intent.check_room(inventory, bases)
    written = intent.write(inventory, bases)
    assert intent.read({"intent": written}) == inventory
    assert intent.read_bases({"intent": written}) == bases
    before = {str(part) for part in written["parts"]}
    inventory["another"] = {refs[0].key: Owned(refs[0])}
    after = [str(part) for part in intent.write(inventory, bases)["parts"]]
    assert len([part for part in after if part not in before]) == 1


def test_d2_what_no_number_of_chunks_can_hold_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(intent, "MAX_PARTS", 2)
    refs = [ObjectRef("v1", "ConfigMap", "default", f"map-{n}") for n in range(50)]
    with pytest.raises(IntentError, match="split it"):
        intent.write({"t1": {ref.key: Owned(ref) for ref in refs}})


def test_d8_the_confirmation_of_all_objects_changes_no_part():
    refs = [ObjectRef("v1", "ConfigMap", "default", f"map-{n}") for n in range(50)]
    inventory: Inventory = {"t1": {ref.key: Owned(ref, "u") for ref in refs}}
    confirmed: Inventory = {
        "t1": {ref.key: Owned(ref, "u", Mark.CONFIRMED) for ref in refs},
    }
    written = intent.write(confirmed)
    assert written["parts"] == intent.write(inventory)["parts"]
    assert intent.read({"intent": written}) == confirmed


# --- a life -----------------------------------------------------------------------------------


async def test_d2_a_large_intent_lives_in_chunks_and_goes_with_its_owner(rig: Rig):
    place(rig)
    await rig.reconcile()
    assert set(stored(rig)) == {"chunks"}
    assert listed(rig) == present(rig)
    assert objects_on_record(rig.resource()["status"]) == 6
    found = rig.hub.get(CHUNKS, "default", present(rig)[0])
    assert found is not None
    assert finalizers_of(found) == [FINALIZER]
    assert [one["uid"] for one in found["metadata"]["ownerReferences"]] == [
        rig.resource()["metadata"]["uid"]
    ]
    assert len(maps(rig)) == 6

    before = rig.resource()["metadata"]["resourceVersion"]
    await rig.reconcile()  # nothing changes
    assert rig.resource()["metadata"]["resourceVersion"] == before

    rig.edit(templates=templates(2))
    await rig.reconcile()
    assert len(maps(rig)) == 4
    assert listed(rig) == present(rig)

    rig.delete()
    await rig.reconcile()
    assert not rig.exists()
    assert maps(rig) == []
    assert present(rig) == []


async def test_d2_an_intent_that_becomes_small_returns_into_the_status(rig: Rig):
    place(rig)
    await rig.reconcile()
    rig.edit(templates=templates(1), placement=placement("t1"))
    await rig.reconcile()
    assert "chunks" not in stored(rig)
    assert present(rig) == []


async def test_d7_no_object_in_a_chunk_is_an_orphan(rig: Rig):
    place(rig)
    await rig.reconcile()
    hub = rig.fleet.cluster(HUB).live
    found = await read_intents(hub)
    assert ("t1", "", "ConfigMap", "default", "m2") in found.places
    rig.hub.patch(CHUNKS, "default", present(rig)[0], {"metadata": {"finalizers": []}})
    rig.hub.delete(CHUNKS, "default", present(rig)[0])
    assert (await read_intents(hub)).unreadable == {rig.resource()["metadata"]["uid"]}


async def test_d11_a_single_cluster_is_repaired_without_reading_chunks(rig: Rig):
    place(rig)
    await rig.reconcile()
    rig.clusters["t1"].patch(MAPS, "default", "m0", {"data": {"k": "changed"}})
    rig.hub.requests.clear()
    await rig.repair("t1")
    assert rig.get("t1", MAPS, "m0")["data"] == CONFIG_MAP["data"]
    assert not [one for one in rig.hub.requests if "inventorychunks" in one.path]


# --- missing and damaged chunks ---------------------------------------------------------------


def lose(rig: Rig, name: str) -> None:
    rig.hub.patch(CHUNKS, "default", name, {"metadata": {"finalizers": []}})
    rig.hub.delete(CHUNKS, "default", name)


def damage(rig: Rig, name: str) -> None:
    """Somebody forces another one in its place: its data cannot be changed."""
    body = rig.hub.get(CHUNKS, "default", name)
    assert body is not None
    lose(rig, name)
    rig.hub.create(
        CHUNKS, {**body, "metadata": {"name": name, "namespace": "default"}, "data": "{}"}
    )


@pytest.mark.parametrize(
    ("harm", "words"), [(lose, "is missing"), (damage, "not what was recorded")]
)
@pytest.mark.parametrize("is_restarted", [True, False])
async def test_d2_without_every_chunk_nothing_is_applied_or_deleted(
    rig: Rig, harm: Callable[[Rig, str], None], words: str, is_restarted: bool
):
    place(rig)
    await rig.reconcile()
    name = listed(rig)[0]
    copied = rig.hub.get(CHUNKS, "default", name)
    harm(rig, name)
    if is_restarted:
        rig.restart()
    rig.edit(templates=templates(1))
    writes = rig.writes("t1"), rig.writes("t2")
    result = await rig.reconcile()
    assert result is not None
    assert result.requeue_after == timedelta(minutes=1)
    ready = rig.condition()
    assert ready["reason"] == "IntentUnusable"
    assert name in ready["message"]
    assert words in ready["message"]
    assert (rig.writes("t1"), rig.writes("t2")) == writes
    rig.delete()
    await rig.reconcile()
    assert rig.exists()
    assert len(maps(rig)) == 6

    assert copied is not None  # somebody restores it from a backup
    if rig.hub.get(CHUNKS, "default", name):
        lose(rig, name)
    metadata = {"name": name, "namespace": "default"}
    rig.hub.create(CHUNKS, {**copied, "metadata": metadata})
    await rig.reconcile()
    assert maps(rig) == []
    assert not rig.exists()


# --- crashes ----------------------------------------------------------------------------------


class Crash(Exception):
    """The process dies here."""


async def test_d2_a_crash_between_any_two_writes_loses_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    place(rig, objects=4)
    await rig.reconcile()
    steps = 0
    for crash_at in range(1, 40):
        rig.edit(templates=templates(2 if crash_at % 2 else 4))
        if not await crashes(rig, monkeypatch, crash_at):
            steps = crash_at
            break
        # Whatever is stored lists chunks that exist, and names all that is ours.
        assert set(listed(rig)) <= set(present(rig))
        await names_all(rig)
        rig.restart()
        await rig.reconcile()
        assert rig.states() == {"t1": "Applied", "t2": "Applied"}
        assert len(maps(rig)) == (4 if crash_at % 2 else 8)
    assert steps > 6, "no crash point was found"
    await sweep(rig, after=timedelta(minutes=11))
    assert listed(rig) == present(rig)


async def crashes(rig: Rig, monkeypatch: pytest.MonkeyPatch, at: int) -> bool:
    """Run a round that dies instead of its n-th write to the hub; whether it got there."""
    hub = rig.fleet.cluster(HUB).live
    really, count = hub.request, 0

    async def dies(call: Any) -> bytes:
        nonlocal count
        count += call.method != "GET"
        if count >= at and call.method != "GET":
            raise Crash
        return await really(call)

    with monkeypatch.context() as patched:
        patched.setattr(hub, "request", dies)
        try:
            await rig.reconcile()
        except (Crash, ExceptionGroup):
            return True
    return False


async def names_all(rig: Rig) -> None:
    hub = rig.fleet.cluster(HUB).live
    inventory = intent.read((await read_document(hub)).status)
    recorded = {f"{name}/{key[3]}" for name, entries in inventory.items() for key in entries}
    assert set(maps(rig)) <= recorded


# --- chunks that nobody lists -----------------------------------------------------------------


async def test_d2_the_sweep_removes_only_what_nobody_lists_or_is_about_to(rig: Rig):
    place(rig)
    await rig.reconcile()
    kept = listed(rig)
    hub = rig.fleet.cluster(HUB).live
    document = Document(hub, rig.resource())
    left = {"objects": [], "clusters": [{"name": "left"}]}
    await chunks.ChunkStore().write(hub, document.resource, [left], [])
    assert len(present(rig)) == len(kept) + 1
    assert await sweep(rig, after=timedelta()) == 0
    assert await sweep(rig, after=timedelta(minutes=11)) == 1
    assert present(rig) == kept


async def test_d2_a_leftover_is_used_again_and_then_not_swept(rig: Rig):
    place(rig)
    hub = rig.fleet.cluster(HUB).live
    part = {"objects": [], "clusters": [{"name": "left"}]}
    first, _ = await chunks.ChunkStore().write(hub, rig.resource(), [part], [])
    old = rig.hub.list(CHUNKS)[0]
    again, _ = await chunks.ChunkStore().write(hub, rig.resource(), [part], [])
    assert again == first
    assert "fleetbus.dev/used-at" in rig.hub.list(CHUNKS)[0]["metadata"]["annotations"]
    # A sweep that has listed it before cannot remove it any more.
    with pytest.raises(Exception, match=r"Conflict|modified|precondition"):
        await hub.delete(
            CHUNKS,
            "default",
            first[0].name,
            uid=old["metadata"]["uid"],
            resource_version=old["metadata"]["resourceVersion"],
        )


async def test_d2_a_chunk_that_is_being_deleted_is_not_used_again(rig: Rig):
    place(rig)
    hub = rig.fleet.cluster(HUB).live
    part = {"objects": [], "clusters": [{"name": "left"}]}
    first, _ = await chunks.ChunkStore().write(hub, rig.resource(), [part], [])
    rig.hub.delete(CHUNKS, "default", first[0].name)
    again, _ = await chunks.ChunkStore().write(hub, rig.resource(), [part], [])
    assert again[0].name != first[0].name
    assert again[0].sha256 == first[0].sha256 == hash_of(rig.hub.list(CHUNKS)[0]["data"])


async def test_d2_a_chunk_that_another_round_lists_again_is_not_removed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    place(rig)
    await rig.reconcile()
    hub = rig.fleet.cluster(HUB).live
    before = await read_document(hub)
    slow = await read_document(hub)
    really = hub.request

    async def meanwhile(call: Any) -> bytes:
        answer = await really(call)
        if call.path.endswith("/status"):
            patched.undo()
            other = await read_document(hub)
            await other.write_status({**other.status, "intent": before.status["intent"]})
        return answer

    less = {"parts": [{"objects": [], "clusters": [{"name": "t1"}]}]}
    with monkeypatch.context() as patched:
        patched.setattr(hub, "request", meanwhile)
        await slow.write_status({**slow.status, "intent": less})
    assert stored(rig) == before.resource["status"]["intent"]
    assert set(listed(rig)) <= set(present(rig))
    assert (await read_document(hub)).status["intent"] == before.status["intent"]


async def read_document(hub: Any) -> Document:
    found = await hub.get(MULTI_CLUSTER_RESOURCES, "default", "x")
    document = Document(hub, found)
    await document.load_chunks()
    return document


async def test_d8_a_terminating_namespace_lets_no_chunk_be_created_and_can_be_confirmed(rig: Rig):
    rig.hub.create("v1/namespaces", {"metadata": {"name": "team"}})
    rig.create("x", "team", templates=templates(3), placement=placement(*NAMES))
    await rig.reconcile("x", "team")
    rig.hub.delete("v1/namespaces", None, "team")
    rig.hub.delete(MULTI_CLUSTER_RESOURCES, "team", "x")
    await rig.reconcile("x", "team")
    found = rig.hub.get(MULTI_CLUSTER_RESOURCES, "team", "x")
    assert found is not None
    assert found["status"]["held"]["reason"] == "NamespaceTerminating"
    confirm = {"fleetbus.dev/confirm-prune": found["status"]["held"]["planHash"]}
    rig.hub.patch(MULTI_CLUSTER_RESOURCES, "team", "x", {"metadata": {"annotations": confirm}})
    for _ in range(3):
        await rig.reconcile("x", "team")
    assert maps(rig) == []
    assert rig.hub.get(MULTI_CLUSTER_RESOURCES, "team", "x") is None
    assert rig.hub.names(CHUNKS) == []


async def test_d2_a_status_is_not_written_long_after_its_chunks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fleetbus_distributor.hub.document.STORED_WITHIN", timedelta(seconds=-1))
    place(rig)
    await rig.reconcile()
    assert "intent" not in rig.resource().get("status", {})
    assert maps(rig) == []


async def test_d2_the_hub_that_does_not_answer_is_no_missing_chunk(rig: Rig):
    place(rig)
    await rig.reconcile()
    hub = rig.fleet.cluster(HUB).live
    really = hub.request

    async def fails(call: Any) -> bytes:
        if "inventorychunks" in call.path:
            raise ServerError(503, "ServiceUnavailable", "etcd is away")
        return await really(call)

    hub.request = fails  # type: ignore[method-assign]
    with pytest.raises(ServerError):
        await rig.reconcile()
    hub.request = really  # type: ignore[method-assign]
    assert rig.condition()["reason"] == "Applied"
