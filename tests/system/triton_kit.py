"""The real NVIDIA Triton Inference Server, from the wheel of nvidia-pytriton in an environment of its own.

The wheel asks for numpy < 2, hence the environment. The server is run as its users run it: a model
repository, the Python backend, models loaded on demand.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TORCH, PYTRITON = "torch==2.13.0", "nvidia-pytriton==0.7.0"
#: An environment that is there already; empty: one is made.
VENV_VARIABLE = "ROLLBUS_TRITON_VENV"
READY_S = 60.0


@dataclass
class Server:
    """A running server."""

    http: str
    grpc: str
    repository: Path
    log: Path


def environment(folder: Path) -> Path:
    """A virtual environment with nvidia-pytriton: `VENV_VARIABLE`, or made under ``folder`` (a minute)."""
    given = os.environ.get(VENV_VARIABLE)
    if given:
        return Path(given)
    place = folder / "pytriton"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    # torch first and by exact version: the wheel's own range takes a CUDA build of several gigabytes.
    for packages in ([TORCH], [TORCH, PYTRITON]):
        pip = [str(place / "bin/python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True, timeout=900)
    return place


@contextlib.contextmanager
def serving(venv: Path, folder: Path) -> Iterator[Server]:
    """The server on free ports of this host, its files under ``folder``."""
    http, grpc = free_port(), free_port()
    server = Server(f"127.0.0.1:{http}", f"127.0.0.1:{grpc}", folder / "models", folder / "server.log")
    server.repository.mkdir(parents=True)
    site = venv / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    package = site / "pytriton/tritonserver"
    arguments = [
        f"--model-repository={server.repository}", f"--backend-directory={_backends(package, folder)}",
        "--http-address=127.0.0.1", f"--http-port={http}", "--grpc-address=127.0.0.1", f"--grpc-port={grpc}",
        "--allow-metrics=false", "--model-control-mode=explicit", "--exit-timeout-secs=2",
    ]  # fmt: skip
    with server.log.open("w") as log:
        process = subprocess.Popen(
            [str(package / "bin/tritonserver"), *arguments],
            env=_variables(venv, site), stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        _wait(server, process)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _backends(package: Path, folder: Path) -> Path:
    """The Python backend with the stub of this interpreter's version."""
    place = folder / "backends/python"
    shutil.copytree(package / "backends/python", place)
    stub = f"python_backend_stubs/{sys.version_info[0]}.{sys.version_info[1]}/triton_python_backend_stub"
    shutil.copy(package / stub, place)
    return place.parent


def _variables(venv: Path, site: Path) -> dict[str, str]:
    # Without LIBDIR the stub binds the system's libpython beside this one's standard library.
    libraries = [sysconfig.get_config_var("LIBDIR"), str(site / "nvidia_pytriton.libs")]
    return os.environ | {
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(site),
        "LD_LIBRARY_PATH": ":".join(libraries), "OMP_NUM_THREADS": "1",
    }  # fmt: skip


def _wait(server: Server, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://{server.http}/v2/health/ready", timeout=1)
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"the server is not ready after {READY_S} s:\n{server.log.read_text()[-3000:]}")


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
