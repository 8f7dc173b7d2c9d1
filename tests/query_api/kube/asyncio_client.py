"""A program of kubernetes_asyncio before a server below /kube; prints what it finds, line by line.

    python asyncio_client.py http://127.0.0.1:8080/kube/eu1 namespace

It lists ConfigMaps in pages, typed, gets one and misses one, lists through the DynamicClient, then
watches from the version of its list until a ConfigMap `last` comes. A process of its own, because
others may have imported the library without its typed models.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Any

PAGE = 2


def library(name: str) -> Any:
    """A module of kubernetes_asyncio; most of what is in it has no types that hold."""
    return import_module(f"kubernetes_asyncio.{name}")


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(url: str, namespace: str) -> None:
    """Play it all."""
    client = library("client")
    async with client.ApiClient(client.Configuration(host=url)) as api:
        core = client.CoreV1Api(api)
        version = await list_pages(core, namespace)
        config = await core.read_namespaced_config_map("c1", namespace)
        say("got", type(config).__name__, config.metadata.name, config.data["n"])
        try:
            await core.read_namespaced_config_map("none", namespace)
        except client.ApiException as e:
            say("missed", e.status, e.reason)
        dynamic = await library("dynamic").DynamicClient(api)
        resource = await dynamic.resources.get(api_version="v1", kind="ConfigMap")
        listed = await resource.get(namespace=namespace, label_selector="even=yes")
        say("dynamic", *(item.metadata.name for item in listed.items))
        await watch(core, namespace, version)


async def list_pages(core: Any, namespace: str) -> str:
    """List in pages; the version to watch from."""
    names: list[str] = []
    versions: set[str] = set()
    token = ""
    while True:
        page = await core.list_namespaced_config_map(namespace, limit=PAGE, _continue=token or None)
        names += [item.metadata.name for item in page.items]
        versions.add(page.metadata.resource_version)
        token = page.metadata._continue
        if not token:
            break
    say("listed", *names)
    (version,) = versions
    return version


async def watch(core: Any, namespace: str, version: str) -> None:
    """Watch until the last one comes."""
    call = core.list_namespaced_config_map
    async with (
        library("watch")
        .Watch()
        .stream(call, namespace, resource_version=version, timeout_seconds=20) as stream
    ):
        say("watching")
        async for event in stream:
            say(event["type"], event["object"].metadata.name)
            if event["object"].metadata.name == "last":
                return


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
