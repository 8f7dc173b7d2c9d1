"""Provider `kind`, against a program of that name on the PATH."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from fleetbus.clusters.providers.build import build_provider
from fleetbus.clusters.providers.kind import KindProvider
from fleetbus.errors import ConfigError
from fleetbus.kube.connection.config import server_of
from fleetbus.process.settings import ProviderSettings

if TYPE_CHECKING:
    from pathlib import Path

# Lists the files of a folder as clusters, and prints each as its kubeconfig.
PROGRAM = """#!/bin/sh
cd "{folder}"
case "$2" in
  clusters) test -e broken && {{ echo "cannot connect to docker" >&2; exit 1; }}; ls ;;
  kubeconfig) test -s "$4" || {{ echo "could not locate any control plane nodes" >&2; exit 1; }}
              cat "$4" ;;
esac
"""
KUBECONFIG = """
current-context: kind
contexts: [{name: kind, context: {cluster: kind}}]
clusters: [{name: kind, cluster: {server: "https://127.0.0.1:1"}}]
"""


@pytest.fixture
def kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder whose files are the clusters."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    program = tmp_path / "bin" / "kind"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(folder=folder))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return folder


async def test_clusters_of_kind_come_and_go(kind: Path, capsys: pytest.CaptureFixture[str]):
    (kind / "fleet-a").write_text(KUBECONFIG)
    (kind / "other").write_text(KUBECONFIG)
    (kind / "fleet_b").write_text(KUBECONFIG)
    provider = KindProvider(only_prefix="fleet", every=timedelta(milliseconds=10))
    async with asyncio.timeout(20), aclosing(provider.cluster_sets()) as sets:
        (found,) = await anext(sets)
        assert found.config is not None
        assert (found.name, server_of(found.config)) == ("fleet-a", "https://127.0.0.1:1")
        (kind / "fleet-c").touch()
        infos = await anext(sets)
        assert [info.problem for info in infos] == [
            "",
            "kind get kubeconfig --name fleet-c: could not locate any control plane nodes",
        ]
        (kind / "fleet-a").unlink()
        (kind / "broken").touch()  # while kind fails, nothing is yielded
        await asyncio.sleep(0.05)  # a few looks fail
        (kind / "broken").unlink()
        assert [info.name for info in await anext(sets)] == ["fleet-c"]
    assert "fleet_b" in capsys.readouterr().out


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="the program kind is not on the PATH"):
        build_provider(ProviderSettings(type="kind"), None)
