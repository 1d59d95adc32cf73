"""Chromium without a window, spoken to through pipes (its DevTools protocol)."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIZE = (1400, 900)
SECONDS = 60                    # that an answer may take


# the browser reads commands from 3 and writes to 4
BEGIN = """import fcntl, os, sys
down, up = (fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3])
os.dup2(down, 3), os.dup2(up, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


class Page:
    """One page. What its scripts raise is raised here."""

    def __init__(self, into: int, out: int) -> None:
        self._into, self._out, self._number, self._rest = into, out, 0, b""
        self._session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime"):
            self.ask(f"{domain}.enable")
        self.ask("Emulation.setDeviceMetricsOverride", width=SIZE[0], height=SIZE[1],
                 deviceScaleFactor=1, mobile=False)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to a command of the protocol."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._into, json.dumps(message).encode() + b"\0")
        while True:
            got = json.loads(self._read())
            if got.get("method") == "Runtime.exceptionThrown":
                raise AssertionError(got["params"]["exceptionDetails"])
            if got.get("id") == self._number:
                assert "error" not in got, got["error"]
                return got["result"]

    def _read(self) -> bytes:
        while b"\0" not in self._rest:
            got = os.read(self._out, 1 << 20)
            assert got, "Chromium went away"
            self._rest += got
        message, _, self._rest = self._rest.partition(b"\0")
        return message

    def run(self, script: str) -> Any:
        """An expression's value."""
        got = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got["exceptionDetails"]
        return got["result"].get("value")

    def open(self, path: Path, address: str = "", until: str = "true") -> None:
        """Open a file, and wait until an expression is true."""
        self.ask("Page.navigate", url="about:blank")
        self.ask("Page.navigate", url=path.absolute().as_uri() + address)
        self.wait(f"document.readyState === 'complete' && location.protocol === 'file:' && {until}")

    def wait(self, until: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.run(f"Boolean({until})"):
            assert time.monotonic() < end, until
            time.sleep(0.02)

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        text |= {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                     windowsVirtualKeyCode=13 if key == "Enter" else 0,
                     **(text if kind == "keyDown" else {}))

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """A browser with one page, which is gone behind the block."""
    down, into = os.pipe()
    out, up = os.pipe()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, str(down), str(up), "chromium", *flags], pass_fds=(down, up),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(down)
    os.close(up)
    try:
        yield Page(into, out)
    finally:
        os.close(into)
        process.kill()
        process.wait()
        os.close(out)


__all__ = ["Page", "browser"]
