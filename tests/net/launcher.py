"""Hosts that Ray's launcher can log in to, and the cluster file that is shipped, told of their addresses.

laptop       10.77.0.3     `ray up`, `ray exec`, `ray down`; its home holds the cluster's token
head         10.77.0.1     sshd; the driver, a learner rank and an actor
worker       10.77.0.2     sshd; two actors
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.net.cluster import ROOT
from tests.net.hosts import SCRATCH, Host
from tests.net.paced import PACE

SHIPPED = ROOT / "deploy" / "ray" / "onprem.yaml"
USER = pwd.getpwuid(0)
BIN = Path(sys.executable).parent
LEFT = (".git", ".venv", "runs", "__pycache__")  # as `rsync_exclude` of deploy/ray/onprem.yaml has it
TOOLS = ("sshd", "ssh", "ssh-keygen", "rsync", "prometheus")
RAY_S = 300.0
# A host has its home for itself, over that of this machine, and the directories in which Ray and sshd keep theirs.
MOUNTS = """
set -e
mkdir -p "$1/upper" "$1/work" "$3"
mount -t overlay overlay -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$2"
mount -t tmpfs -o size=256m tmpfs "$3"
mount -t tmpfs -o size=16m tmpfs /run
mkdir -p /run/sshd
rm -rf "$2/.ray" "$2/.ssh/known_hosts"
"""
SSHD = (
    *("StrictModes=no", "PermitRootLogin=prohibit-password", "UsePAM=no", "PidFile=none", "PrintMotd=no"),
    *("MaxStartups=100", "Subsystem=sftp internal-sftp"),
)


def missing() -> str:
    """What this machine lacks for logging in, in words; "" if nothing."""
    absent = [tool for tool in TOOLS if find(tool) is None]
    return f"needs {', '.join(absent)} (Debian: openssh-server, rsync, prometheus)" if absent else ""


def find(tool: str) -> str | None:
    """Where it lies; sshd is not on every path."""
    return shutil.which(tool, path=os.environ.get("PATH", "") + ":/usr/sbin")


def furnish(host: Host, *, pace: Path) -> None:
    """Mounts, and what a shell of the host finds."""
    host.run(["sh", "-c", MOUNTS, "sh", SCRATCH, USER.pw_dir, "/tmp/ray"])
    lines = {
        "PATH": f"{BIN}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": f"{USER.pw_dir}/truestep",
        "RAY_AUTH_MODE": "token",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        PACE: str(pace),
    }
    exports = "".join(f"export {name}={value}\n" for name, value in lines.items())
    for name in (".bashrc", ".bash_profile"):
        host.run(["sh", "-c", 'printf "%s" "$1" > "$2"', "sh", exports, f"{USER.pw_dir}/{name}"])


def restore(host: Host, *, token: str) -> None:
    """What `ray up` had copied to a host whose memory held it: a disk would have kept it."""
    home = USER.pw_dir
    host.run(["rsync", "-a", *(f"--exclude={name}" for name in LEFT), f"{ROOT}/", f"{home}/truestep/"])
    host.run(["sh", "-c", 'mkdir -p "$2"; umask 77; printf "%s" "$1" > "$2/auth_token"', "sh", token, f"{home}/.ray"])


def make_keys(folder: Path) -> Path:
    """Of the hosts, and of who logs in to them; returns the latter's."""
    folder.mkdir()
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True, timeout=RAY_S)
    return folder / "user"


def open_door(host: Host, keys: Path) -> None:
    """sshd, until the host ends; its log lies beside the keys."""
    options = [*SSHD, f"ListenAddress={host.address}", f"AuthorizedKeysFile={keys / 'user.pub'}"]
    sshd = [str(find("sshd")), "-E", str(keys / f"{host.name}.log"), "-f", "/dev/null", "-h", str(keys / "host")]
    host.run([*sshd, *(word for option in options for word in ("-o", option))])


def cluster_file(target: Path, *, head: Host, worker: Host, key: Path) -> Path:
    """The shipped file for these hosts: other addresses, user and key, nothing to install, and CPUs on the head."""
    text = SHIPPED.read_text().replace("/home/ubuntu", USER.pw_dir)
    text = text.replace("--num-cpus=0", "--num-cpus=2 --object-store-memory=200000000")
    text = text.replace("--head ", """--head --resources='{"collects": 1, "learns": 1}' """)
    worker_words = "--num-cpus=2 --object-store-memory=200000000 --resources='{\"collects\": 1}'"
    text = text.replace("""--resources='{"collects": 1, "learns": 1}' --disable""", f"{worker_words} --disable")
    plain: dict[str, Any] = yaml.safe_load(text)
    plain["max_workers"] = 1
    plain["provider"] |= {"head_ip": head.address, "worker_ips": [worker.address]}
    plain["auth"] = {"ssh_user": USER.pw_name, "ssh_private_key": str(key)}
    plain["setup_commands"] = [words for words in plain["setup_commands"] if "pip" not in words]
    target.write_text(yaml.safe_dump(plain, sort_keys=False))
    return target


class Laptop:
    """Where the user sits.

    Args:
        host: on the hosts' network.
        file: the cluster's.
    """

    def __init__(self, host: Host, file: Path) -> None:
        self.host = host
        self.file = file
        own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self.env = own | {
            "HOME": USER.pw_dir,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "RAY_AUTH_MODE": "token",
            "RAY_UP_enable_autoscaler_v2": "0",
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def ray(self, *words: str) -> str:
        """A command of Ray's to its end; returns what it said."""
        return self.host.run([str(BIN / "ray"), *words], limit_s=RAY_S, env=self.env)

    @property
    def token(self) -> str:
        """Of the cluster."""
        return self.host.run(["cat", f"{USER.pw_dir}/.ray/auth_token"])

    def submission(self, name: str, words: list[str]) -> list[str]:
        """A command that submits a job on the head, and ends when that has ended."""
        submit = ["ray", "job", "submit", "--address", "http://127.0.0.1:8265", "--submission-id", name, "--", *words]
        return [str(BIN / "ray"), "exec", str(self.file), " ".join(submit)]
