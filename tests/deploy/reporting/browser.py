"""A headless Chromium, spoken to over two pipes: what a page does there, and pictures of it.

python -m tests.deploy.reporting.browser PAGE DIRECTORY      light.png, dark.png, phone.png, for the documents
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from common.clock import Deadline, MonotonicClock

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((found for name in NAMES if (found := shutil.which(name))), "")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
)
LIMIT_S = 60.0
DESKTOP, PHONE = (1200, 800), (390, 844)
TOP = 925  # pixels down to the end of the first chart
SCHEMES = ("light", "dark")


class Browser:
    """Chromium with one empty page, of a given size and colour scheme."""

    def __init__(self, *, size: tuple[int, int], scheme: str) -> None:
        self._size = size
        self._scheme = scheme
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.said: list[tuple[str, dict[str, Any]]] = []

    def __enter__(self) -> Browser:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def connect() -> None:
            """The pipes are descriptors 3 and 4 of the browser, whatever their numbers are here."""
            os.dup2(to_read, 103)
            os.dup2(to_write, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        command = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(command, preexec_fn=connect, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(to_write)
        try:
            self._show()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._write)  # the browser ends with its pipe
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(self, page: Path) -> None:
        """Load a page to its end."""
        self.said.clear()
        self.call("Page.navigate", url=page.as_uri())
        deadline = Deadline(MonotonicClock(), LIMIT_S)
        while not self.heard("Page.loadEventFired"):
            self._take(deadline, "the page to load")

    def heard(self, method: str) -> list[dict[str, Any]]:
        """What has been said of a kind since the page was opened."""
        return [parameters for each, parameters in self.said if each == method]

    def value(self, expression: str) -> Any:
        """What a JavaScript expression comes to on the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, path: Path, *, height: int, top: int = 0) -> None:
        """Write `height` pixels of the page, from `top` on, as PNG."""
        width = self.value("document.documentElement.clientWidth")
        clip = {"x": 0, "y": top, "width": width, "height": height, "scale": 1}
        answer = self.call("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = Deadline(MonotonicClock(), LIMIT_S)
        while (answer := self._take(deadline, method)).get("id") != self._number:
            pass
        assert "error" not in answer, (method, answer["error"])
        result: dict[str, Any] = answer["result"]
        return result

    def _show(self) -> None:
        targets = self.call("Target.getTargets")["targetInfos"]
        (page,) = [target for target in targets if target["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        width, height = self._size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": self._size == PHONE}
        self.call("Emulation.setDeviceMetricsOverride", **metrics)
        features = [{"name": "prefers-color-scheme", "value": self._scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def _take(self, deadline: Deadline, what: str) -> dict[str, Any]:
        """The next message; those that answer nothing are kept."""
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline.remaining_s()))
            assert ready, f"waited {LIMIT_S:g} s for {what}"
            data = os.read(self._read, 1 << 16)
            assert data, f"the browser ended while {what} was awaited"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.said.append((message["method"], message["params"]))
        return message


def main(one: Path, two: Path, directory: Path) -> None:
    """The pictures of the documents."""
    directory.mkdir(parents=True, exist_ok=True)
    with Browser(size=DESKTOP, scheme="light") as browser:
        browser.open(one.absolute())
        browser.picture(directory / "report-light.png", height=TOP)
        start, end = (browser.value(f"document.getElementById('{name}').offsetTop") for name in ("time", "lag"))
        browser.picture(directory / "report-time.png", top=start, height=end - start)
        start, end = (
            browser.value(f"document.getElementById('{name}').offsetTop") for name in ("timeline", "environment")
        )
        browser.picture(directory / "report-timeline.png", top=start, height=end - start)
    with Browser(size=DESKTOP, scheme="dark") as browser:
        browser.open(two.absolute())
        browser.picture(directory / "report-dark.png", height=TOP + 160)
    with Browser(size=PHONE, scheme="dark") as browser:
        browser.open(one.absolute())
        browser.picture(directory / "report-phone.png", height=1250)


if __name__ == "__main__":
    main(*(Path(word) for word in sys.argv[1:4]))
