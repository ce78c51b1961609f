"""Two hosts on one machine: network namespaces with one cable between them. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence


def why_not() -> str:
    """Why this machine cannot make network namespaces; empty: it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "network namespaces need the ip command (iproute2)"
    name = f"probe{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, timeout=30)
    if done.returncode == 0:
        run("ip", "netns", "del", name)
        return ""
    return f"network namespaces cannot be made here: {done.stderr.strip()}"


def run(*command: str) -> str:
    """Output of ``command``."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


class Cable:
    """Two namespaces, ``left`` at 10.77.x.1 and ``right`` at 10.77.x.2, joined by a veth pair."""

    def __init__(self) -> None:
        number = os.getpid() % 250
        self.left, self.right = f"left{os.getpid()}", f"right{os.getpid()}"
        self.addresses = {self.left: f"10.77.{number}.1", self.right: f"10.77.{number}.2"}
        ends = {self.left: f"rbl{os.getpid()}", self.right: f"rbr{os.getpid()}"}
        for place in ends:
            run("ip", "netns", "add", place)
        run("ip", "link", "add", ends[self.left], "type", "veth", "peer", "name", ends[self.right])
        for place, end in ends.items():
            run("ip", "link", "set", end, "netns", place)
            self.inside(place, "ip", "addr", "add", f"{self.addresses[place]}/24", "dev", end)
            self.inside(place, "ip", "link", "set", end, "up")
            self.inside(place, "ip", "link", "set", "lo", "up")

    def command(self, place: str, command: Sequence[str]) -> list[str]:
        """``command`` as it runs in namespace ``place``."""
        return ["ip", "netns", "exec", place, *command]

    def inside(self, place: str, *command: str) -> str:
        """Output of ``command``, run in namespace ``place``."""
        return run(*self.command(place, command))

    def close(self) -> None:
        """Take both away, and the cable with them."""
        for place in self.addresses:
            subprocess.run(["ip", "netns", "del", place], check=False, timeout=60)
