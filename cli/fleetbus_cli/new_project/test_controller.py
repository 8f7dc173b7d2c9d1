from controller import MAPS, controller

from fleetbus.testing import ControllerTest, controller_test


async def test_config_maps_with_the_label_are_greeted_in_every_cluster() -> None:
    async with controller_test(controller, clusters=["a", "b"]) as t:
        for cluster in ("a", "b"):
            for greet in ("yes", "no"):
                metadata = {"name": greet, "labels": {"greet": greet}}
                t.clusters[cluster].create(MAPS, {"metadata": metadata}, "default")
        await t.run_until_idle()
        for cluster in ("a", "b"):
            assert greeting(t, cluster, "yes") == f"hello from {cluster}"
            assert greeting(t, cluster, "no") is None


def greeting(t: ControllerTest, cluster: str, name: str) -> str | None:
    config_map = t.clusters[cluster].get(MAPS, "default", name)
    assert config_map is not None
    return config_map["metadata"].get("annotations", {}).get("example.com/greeting")
