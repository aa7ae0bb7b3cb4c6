"""The cluster files that are shipped: Ray takes them, they name only what it has, and their promises are kept."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("ray")
from ray import autoscaler
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start as ray_start

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "ray"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
CLOUDS = ["aws.yaml", "gcp.yaml"]
RAY = Path(autoscaler.__file__).parent
SCHEMA: dict[str, Any] = json.loads((RAY / "ray-schema.json").read_text())
PORT = re.compile(r"--([a-z-]*port)=(\d+)")


def read(name: str) -> dict[str, Any]:
    plain: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return plain


def start_commands(plain: dict[str, Any]) -> list[str]:
    """Of head and workers, without `ray stop`."""
    return [line for who in ("head", "worker") for line in plain[f"{who}_start_ray_commands"] if "ray start" in line]


def keys(value: Any) -> Iterator[str]:
    """Every key below a value."""
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys(item)
    if isinstance(value, dict):
        yield from value


@pytest.mark.parametrize("name", FILES)
def test_ray_takes_the_file(name: str) -> None:
    """By the validation that `ray up` begins with; a key that it does not know is refused."""
    validate_config(prepare_config(read(name)))
    with pytest.raises(Exception, match="Additional properties"):
        validate_config(prepare_config(read(name) | {"idle_timeout_minute": 1}))


def test_a_file_for_each_place() -> None:
    """Hosts of one's own, and two clouds."""
    assert FILES == ["aws.yaml", "gcp.yaml", "onprem.yaml"]


@pytest.mark.parametrize("name", FILES)
def test_every_option_is_one_of_ray_start(name: str) -> None:
    """Of the Ray that is installed."""
    known = {option for parameter in ray_start.params for option in parameter.opts}
    for command in start_commands(read(name)):
        used = set(re.findall(r"(--[a-z-]+)", command.partition("ray start")[2]))
        assert used and used <= known


@pytest.mark.parametrize("name", FILES)
def test_everything_that_is_named_exists_in_ray(name: str) -> None:
    """Options of a provider are read by Ray's own code for it, which its validation does not look at; keys of a group
    are in its schema.
    """
    plain = read(name)
    kind = plain["provider"]["type"]
    sources = [*(RAY / "_private" / kind).glob("*.py"), *(RAY / "_private").glob("*.py")]
    source = "\n".join(path.read_text() for path in sources)
    for key in plain["provider"]:
        assert f'"{key}"' in source, key
    groups = SCHEMA["properties"]["available_node_types"]["patternProperties"][".*"]["properties"]
    for group in plain.get("available_node_types", {}).values():
        assert set(group) <= set(groups)


def test_the_region_has_an_image_of_ray_s() -> None:
    """No image is named, so Ray takes its own for the region. Read, not imported: that wants boto3."""
    tree = ast.parse((RAY / "_private" / "aws" / "config.py").read_text())
    images = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEFAULT_AMI"
    )
    plain = read("aws.yaml")
    assert plain["provider"]["region"] in images
    assert all(
        zone.startswith(plain["provider"]["region"]) for zone in plain["provider"]["availability_zone"].split(",")
    )
    assert "ImageId" not in set(keys(plain))


@pytest.mark.parametrize("name", CLOUDS)
def test_the_driver_s_node_has_no_weight_and_each_group_its_work(name: str) -> None:
    """Ranks go where GPUs are, actors where they are not, onto nodes that stay and nodes that may be taken away."""
    plain = read(name)
    groups = plain["available_node_types"]
    head = groups.pop(plain["head_node_type"])
    assert head["resources"] == {"CPU": 0}
    learns = [group for group in groups.values() if "learns" in group["resources"]]
    collects = [group for group in groups.values() if "collects" in group["resources"]]
    spot = [group for group in groups.values() if is_spot(group)]
    assert len(learns) == 1 and len(collects) == 2 and len(spot) == 1
    assert spot[0] in collects and learns[0] not in collects
    assert all(group["min_workers"] < group["max_workers"] for group in groups.values())
    assert plain["max_workers"] >= max(group["max_workers"] for group in groups.values())


def is_spot(group: dict[str, Any]) -> bool:
    """Whether the cloud may take its nodes away."""
    node = group["node_config"]
    preemptible = any(each.get("preemptible") for each in node.get("scheduling", []))
    return preemptible or node.get("InstanceMarketOptions", {}).get("MarketType") == "spot"


@pytest.mark.parametrize("name", FILES)
def test_nobody_gets_in_without_the_token(name: str) -> None:
    """It is on wherever Ray starts, every node has it, only its user may read it, and the dashboard is the head's."""
    plain = read(name)
    for command in start_commands(plain):
        assert "export RAY_AUTH_MODE=token;" in command.partition("ray start")[0]
    tokens = [remote for remote, local in plain["file_mounts"].items() if local == "~/.ray/auth_token"]
    assert [token.endswith("/.ray/auth_token") for token in tokens] == [True]
    assert plain["setup_commands"][0] == "chmod 600 ~/.ray/auth_token"
    assert "--dashboard-host=127.0.0.1" in start_commands(plain)[0]


@pytest.mark.parametrize("name", FILES)
def test_ports_are_fixed_and_in_the_readme(name: str) -> None:
    """A firewall can be told; no two alike; none within the range of worker processes, or of our own metrics."""
    readme = (FOLDER / "README.md").read_text()
    for command in start_commands(read(name)):
        ports = dict(PORT.findall(command))
        assert len(set(ports.values())) == len(ports) >= 8
        low, high = int(ports.pop("min-worker-port")), int(ports.pop("max-worker-port"))
        assert f"{low} to {high}" in readme and high - low >= 500
        for port in ports.values():
            assert f"| {port}" in readme, port
            assert not low <= int(port) <= high and not 9100 <= int(port) <= 9199


@pytest.mark.parametrize("name", FILES)
def test_a_lost_node_is_noticed_within_seconds(name: str) -> None:
    """Health settings are read where `ray start` runs, from the file that is tested by `make test-net`."""
    assert all(". ~/truestep/deploy/ray/health.env" in command for command in start_commands(read(name)))
    assert "." in read(name)["file_mounts"].values() and (FOLDER / "health.env").is_file()
