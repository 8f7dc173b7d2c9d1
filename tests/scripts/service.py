"""A service that runs, stops or fails as the argument says.

python tests/run.py scripts.service STORY
"""

from __future__ import annotations

import asyncio
import sys
from typing import NoReturn

from fleetbus.errors import BusError, ConfigError
from fleetbus.process.lifecycle import run_service, run_until_stopped
from fleetbus.process.logs import set_up_logs


async def sleep() -> None:
    try:
        print("running", flush=True)
        await asyncio.sleep(60)  # until it is stopped
    finally:
        await asyncio.sleep(0.01)  # a slow end
        print("finished cleanly", flush=True)


async def fail(error: Exception) -> NoReturn:
    raise error


async def start_slowly() -> None:
    print("starting", flush=True)
    await asyncio.sleep(60)  # until it is stopped


STORIES = {
    "two-loops": lambda: run_until_stopped(one=sleep(), two=sleep()),
    "wrong-configuration": lambda: fail(ConfigError("clusters.yaml: clusters.0.name: missing")),
    "loop-with-wrong-configuration": lambda: run_until_stopped(
        good=sleep(), bad=fail(ConfigError("x: y"))
    ),
    "known-error": lambda: fail(BusError("the stream is missing")),
    "unexpected-error": lambda: run_until_stopped(bad=fail(KeyError("k"))),
    "slow-start": start_slowly,
}

if __name__ == "__main__":
    set_up_logs("json")
    is_command = "--command" in sys.argv
    sys.exit(run_service("svc", STORIES[sys.argv[1]], is_command=is_command))
