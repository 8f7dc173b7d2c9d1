"""Somebody who reads single objects while others ask the query API for much more.

    python tests/run.py bench.programs.neighbour PODS CLUSTERS URL

Sends one GET after the other with short pauses until it is terminated, and then prints how many
milliseconds each took, as JSON. A process of its own, so that what another client does with its
answers delays nothing here.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time

from bench.rig.query_client import Client, path_of_one

_PAUSE = 0.004


def run(pods: int, clusters: int, url: str) -> list[float]:
    chosen = random.Random(1)
    waits: list[float] = []
    ended = threading.Event()

    def end(_signal: int, _frame: object) -> None:
        ended.set()

    signal.signal(signal.SIGTERM, end)
    with Client(url) as client:
        print("started", flush=True)
        while not waits or not ended.wait(chosen.uniform(0, 2 * _PAUSE)):
            path = path_of_one(chosen.randrange(pods), clusters)
            begun = time.perf_counter()
            client.get(path)
            waits.append((time.perf_counter() - begun) * 1e3)
    return waits


if __name__ == "__main__":
    print(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
