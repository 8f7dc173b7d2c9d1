"""Stands for the little of `valkey-cli` that the probes of the chart use."""

from __future__ import annotations

import argparse
import os
from typing import Any

import redis


def main() -> None:
    """Send one command and print the answer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--user")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    client: Any = redis.Redis(
        username=given.user,
        password=os.environ["REDISCLI_AUTH"],
        decode_responses=True,
        ssl=given.tls,
        ssl_cert_reqs="none" if given.insecure else "required",
        ssl_check_hostname=not given.insecure,
    )
    try:
        answer = client.execute_command(*given.command)
        word = "PONG" if given.command == ["ping"] else "OK"
        print(word if answer is True else answer)  # noqa: T201 -- its answer
    except redis.RedisError as e:
        print(e)  # noqa: T201 -- its answer


if __name__ == "__main__":
    main()
