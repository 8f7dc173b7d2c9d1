"""The version of Kubernetes that the server says it is.

v1.33, because that is the version whose fields the field table (messages.txt) holds, and because
kubectl packages that choose a client by it (the Google Cloud SDK's) then take one that speaks to
us as most people's does, protobuf included. Clients from 1.32 to 1.34 are within kubectl's own
limit of one minor version; others work and only `kubectl version` warns of the distance.
"""

from __future__ import annotations

MAJOR, MINOR = "1", "33"
GIT_VERSION = f"v{MAJOR}.{MINOR}.1"
VERSION = {
    "major": MAJOR,
    "minor": MINOR,
    "emulationMajor": MAJOR,
    "emulationMinor": MINOR,
    "minCompatibilityMajor": MAJOR,
    "minCompatibilityMinor": "32",
    "gitVersion": GIT_VERSION,
    "gitCommit": "0" * 40,
    "gitTreeState": "clean",
    "buildDate": "2025-05-15T00:00:00Z",
    "goVersion": "go1.24.2",
    "compiler": "gc",
    "platform": "linux/amd64",
}
