"""A Kubernetes API server as far as `kubectl apply` and `delete` need one.

It knows kinds, namespaces and names, keeps objects in memory, and runs nothing. A kind it does not know, a namespace
that is not there, and an object that is created twice are refused as the real one refuses them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of object.

    Attributes:
        version: apiVersion.
        name: kind.
        plural: as in paths.
        namespaced: whether it lives in a namespace.
    """

    version: str
    name: str
    plural: str
    namespaced: bool = True


KINDS = (
    Kind(version="v1", name="Namespace", plural="namespaces", namespaced=False),
    Kind(version="v1", name="ConfigMap", plural="configmaps"),
    Kind(version="v1", name="Service", plural="services"),
    Kind(version="v1", name="ServiceAccount", plural="serviceaccounts"),
    Kind(version="v1", name="PersistentVolumeClaim", plural="persistentvolumeclaims"),
    Kind(version="scheduling.k8s.io/v1", name="PriorityClass", plural="priorityclasses", namespaced=False),
    Kind(version="policy/v1", name="PodDisruptionBudget", plural="poddisruptionbudgets"),
    Kind(version="networking.k8s.io/v1", name="NetworkPolicy", plural="networkpolicies"),
    Kind(version="ray.io/v1", name="RayCluster", plural="rayclusters"),
    Kind(version="ray.io/v1", name="RayJob", plural="rayjobs"),
    Kind(version="monitoring.coreos.com/v1", name="PodMonitor", plural="podmonitors"),
    Kind(version="monitoring.coreos.com/v1", name="PrometheusRule", plural="prometheusrules"),
    Kind(version="monitoring.coreos.com/v1alpha1", name="ScrapeConfig", plural="scrapeconfigs"),
)


@dataclass(slots=True, kw_only=True)
class Store:
    """What is there.

    Attributes:
        objects: by path.
        patches: paths that were patched, in order.
    """

    objects: dict[str, Object] = field(default_factory=dict)
    patches: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def names(self) -> set[tuple[str, str]]:
        """Kind and name of every object."""
        return {(each["kind"], each["metadata"]["name"]) for each in self.objects.values()}


@contextmanager
def mock_api() -> Iterator[tuple[str, Store]]:
    """Its address, and what it keeps."""
    store = Store()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(store))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="mock of Kubernetes")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", store
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def discovery(path: str) -> Object | None:
    """What there is, as kubectl asks for it before anything else; None if it is no question of that sort."""
    versions = sorted({kind.version for kind in KINDS})
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups: dict[str, list[Object]] = {}
        for version in versions:
            if "/" in version:
                groups.setdefault(version.split("/")[0], []).append(_version(version))
        named = [{"name": name, "versions": each, "preferredVersion": each[0]} for name, each in groups.items()]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": named}
    version = next((each for each in versions if path == _prefix(each)), "")
    if not version:
        return None
    listed = [_resource(kind) for kind in KINDS if kind.version == version]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": listed}


def located(path: str) -> tuple[Kind, str, str] | None:
    """Kind, namespace ("" for none) and name ("" for the collection) of a path; None if nothing is there."""
    for kind in KINDS:
        prefix = _prefix(kind.version) + "/"
        if not path.startswith(prefix):
            continue
        parts, namespace = path.removeprefix(prefix).split("/"), ""
        if kind.namespaced:
            if len(parts) < 3 or parts[0] != "namespaces":
                continue
            namespace, parts = parts[1], parts[2:]
        if parts[0] == kind.plural and len(parts) <= 2:
            return kind, namespace, parts[1] if len(parts) == 2 else ""
    return None


def merged(old: Any, new: Any) -> Any:
    """JSON merge patch, RFC 7396."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    both = {key: merged(old.get(key), value) for key, value in new.items() if value is not None}
    return {**{key: value for key, value in old.items() if key not in new}, **both}


def _prefix(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"


def _version(version: str) -> Object:
    return {"groupVersion": version, "version": version.split("/")[1]}


def _resource(kind: Kind) -> Object:
    verbs = ["create", "delete", "get", "list", "patch"]
    singular = kind.name.lower()
    named = {"name": kind.plural, "singularName": singular, "kind": kind.name}
    return {**named, "namespaced": kind.namespaced, "verbs": verbs}


def _status(code: HTTPStatus, reason: str, message: str) -> tuple[HTTPStatus, Object]:
    verdict = "Success" if code < HTTPStatus.BAD_REQUEST else "Failure"
    head = {"kind": "Status", "apiVersion": "v1", "metadata": {}}
    return code, {**head, "status": verdict, "reason": reason, "message": message, "code": code}


def _answer(store: Store, method: str, path: str, body: Object) -> tuple[HTTPStatus, Object]:
    if method == "GET" and (found := discovery(path)) is not None:
        return HTTPStatus.OK, found
    if (place := located(path)) is None:
        return _status(HTTPStatus.NOT_FOUND, "NotFound", f"no such path: {path}")
    kind, namespace, name = place
    if method == "POST":
        return _create(store, kind, namespace, f"{path}/{body['metadata']['name']}", body)
    if path not in store.objects:
        return _status(HTTPStatus.NOT_FOUND, "NotFound", f'{kind.plural} "{name}" not found')
    if method == "PATCH":
        store.objects[path] = merged(store.objects[path], body)
        store.patches.append(path)
    elif method == "DELETE":
        del store.objects[path]
        return _status(HTTPStatus.OK, "", f"{name} deleted")
    return HTTPStatus.OK, store.objects[path]


def _create(store: Store, kind: Kind, namespace: str, path: str, body: Object) -> tuple[HTTPStatus, Object]:
    if namespace and f"/api/v1/namespaces/{namespace}" not in store.objects:
        return _status(HTTPStatus.NOT_FOUND, "NotFound", f'namespaces "{namespace}" not found')
    if (body["apiVersion"], body["kind"], body["metadata"].get("namespace", "")) != (
        kind.version,
        kind.name,
        namespace,
    ):
        return _status(HTTPStatus.BAD_REQUEST, "BadRequest", f"{body['kind']} was sent to {path}")
    if path in store.objects:
        return _status(HTTPStatus.CONFLICT, "AlreadyExists", f"{path} exists already")
    store.objects[path] = body
    return HTTPStatus.CREATED, body


def _handler(store: Store) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = self.rfile.read(length)
            body = json.loads(sent) if sent and self.command != "DELETE" else {}
            with store.lock:
                code, answer = _answer(store, self.command, urlsplit(self.path).path, body)
            text = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = do  # noqa: N815  names of http.server

        def log_message(self, format: str, *args: object) -> None:
            """A test says what went wrong."""

    return Handler
