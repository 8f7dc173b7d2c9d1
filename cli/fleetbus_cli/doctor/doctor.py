"""Runs `fleetbus doctor`."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from fleetbus.process import printer
from fleetbus.process.findings import SIGNS, Finding, Severity
from fleetbus.process.logs import set_up_logs
from fleetbus_cli.bundle.file import check_place, write
from fleetbus_cli.documents import render_json
from fleetbus_cli.table import render_table
from fleetbus_cli.target import resolve_target

if TYPE_CHECKING:
    from fleetbus_cli.hub import Hub

_HEAD: Final = ("", "ABOUT", "FINDING")


def run_doctor(
    output: str,
    *,
    nats_url: str | None,
    redis_url: str | None,
    hub: Hub,
    bundle: pathlib.Path | None,
) -> int:
    """Check the fleet and print what was found; return the exit status, 1 after an error.

    Raises:
        ConfigError: an address is not set, or the bundle cannot be written.
    """
    if bundle is not None:
        check_place(bundle)
    target = resolve_target(nats_url=nats_url, redis_url=redis_url)
    nats, store = target.require_nats(), target.require_store()
    from fleetbus_cli.doctor.checks import check_fleet  # noqa: PLC0415 -- import cost

    set_up_logs("text", "error")  # every warning of a connection is a finding here
    findings = asyncio.run(check_fleet(target, nats, store, hub))
    _print(findings, output)
    if bundle is not None:
        from fleetbus_cli.bundle.gather import gather  # noqa: PLC0415 -- import cost

        gathered = asyncio.run(gather(findings, target, nats, store, hub))
        write(bundle, gathered.pack())
        printer.note(f"wrote {bundle}; look through it before you send it:")
        printer.note_block(gathered.readme())
    return int(any(finding.severity is Severity.ERROR for finding in findings))


def _print(findings: Sequence[Finding], output: str) -> None:
    if output == "json":
        printer.json_text(render_json({"findings": [asdict(finding) for finding in findings]}))
        return
    printer.block(render_table(_HEAD, [_row(finding) for finding in findings]))
    bad = [finding for finding in findings if finding.severity is not Severity.OK]
    if not bad:
        printer.note(f"{len(findings)} checks, no findings")


def _row(finding: Finding) -> tuple[str, str, str]:
    return SIGNS[finding.severity], finding.about, finding.text
