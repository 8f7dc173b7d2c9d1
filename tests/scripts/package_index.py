"""Serves a package index on a free port of loopback, and prints the port."""

import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

import pypiserver  # pyright: ignore[reportMissingImports] -- in the environment of releases


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


if __name__ == "__main__":
    # The packages that it does not have are those of PyPI.
    app = pypiserver.app(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        roots=[sys.argv[1]], authenticate=[], password_file="."
    )
    with make_server("127.0.0.1", 0, app, server_class=_Server) as server:  # pyright: ignore[reportUnknownArgumentType]
        print(server.server_port, flush=True)
        server.serve_forever()
