"""Runs `fleetbus clusters nats-config`: what agents need of a NATS that the chart does not make."""

from __future__ import annotations

import textwrap
from typing import Final

from fleetbus.agents.accounts import HUB, render_exports
from fleetbus.process import printer

_CONFIG: Final = """\
# Merge this into `accounts {{}}` of every server. No other export of `{hub}` may name one of these
# subjects for single accounts: nats-server refuses such a configuration as a whole.
accounts {{
  {hub} {{
    jetstream: enabled
    # Your users of the components; that of the projector may publish to _R_.>, too.
    users: []
{exports}\
  }}
  # fleetbus-nats-reloader of the image writes this file beside each server, and has it loaded:
  # fleetbus-nats-reloader --secret RELEASE-NAMESPACE/RELEASE-NAME-nats-agents --file agents.conf
  #   --pid-file nats.pid --monitor http://127.0.0.1:8222
  include agents.conf
}}
"""


def print_nats_config() -> None:
    """Print the part of a configuration of nats-server."""
    exports = textwrap.indent(render_exports(), "    ")
    printer.block(_CONFIG.format(hub=HUB, exports=exports).rstrip())
