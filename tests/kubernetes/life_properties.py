"""How a pod is judged, how it ends, and what goes on after it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from deploy.pod import ANSWER_WITHIN_S, STOP_WITHIN_S
from tests.kubernetes.property import Property
from tests.kubernetes.rendering import Manifests, Object, Template

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
START_TAKES_S = 120.0  # a large image is there already, but Ray on a busy node takes its time
BUSY_FOR_S = 60.0  # a pod is busy, not stuck
OVERWRITE = "ray.io/overwrite-container-cmd"
ONE_WRITER = (["ReadWriteOnce"], ["ReadWriteOncePod"])


def patience_s(probe: Object) -> float:
    """How long a probe may fail before something is done."""
    return float(probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3))


def question(probe: Object) -> str:
    """What is asked, without how often."""
    return json.dumps({key: probe[key] for key in ("httpGet", "exec", "tcpSocket", "grpc") if key in probe})


def probes_differ(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.pods():
        probes: list[Object] = [pod.container.get(each, {}) for each in PROBES]
        missing = [name for name, probe in zip(PROBES, probes, strict=True) if not probe]
        if missing:
            yield f"{pod.role}: no {', '.join(missing)}"
        elif len({question(probe) for probe in probes}) < len(PROBES):
            yield f"{pod.role}: two probes ask the same"


def a_busy_pod_lives(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.pods():
        startup, liveness, readiness = (pod.container.get(each, {}) for each in PROBES)
        if patience_s(startup) < START_TAKES_S:
            yield f"{pod.role}: has {patience_s(startup):g} s to start"
        if patience_s(liveness) < BUSY_FOR_S:
            yield f"{pod.role}: is killed after {patience_s(liveness):g} s"
        for name, probe in (("liveness", liveness), ("readiness", readiness)):
            least = 5.0 if "tcpSocket" in probe else ANSWER_WITHIN_S
            if probe.get("timeoutSeconds", 1) < least:
                yield f"{pod.role}: {name} waits {probe.get('timeoutSeconds', 1)} s for an answer"


def the_driver_is_judged(manifests: Manifests) -> Iterator[str]:
    driver = manifests.pod("driver").container
    for name, asked in (("livenessProbe", "livez"), ("readinessProbe", "readyz")):
        command = driver.get(name, {}).get("exec", {}).get("command")
        if command != ["python", "-m", "deploy.pod", asked]:
            yield f"driver: {name} does not ask for {asked}; a pod without a driver must be alive and ready"


def there_is_time_to_end(manifests: Manifests) -> Iterator[str]:
    driver = manifests.pod("driver")
    stop = driver.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
    if stop != ["python", "-m", "deploy.pod", "stop"]:
        yield f"driver: is not told to checkpoint before it is killed, but {stop}"
    grace_s = driver.spec.get("terminationGracePeriodSeconds", 30)
    if grace_s < STOP_WITHIN_S + 15:
        yield f"driver: has {grace_s} s, its checkpoint {STOP_WITHIN_S:g} s, and Ray has to end after that"
    if not 60 <= float(driver.environment().get("RAY_JOB_STOP_WAIT_TIME_S", "3")) < grace_s:
        yield "driver: `ray job stop` kills it too early, or too late"


def signals_arrive(manifests: Manifests) -> Iterator[str]:
    if manifests.owner["metadata"].get("annotations", {}).get(OVERWRITE) != "true":
        yield f"{manifests.owner['kind']}: KubeRay puts a shell in front of Ray"
    for pod in manifests.pods():
        if not re.search(r'\beval "exec \$KUBERAY_GEN_RAY_START_CMD"$', pod.container["args"][-1]):
            yield f"{pod.role}: a shell stays in front of Ray"
    if manifests.job and not manifests.job["spec"]["entrypoint"].startswith("exec "):
        yield "RayJob: a shell stays in front of the driver"


def only_the_driver_writes(manifests: Manifests) -> Iterator[str]:
    claim = manifests.one("PersistentVolumeClaim")
    if claim["spec"]["accessModes"] not in ONE_WRITER:
        yield f"PersistentVolumeClaim: {claim['spec']['accessModes']} lets several nodes write"
    for pod in manifests.templates():
        claims = [each for each in pod.spec["volumes"] if "persistentVolumeClaim" in each]
        expected = 1 if pod.role == "driver" else 0
        if len(claims) != expected:
            yield f"{pod.role}: has {len(claims)} persistent volumes"
    if manifests.pod("driver").mounted_at("/runs")["persistentVolumeClaim"]["claimName"] != claim["metadata"]["name"]:
        yield "driver: has another volume at /runs"


def a_successor_takes_over(manifests: Manifests) -> Iterator[str]:
    if not manifests.pod("driver").spec.get("hostname"):
        yield "driver: on a host of another name its successor cannot know that it is dead"
    if manifests.pod("driver").ray.get("num-cpus") != "0":
        yield "driver: actors and ranks may take its memory"


def a_retry_resumes(manifests: Manifests) -> Iterator[str]:
    if manifests.job is None:
        return
    job: dict[str, Any] = manifests.job["spec"]
    words = shlex.split(job["entrypoint"])
    told = dict(pairwise(words))
    if told.get("--resume") != "auto" or "--run" not in told:
        yield "RayJob: a second start does not go on with the run"
    if not told.get("--out", "").startswith("/runs"):
        yield f"RayJob: writes to {told.get('--out')}, which goes with the pod"
    if job.get("backoffLimit", 0) < 1:
        yield "RayJob: is not tried again"
    if not job.get("activeDeadlineSeconds"):
        yield "RayJob: may run for ever"
    grace_s = manifests.pod("driver").spec["terminationGracePeriodSeconds"]
    if not grace_s < job.get("preRunningDeadlineSeconds", 0) < job.get("activeDeadlineSeconds", 0):
        yield "RayJob: waits too long for a place, or not even for its predecessor's end"
    if job.get("shutdownAfterJobFinishes") is not True:
        yield "RayJob: its pods stay after the run"


def who_goes_first(manifests: Manifests) -> Iterator[str]:
    classes = {each["metadata"]["name"]: each for each in manifests.kind("PriorityClass")}
    for pod in manifests.pods():
        own = pod.spec.get("priorityClassName")
        if (pod.role in ("driver", "learner")) != (own in classes):
            yield f"{pod.role}: priority {own}, known {', '.join(classes)}"
    for name, each in classes.items():
        if each.get("globalDefault") is not False or each.get("preemptionPolicy") != "Never":
            yield f"{name}: pushes other people's pods away"


def disruptions_are_few(manifests: Manifests) -> Iterator[str]:
    budgets = manifests.kind("PodDisruptionBudget")
    groups = {group["groupName"]: group for group in manifests.cluster["workerGroupSpecs"]}
    fewest = {"driver": 1, "learner": groups["learner"]["minReplicas"], "actor": groups["actors"]["minReplicas"]}
    for pod in manifests.pods():
        own = [each["spec"] for each in budgets if selects(each["spec"]["selector"], pod)]
        if len(own) != 1:
            yield f"{pod.role}: {len(own)} disruption budgets"
            continue
        least = own[0].get("minAvailable")
        if "maxUnavailable" in own[0] or not isinstance(least, int):
            yield f"{pod.role}: of pods of a RayCluster only a number that must stay is understood"
        elif not 1 <= least <= fewest[pod.role]:
            yield f"{pod.role}: {least} must stay, there may be {fewest[pod.role]}"


def actors_are_spread(manifests: Manifests) -> Iterator[str]:
    pod = manifests.pod("actor")
    spread = pod.spec.get("topologySpreadConstraints", [])
    if [each["topologyKey"] for each in spread] != ["kubernetes.io/hostname"]:
        yield "actor: one node may get them all"
    for each in spread:
        if not selects(each["labelSelector"], pod):
            yield "actor: spread against pods that do not exist"


def selects(selector: Object, pod: Template) -> bool:
    """Whether a label selector matches a pod; KubeRay's own labels are there later."""
    wanted = selector.get("matchLabels", {})
    return bool(wanted) and wanted.items() <= pod.labels.items()


def _same_probes(manifests: Manifests) -> None:
    container = manifests.pod("driver").container
    container["readinessProbe"] = {**container["livenessProbe"]}


def _give_a_volume(manifests: Manifests) -> None:
    claim = {"name": "runs", "persistentVolumeClaim": {"claimName": "truestep-runs"}}
    manifests.pod("actor").spec["volumes"].append(claim)


def _say(manifests: Manifests, old: str, new: str) -> None:
    assert manifests.job is not None
    entrypoint = manifests.job["spec"]["entrypoint"]
    assert old in entrypoint
    manifests.job["spec"]["entrypoint"] = entrypoint.replace(old, new)


def _spread(manifests: Manifests) -> Object:
    (constraint,) = manifests.pod("actor").spec["topologySpreadConstraints"]
    assert isinstance(constraint, dict)
    return constraint


def _budget(manifests: Manifests, role: str) -> Object:
    spec: Object = manifests.one("PodDisruptionBudget", f"truestep-{role}")["spec"]
    return spec


LIFE_PROPERTIES = (
    Property(
        name="three probes",
        says="Startup, liveness and readiness ask different things",
        check=probes_differ,
        broken_by={
            "actor: no startupProbe": lambda m: m.pod("actor").container.pop("startupProbe"),
            "driver: two": _same_probes,
        },
    ),
    Property(
        name="a busy pod lives",
        says="A pod has minutes to start, a minute of silence, and seconds for each answer",
        check=a_busy_pod_lives,
        broken_by={
            "driver: is killed": lambda m: m.pod("driver").container["livenessProbe"].update(periodSeconds=5),
            "learner: liveness waits": lambda m: m.pod("learner").container["livenessProbe"].update(timeoutSeconds=2),
            "driver: readiness waits 1": lambda m: m.pod("driver").container["readinessProbe"].pop("timeoutSeconds"),
            "actor: has 30 s": lambda m: m.pod("actor").container["startupProbe"].update(failureThreshold=6),
        },
    ),
    Property(
        name="the driver is judged",
        says="The head pod's probes ask the driver, and know that there may be none yet",
        check=the_driver_is_judged,
        broken_by={
            "readinessProbe": lambda m: m.pod("driver").container.update(
                readinessProbe={"httpGet": {"path": "/readyz", "port": 9100}}
            ),
            "livenessProbe": lambda m: m.pod("driver").container["livenessProbe"]["exec"]["command"].pop(),
        },
    ),
    Property(
        name="time to end",
        says="The driver is told to checkpoint before its container ends, and has longer for it than that may take",
        check=there_is_time_to_end,
        broken_by={
            "driver: is not told": lambda m: m.pod("driver").container.pop("lifecycle"),
            "driver: has 60 s": lambda m: m.pod("driver").spec.update(terminationGracePeriodSeconds=60),
            "`ray job stop`": lambda m: m.pod("driver").container.update(env=[]),
        },
    ),
    Property(
        name="signals arrive",
        says="Every shell on the way to Ray and to the driver is replaced by what it starts",
        check=signals_arrive,
        broken_by={
            "KubeRay puts": lambda m: m.owner["metadata"].pop("annotations"),
            "learner: a shell": lambda m: m.pod("learner").container.update(args=["$KUBERAY_GEN_RAY_START_CMD"]),
            "RayJob: a shell": lambda m: _say(m, "exec ", ""),
        },
    ),
    Property(
        name="only the driver writes",
        says="The volume of runs is the driver's, on one node at a time",
        check=only_the_driver_writes,
        broken_by={
            "actor: has 1": _give_a_volume,
            "ReadWriteMany": lambda m: m.one("PersistentVolumeClaim")["spec"].update(accessModes=["ReadWriteMany"]),
            "another volume": lambda m: m.one("PersistentVolumeClaim")["metadata"].update(name="other"),
        },
    ),
    Property(
        name="a successor takes over",
        says="Every driver has the same host name, and its pod to itself",
        check=a_successor_takes_over,
        broken_by={
            "successor": lambda m: m.pod("driver").spec.pop("hostname"),
            "may take its memory": lambda m: m.pod("driver").ray.update({"num-cpus": "4"}),
        },
    ),
    Property(
        name="a retry resumes",
        says="A RayJob is tried again, within deadlines, by a command that goes on with its run",
        check=a_retry_resumes,
        broken_by={
            "does not go on": lambda m: _say(m, "--resume auto", ""),
            "goes with the pod": lambda m: _say(m, "--out /runs", "--out /tmp/runs"),
            "tried again": lambda m: m.owner["spec"].update(backoffLimit=0),
            "for ever": lambda m: m.owner["spec"].pop("activeDeadlineSeconds"),
            "predecessor": lambda m: m.owner["spec"].update(preRunningDeadlineSeconds=60),
            "pods stay": lambda m: m.owner["spec"].update(shutdownAfterJobFinishes=False),
        },
    ),
    Property(
        name="who goes first",
        says="Driver and learner are evicted last, and push nobody away",
        check=who_goes_first,
        broken_by={
            "learner: priority": lambda m: m.pod("learner").spec.pop("priorityClassName"),
            "actor: priority": lambda m: m.pod("actor").spec.update(priorityClassName="truestep-learner"),
            "pushes": lambda m: m.one("PriorityClass").pop("preemptionPolicy"),
        },
    ),
    Property(
        name="few disruptions",
        says="Each kind of pod has one budget, of the only form that Kubernetes understands for it, that can be kept",
        check=disruptions_are_few,
        broken_by={
            "driver: 0": lambda m: _budget(m, "driver")["selector"]["matchLabels"].update(a="b"),
            "actor: of pods": lambda m: _budget(m, "actor").update(minAvailable="50%"),
            "learner: 3 must stay": lambda m: _budget(m, "learner").update(minAvailable=3),
        },
    ),
    Property(
        name="actors are spread",
        says="Actors spread over nodes, so that one node does not take them all",
        check=actors_are_spread,
        broken_by={
            "one node": lambda m: m.pod("actor").spec.pop("topologySpreadConstraints"),
            "do not exist": lambda m: _spread(m)["labelSelector"]["matchLabels"].update(a="b"),
        },
    ),
)
