"""What pods may do to their machine, and what they may take of it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

from tests.kubernetes.property import Property
from tests.kubernetes.quantities import amount
from tests.kubernetes.rendering import Manifests, Object

OBJECT_STORE_SHARE = Fraction(9, 10)  # of /dev/shm: Ray's processes put a little there besides
RIGHTS = ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")


def nobody_is_root(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.templates():
        user = pod.spec.get("securityContext", {})
        if user.get("runAsNonRoot") is not True or not user.get("runAsUser") or not user.get("runAsGroup"):
            yield f"{pod.role}: runs as {user.get('runAsUser')}, runAsNonRoot {user.get('runAsNonRoot')}"
        for key in ("runAsUser", "runAsNonRoot"):
            if key in pod.container["securityContext"]:
                yield f"{pod.role}: the container has a {key} of its own"


def roots_are_read_only(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.templates():
        if pod.container["securityContext"].get("readOnlyRootFilesystem") is not True:
            yield f"{pod.role}: may write to its root"


def no_privileges(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.templates():
        confined = pod.container["securityContext"]
        if confined.get("allowPrivilegeEscalation") is not False or confined.get("privileged") is not False:
            yield f"{pod.role}: may gain privileges"
        if confined.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{pod.role}: has capabilities {confined.get('capabilities')}"
        if pod.spec["securityContext"].get("seccompProfile") != {"type": "RuntimeDefault"}:
            yield f"{pod.role}: no seccomp profile"


def nothing_of_the_host(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.templates():
        shared = [key for key in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace") if pod.spec.get(key)]
        shared += [each["name"] for each in pod.spec["volumes"] if "hostPath" in each]
        shared += [str(each["hostPort"]) for each in pod.container.get("ports", []) if "hostPort" in each]
        if shared:
            yield f"{pod.role}: shares {', '.join(shared)} with its node"


def no_rights(manifests: Manifests) -> Iterator[str]:
    account = manifests.one("ServiceAccount")
    if account.get("automountServiceAccountToken") is not False:
        yield "ServiceAccount: mounts its token"
    for given in manifests.kind(*RIGHTS):
        yield f"{given['kind']}: gives rights"
    for pod in manifests.templates():
        if pod.spec.get("serviceAccountName") != account["metadata"]["name"]:
            yield f"{pod.role}: is {pod.spec.get('serviceAccountName')}"
        if pod.spec.get("automountServiceAccountToken") is not False:
            yield f"{pod.role}: mounts a token of Kubernetes"


def everything_is_bounded(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.templates():
        resources: dict[str, Object] = pod.container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        if not {"cpu", "memory"} <= set(requests) & set(limits):
            yield f"{pod.role}: asks for {requests} and is limited to {limits}"
        elif requests["memory"] != limits["memory"] or amount(requests["cpu"]) > amount(limits["cpu"]):
            yield f"{pod.role}: promised {requests}, allowed {limits}; memory cannot be taken back"
        for each in pod.spec["volumes"]:
            if "emptyDir" in each and "sizeLimit" not in each["emptyDir"]:
                yield f"{pod.role}: {each['name']} may fill its node"


def shared_memory_fits(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.pods():
        shared = pod.mounted_at("/dev/shm").get("emptyDir", {})
        if shared.get("medium") != "Memory":
            yield f"{pod.role}: /dev/shm is not in memory"
            continue
        size = amount(shared["sizeLimit"])
        if size > amount(pod.container["resources"]["limits"]["memory"]) / 2:
            yield f"{pod.role}: /dev/shm may take {size} bytes, more than half of what the pod has"
        if amount(pod.ray.get("object-store-memory", str(size))) > size * OBJECT_STORE_SHARE:
            yield f"{pod.role}: object store {pod.ray.get('object-store-memory')} does not fit into /dev/shm"


def ray_counts_what_is_there(manifests: Manifests) -> Iterator[str]:
    for pod in manifests.pods():
        processors = amount(pod.ray.get("num-cpus", "-1"))
        if not 0 <= processors <= amount(pod.container["resources"]["limits"]["cpu"]):
            yield f"{pod.role}: Ray counts {processors} CPUs"
        gpus = pod.container["resources"]["limits"].get("nvidia.com/gpu", "0")
        if gpus != pod.ray.get("num-gpus", "0"):
            yield f"{pod.role}: Ray counts {pod.ray.get('num-gpus', '0')} GPUs, the pod has {gpus}"


def images_are_pinned(manifests: Manifests) -> Iterator[str]:
    images = {pod.role: pod.container["image"] for pod in manifests.templates()}
    for role, image in images.items():
        _, _, tag = image.rpartition("/")[2].partition(":")
        if tag in ("", "latest"):
            yield f"{role}: the image {image} may change from pod to pod"
    if len(set(images.values())) > 1:
        yield f"{', '.join(images)}: different images {sorted(set(images.values()))}, different sources"


def _mount_host(manifests: Manifests) -> None:
    manifests.pod("learner").spec["volumes"].append({"name": "node", "hostPath": {"path": "/"}})


def _small_shm(manifests: Manifests) -> None:
    manifests.pod("learner").mounted_at("/dev/shm")["emptyDir"]["sizeLimit"] = "64Mi"


POD_PROPERTIES = (
    Property(
        name="nobody is root",
        says="Every pod runs as a user and group of its own, none as root",
        check=nobody_is_root,
        broken_by={
            "actor": lambda m: m.pod("actor").spec["securityContext"].update(runAsUser=0),
            "submitter": lambda m: m.pod("submitter").spec["securityContext"].pop("runAsNonRoot"),
            "learner": lambda m: m.pod("learner").container["securityContext"].update(runAsUser=0),
        },
    ),
    Property(
        name="read-only roots",
        says="No container can write outside its volumes",
        check=roots_are_read_only,
        broken_by={
            "driver": lambda m: m.pod("driver").container["securityContext"].update(readOnlyRootFilesystem=False),
            "submitter": lambda m: m.pod("submitter").container["securityContext"].pop("readOnlyRootFilesystem"),
        },
    ),
    Property(
        name="no privileges",
        says="No escalation, no capability, the runtime's seccomp profile",
        check=no_privileges,
        broken_by={
            "driver: may gain": lambda m: m.pod("driver").container["securityContext"].pop("allowPrivilegeEscalation"),
            "actor: has capa": lambda m: m.pod("actor").container["securityContext"]["capabilities"].update(add=["X"]),
            "learner: no seccomp": lambda m: m.pod("learner").spec["securityContext"].pop("seccompProfile"),
        },
    ),
    Property(
        name="nothing of the host",
        says="No namespace, port or directory of the node is shared",
        check=nothing_of_the_host,
        broken_by={
            "driver: shares hostNetwork": lambda m: m.pod("driver").spec.update(hostNetwork=True),
            "learner: shares node": _mount_host,
            "actor: shares 8080": lambda m: m.pod("actor").container["ports"][0].update(hostPort=8080),
        },
    ),
    Property(
        name="no rights",
        says="The service account has no role, and no pod has a token of Kubernetes",
        check=no_rights,
        broken_by={
            "driver: mounts": lambda m: m.pod("driver").spec.pop("automountServiceAccountToken"),
            "actor: is None": lambda m: m.pod("actor").spec.pop("serviceAccountName"),
            "ServiceAccount": lambda m: m.one("ServiceAccount").pop("automountServiceAccountToken"),
            "ClusterRoleBinding": lambda m: m.objects.append({"kind": "ClusterRoleBinding"}),
        },
    ),
    Property(
        name="bounded",
        says="Processors, memory and every scratch volume have a limit; memory is promised in full",
        check=everything_is_bounded,
        broken_by={
            "actor: asks for": lambda m: m.pod("actor").container["resources"].pop("limits"),
            "driver: promised": lambda m: m.pod("driver").container["resources"]["requests"].update(memory="1Gi"),
            "learner: tmp": lambda m: m.pod("learner").mounted_at("/tmp")["emptyDir"].clear(),
        },
    ),
    Property(
        name="shared memory fits",
        says="/dev/shm lies in memory, within the pod's limit, and holds the object store",
        check=shared_memory_fits,
        broken_by={
            "actor: /dev/shm is not": lambda m: m.pod("actor").mounted_at("/dev/shm")["emptyDir"].pop("medium"),
            "learner: object store": _small_shm,
            "driver: /dev/shm may": lambda m: m.pod("driver").mounted_at("/dev/shm")["emptyDir"].update(sizeLimit="1T"),
        },
    ),
    Property(
        name="Ray counts what is there",
        says="Ray places no more on a pod than its limits allow",
        check=ray_counts_what_is_there,
        broken_by={
            "actor: Ray counts": lambda m: m.pod("actor").ray.update({"num-cpus": "64"}),
            "driver: Ray counts": lambda m: m.pod("driver").ray.pop("num-cpus"),
            "GPUs": lambda m: m.pod("learner").ray.update({"num-gpus": "2"}),
        },
    ),
    Property(
        name="images are pinned",
        says="All pods run one image, by a tag that stays",
        check=images_are_pinned,
        broken_by={
            "actor: the image": lambda m: m.pod("actor").container.update(image="truestep:latest"),
            "different sources": lambda m: m.pod("learner").container.update(image="truestep:0.0.9"),
        },
    ),
)
