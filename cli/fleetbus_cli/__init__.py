"""The command line: `fleetbus` (`app.py`) and the plugin `kubectl multicluster` (`kubectl.py`).

Commands that belong together share a folder. `commands.py` declares their arguments for typer and
imports nothing else, so that `--help` stays instant; `<command>.py` does the work and is imported
when the command runs.
"""
