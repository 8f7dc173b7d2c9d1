"""Commands to try on a running stack; they can be pasted in the caller's folder."""

from __future__ import annotations

import os
import shlex
import shutil
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbus.kube.connection.config import read_kube_config, server_of
from fleetbus_devfleet.commands.options import DEFAULT_FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fleetbus_devfleet.stack.plan import Layout
    from fleetbus_devfleet.stack.state import StackState

_PACKAGE = Path(__file__).parents[1]
_MANIFEST = _PACKAGE / "demo" / "web.yaml"
_EXAMPLE = _PACKAGE.parents[1] / "examples" / "helloworld" / "controller.py"
_RESOURCES = "apis/fleetbus.dev/v1alpha1/namespaces/default/multiclusterresources"


@dataclass(frozen=True, slots=True)
class Hint:
    """One command and what it shows."""

    command: str
    meaning: str


def hints(state: StackState, layout: Layout) -> list[Hint]:
    """The commands, in the order in which to try them."""
    return [*_preparations(state, layout), *_first_steps(state), *_questions(state, layout)]


def _preparations(state: StackState, layout: Layout) -> Iterator[Hint]:
    scripts = sysconfig.get_path("scripts")
    # `uv run`, so `make up`, adds the folder for its child alone.
    if "UV_RUN_RECURSION_DEPTH" in os.environ or shutil.which("fleetbus") is None:
        yield Hint(f"export PATH={shlex.quote(scripts)}:$PATH", "where the commands below are")
    if not _is_found_by_itself(layout):
        settings = f"fleetbus dev env --dir {_shown(layout.root)}"
        yield Hint(f'eval "$({settings})"', "this fleet, and a context for each of its clusters")
        return
    yield Hint(f"export KUBECONFIG={shlex.quote(state.kubeconfig)}", "a context for each cluster")


def _is_found_by_itself(layout: Layout) -> bool:
    here = Path.cwd()
    return layout.root in (place / DEFAULT_FOLDER for place in (here, *here.parents))


def _first_steps(state: StackState) -> Iterator[Hint]:
    hub = state.clusters[0]
    meaning = "put a Deployment into every member cluster"
    if shutil.which("kubectl"):
        yield Hint(f"kubectl --context {hub} apply -f {_shown(_MANIFEST)}", meaning)
        yield Hint(f"kubectl --context {hub} get mcr", "where it is applied")
    else:
        url = f"{server_of(read_kube_config(state.kubeconfig, hub))}/{_RESOURCES}"
        post = f"curl -sS -H Content-Type:application/yaml --data-binary @{_shown(_MANIFEST)}"
        yield Hint(f"{post} {url}", meaning)


def _questions(state: StackState, layout: Layout) -> Iterator[Hint]:
    yield Hint("fleetbus clusters", "the fleet, and how fresh our view of each cluster is")
    yield Hint("fleetbus get pods", "the Pods of all clusters in one table")
    yield Hint("fleetbus get deployments -o wide", "the same for any other resource")
    yield Hint("kubectl-multicluster list pods", "with the columns of multi_resource_operator")
    yield Hint("fleetbus events -f", "every change of every cluster, live")
    if _EXAMPLE.exists():
        yield Hint(
            f"fleetbus run {_shown(_EXAMPLE)}", "a reconciler that greets every Pod of the fleet"
        )
    yield Hint(f"curl {state.api_url}/fleet/v1/clusters", "the query API itself")
    folder = ""
    if not _is_found_by_itself(layout):
        folder = f" --dir {_shown(layout.root)}"
    yield Hint(f"fleetbus dev status{folder}", "the processes")
    yield Hint(f"fleetbus dev fault list{folder}", "what is broken on purpose; `add` breaks more")
    yield Hint(f"fleetbus dev down{folder}", "stop it")


def _shown(path: str | Path) -> str:
    """A path as the caller would type it."""
    found = Path(path)
    if found.is_relative_to(Path.cwd()):
        found = found.relative_to(Path.cwd())
    return shlex.quote(str(found))
