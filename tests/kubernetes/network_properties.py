"""Who reaches whom, and how a run is watched."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from urllib.parse import urlsplit

from deploy.config import merge, parse_config, setting
from deploy.config_sections import MetricsConfig
from tests.kubernetes.life_properties import selects
from tests.kubernetes.property import Property
from tests.kubernetes.rendering import Manifests, Object

OWN = {"matchLabels": {"app.kubernetes.io/part-of": "truestep"}}
DNS = {("UDP", 53, 53), ("TCP", 53, 53)}
WATCHED = {("TCP", 9100, 9199), ("TCP", 8080, 8080)}
ASKED = {("TCP", 8265, 8265)}
SECRET = re.compile(r"TOKEN$|PASSWORD|SECRET|_KEY$", re.IGNORECASE)
NO_NAMESPACE = ("Namespace", "PriorityClass")


def everything_else_is_dropped(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.templates():
        closed: set[str] = set()
        for policy in manifests.kind("NetworkPolicy"):
            if selects(policy["spec"]["podSelector"], pod):
                closed |= set(policy["spec"]["policyTypes"])
        for direction in sorted({"Ingress", "Egress"} - closed):
            yield f"{pod.role}: {direction} is open to everybody"


def only_what_is_needed(manifests: Manifests) -> Iterator[str]:
    for policy in manifests.kind("NetworkPolicy"):
        name = policy["metadata"]["name"]
        for rule in policy["spec"].get("ingress", []):
            yield from _wrong_peers(f"{name}: ingress", rule, "from", WATCHED | ASKED)
        for rule in policy["spec"].get("egress", []):
            yield from _wrong_peers(f"{name}: egress", rule, "to", DNS)


def _wrong_peers(where: str, rule: Object, side: str, allowed: set[tuple[str, int, int]]) -> Iterator[str]:
    """Each peer is our own, or pods of a namespace that both have a name, on ports that are listed."""
    peers, ports = rule.get(side, []), ports_of(rule)
    if not peers or not ports:
        yield f"{where}: everybody, or every port"
    for peer in peers:
        if peer == {"podSelector": OWN}:
            continue
        named = peer.get("namespaceSelector", {}).get("matchLabels") and peer.get("podSelector", {}).get("matchLabels")
        if not named or "ipBlock" in peer:
            yield f"{where}: a peer without a name, {peer}"
        if not ports <= allowed:
            yield f"{where}: strangers on {sorted(ports - allowed)}"


def ports_of(rule: Object) -> set[tuple[str, int, int]]:
    """Protocol, first and last."""
    return {(each["protocol"], each["port"], each.get("endPort", each["port"])) for each in rule.get("ports", [])}


def ray_wants_a_token(manifests: Manifests) -> Iterator[str]:
    if manifests.cluster.get("authOptions") != {"mode": "token"}:
        yield f"{manifests.owner['kind']}: whoever reaches Ray runs code"
    for pod in manifests.templates():
        if "RAY_AUTH_MODE" in pod.environment():
            yield f"{pod.role}: decides for itself whether there is a token"


def no_secret_is_written_down(manifests: Manifests) -> Iterator[str]:
    for secret in manifests.kind("Secret"):
        yield f"{secret['metadata']['name']}: a Secret among files"
    for pod in manifests.templates():
        for name, value in pod.environment().items():
            if SECRET.search(name) and value:
                yield f"{pod.role}: {name} holds its value"


def metrics(manifests: Manifests) -> MetricsConfig:
    """As the shipped configuration has them, read as a run reads it."""
    text = manifests.one("ConfigMap", "truestep-config")["data"]["train.toml"]
    return parse_config(merge(setting('env.id="CartPole-v1"'), tomllib.loads(text))).metrics


def ports_agree(manifests: Manifests) -> Iterator[str]:
    configured = metrics(manifests)
    if configured.host != "0.0.0.0":
        yield f"train.toml: processes listen on {configured.host}, where nobody reaches them"
    policy = manifests.one("NetworkPolicy", "truestep")["spec"]["ingress"]
    watched = next((each for each in map(ports_of, policy) if ("TCP", 8080, 8080) in each), set())
    for ports in (configured.driver_ports(), configured.other_ports()):
        if not any(first <= ports.first and ports.last <= last for _, first, last in watched):
            yield f"train.toml: ports {ports.first} to {ports.last} are closed"
    (served,) = manifests.one("Service")["spec"]["ports"]
    named = {each["name"]: each["containerPort"] for each in manifests.pod("driver").container["ports"]}
    if {served["port"], named.get(served["targetPort"])} != {configured.driver_ports().first}:
        yield f"Service: {served['port']} leads to {named.get(served['targetPort'])}"


def watched_before_ready(manifests: Manifests) -> Iterator[str]:
    service = manifests.one("Service")
    if service["spec"].get("publishNotReadyAddresses") is not True:
        yield "Service: a driver that is not ready cannot be asked why"
    if not selects({"matchLabels": service["spec"]["selector"]}, manifests.pod("driver")):
        yield "Service: leads nowhere"
    for monitor in manifests.kind("PodMonitor"):
        if not all(selects(monitor["spec"]["selector"], pod) for pod in manifests.pods()):
            yield "PodMonitor: does not see every pod"
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            named = [[each["name"] for each in pod.container["ports"]] for pod in manifests.pods()]
            if not all(endpoint["port"] in names for names in named):
                yield f"PodMonitor: the port {endpoint['port']} is not everywhere"
    for scraped in manifests.kind("ScrapeConfig"):
        for each in scraped["spec"]["httpSDConfigs"]:
            address = urlsplit(each["url"])
            expected = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
            if (address.hostname, address.port, address.path) != (
                expected,
                service["spec"]["ports"][0]["port"],
                "/targets",
            ):
                yield f"ScrapeConfig: asks {each['url']}"


def one_namespace(manifests: Manifests) -> Iterator[str]:
    namespace = manifests.one("Namespace")
    if namespace["metadata"]["labels"].get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "Namespace: takes pods that may do anything"
    for each in manifests.objects:
        own = each["metadata"].get("namespace")
        if each["kind"] not in NO_NAMESPACE and own != namespace["metadata"]["name"]:
            yield f"{each['kind']} {each['metadata']['name']}: in namespace {own}"


def _rules(manifests: Manifests, direction: str) -> list[Object]:
    found: list[Object] = manifests.one("NetworkPolicy", "truestep")["spec"][direction]
    return found


def _write_a_secret(manifests: Manifests) -> None:
    manifests.pod("actor").container["env"].append({"name": "RAY_AUTH_TOKEN", "value": "abc"})


NETWORK_PROPERTIES = (
    Property(
        name="closed",
        says="Of every pod both directions are closed but for what a policy names",
        check=everything_else_is_dropped,
        broken_by={
            "actor: Egress": lambda m: m.one("NetworkPolicy", "truestep")["spec"].update(policyTypes=["Ingress"]),
            "submitter: Ingress": lambda m: m.objects.remove(m.one("NetworkPolicy", "truestep")),
        },
    ),
    Property(
        name="only what is needed",
        says="Strangers reach metrics and, if they are KubeRay's, the dashboard; pods reach each other and names",
        check=only_what_is_needed,
        broken_by={
            "ingress: everybody": lambda m: _rules(m, "ingress").append({}),
            "egress: a peer": lambda m: _rules(m, "egress")[1].update(to=[{"ipBlock": {"cidr": "0.0.0.0/0"}}]),
            "ingress: strangers": lambda m: _rules(m, "ingress")[1]["ports"].append({"protocol": "TCP", "port": 6379}),
            "ingress: a peer": lambda m: _rules(m, "ingress")[1]["from"][0].pop("namespaceSelector"),
        },
    ),
    Property(
        name="Ray wants a token",
        says="KubeRay makes a token for each cluster, and no pod opts out",
        check=ray_wants_a_token,
        broken_by={
            "runs code": lambda m: m.cluster.update(authOptions={"mode": "disabled"}),
            "learner: decides": lambda m: m.pod("learner").container["env"].append({"name": "RAY_AUTH_MODE"}),
        },
    ),
    Property(
        name="no secret is written down",
        says="No Secret, and no value of one, is among the files",
        check=no_secret_is_written_down,
        broken_by={
            "a Secret": lambda m: m.objects.append({"kind": "Secret", "metadata": {"name": "x"}}),
            "actor: RAY_AUTH_TOKEN": _write_a_secret,
        },
    ),
    Property(
        name="ports agree",
        says="Processes listen where the policy lets Prometheus in, and the service leads to the driver",
        check=ports_agree,
        broken_by={
            "Service": lambda m: m.one("Service")["spec"]["ports"][0].update(port=9999),
            "9101 to 9199 are closed": lambda m: _rules(m, "ingress")[1]["ports"][0].update(endPort=9100),
            "nobody reaches": lambda m: m.one("ConfigMap", "truestep-config")["data"].update({"train.toml": ""}),
        },
    ),
    Property(
        name="watched before ready",
        says="Pods that are not ready are scraped, through the driver's discovery and by Ray's own metrics",
        check=watched_before_ready,
        broken_by={
            "cannot be asked": lambda m: m.one("Service")["spec"].pop("publishNotReadyAddresses"),
            "leads nowhere": lambda m: m.one("Service")["spec"]["selector"].update(a="b"),
            "not everywhere": lambda m: m.pod("actor").container["ports"].clear(),
            "ScrapeConfig": lambda m: m.one("ScrapeConfig")["spec"]["httpSDConfigs"][0].update(url="http://x/targets"),
        },
    ),
    Property(
        name="one namespace",
        says="All objects are in one namespace, which takes restricted pods only",
        check=one_namespace,
        broken_by={
            "Service truestep-driver": lambda m: m.one("Service")["metadata"].update(namespace="default"),
            "may do anything": lambda m: m.one("Namespace")["metadata"]["labels"].clear(),
        },
    ),
)
