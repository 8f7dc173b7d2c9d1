"""`python -m fleetbus_emulator`: emulated clusters as a process of their own."""

from __future__ import annotations

import asyncio
import base64
import resource
import signal
import socket
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING

import aiohttp
import pytest
import yaml

from fleetbus_emulator.__main__ import main
from fleetbus_emulator.apiserver.admin import AdminClient
from fleetbus_emulator.apiserver.storage.ground_truth import commit_from_json
from fleetbus_emulator.files import admin_port_file, ground_truth_folder, kubeconfig_file
from support.eventually import eventually
from support.processes.running import is_alive

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--dir", "{file}"], 1, "Not a directory: '{file}/run'"),
        (["--dir", "{folder}", "--admin-port", "{taken}"], 1, "address already in use"),
        (["--dir", "{folder}", "--admin-port", "99999"], 2, "99999 is no port"),
        (["--dir", "{folder}", "--clusters", "a,a"], 2, "'a' is listed twice"),
        (["--dir", "{folder}", "--closed", "beta"], 2, "--closed names no cluster"),
    ],
)
def test_emulated_clusters_that_cannot_start_say_why_in_one_line(
    words: list[str], status: int, message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    file = tmp_path / "file"
    file.touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        names = {"file": file, "folder": tmp_path / "x", "taken": taken.getsockname()[1]}
        arguments = ["--clusters", "alpha", *(word.format(**names) for word in words)]
        try:
            ended = main(arguments)
        except SystemExit as usage:  # argparse's way out
            ended = usage.code
    errors = capfd.readouterr().err
    assert (ended, "Traceback" in errors) == (status, False)
    assert message.format(**names) in errors


async def test_a_second_process_in_the_same_folder_is_refused(tmp_path: Path):
    command = [sys.executable, "-m", "fleetbus_emulator", "--dir", str(tmp_path), "--clusters"]
    first = subprocess.Popen([*command, "alpha"], stdout=subprocess.DEVNULL)
    try:
        await eventually(kubeconfig_file(tmp_path).exists)
        content = kubeconfig_file(tmp_path).read_bytes()
        second = await asyncio.to_thread(
            subprocess.run, [*command, "beta"], capture_output=True, text=True, timeout=60
        )
        assert kubeconfig_file(tmp_path).read_bytes() == content
    finally:
        first.terminate()
        await asyncio.to_thread(first.wait)
    assert (second.returncode, second.stdout, second.stderr.count("\n")) == (1, "", 1)
    assert f"already served from {tmp_path}" in second.stderr


async def test_the_clusters_as_a_process_tell_their_endpoint_and_record_the_truth(tmp_path: Path):
    command = [sys.executable, "-m", "fleetbus_emulator"]
    command += ["--clusters", "alpha,beta", "--dir", str(tmp_path), "--record"]
    limited = ["sh", "-c", 'ulimit -Sn 256; exec "$@"', "sh", *command]
    process = subprocess.Popen(limited, stdout=subprocess.PIPE, text=True)
    try:
        await eventually(kubeconfig_file(tmp_path).exists)
        files, most = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert files == most, "each watch of each cluster needs one"
        url = f"http://127.0.0.1:{admin_port_file(tmp_path).read_text()}"
        async with AdminClient(url) as admin:
            assert [info.name for info in await admin.clusters()] == ["alpha", "beta"]
            commits = [commit async for commit in admin.truth("beta")]
    finally:
        process.send_signal(signal.SIGTERM)
        output, _ = await asyncio.to_thread(process.communicate)
    assert output == f"kubeconfig: {kubeconfig_file(tmp_path)}\nadmin endpoint: {url}\n"
    assert process.returncode == 0
    assert not is_alive(process.pid)
    written = (ground_truth_folder(tmp_path) / "beta.jsonl").read_bytes().splitlines()
    assert [commit_from_json(line) for line in written][: len(commits)] == commits


async def test_a_closed_cluster_admits_only_who_has_the_token_of_the_kubeconfig(tmp_path: Path):
    command = [sys.executable, "-m", "fleetbus_emulator", "--dir", str(tmp_path)]
    command += ["--clusters", "alpha,beta", "--closed", "beta"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        await eventually(kubeconfig_file(tmp_path).exists)
        document = yaml.safe_load(kubeconfig_file(tmp_path).read_text())
        servers = {entry["name"]: entry["cluster"] for entry in document["clusters"]}
        users = {entry["name"]: entry["user"] for entry in document["users"]}
        (token,) = [user["token"] for user in users.values() if user]
        authority = base64.b64decode(servers["beta"]["certificate-authority-data"]).decode()
        trust = ssl.create_default_context(cadata=authority)
        answers: list[int] = []
        async with aiohttp.ClientSession() as session:
            for name, headers in [
                ("alpha", {}),
                ("beta", {}),
                ("beta", {"Authorization": "Bearer x"}),
                ("beta", {"Authorization": f"Bearer {token}"}),
            ]:
                url = f"{servers[name]['server']}/api/v1/namespaces"
                async with session.get(url, headers=headers, ssl=trust) as answer:
                    answers.append(answer.status)
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait)
    assert servers["alpha"].keys() == {"server"}, "it serves HTTP, as ever"
    assert (answers[0], answers[1:]) == (200, [403, 401, 200])
