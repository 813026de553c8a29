"""A real headless Chromium, driven over its DevTools protocol.

By hand and not through a driver library: those keep every tab visible, and what a hidden tab does
is among what is tested.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from websockets.sync.client import ClientConnection, connect

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_FLAGS: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-port=0",
)  # fmt: skip
_PATIENCE_S: Final = 60.0


def find() -> str | None:
    """Return the browser's program, if one is installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A running browser."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._calls = 0
        self._said: dict[str, list[str]] = {}

    def call(self, method: str, tab: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, for the browser or for one tab's session."""
        self._calls += 1
        message: dict[str, Any] = {"id": self._calls, "method": method, "params": parameters}
        if tab is not None:
            message["sessionId"] = tab
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=_PATIENCE_S))
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in {"Runtime.exceptionThrown", "Runtime.consoleAPICalled"}:
            said = self._said.setdefault(event["sessionId"], [])
            said.append(json.dumps(event["params"])[:2000])

    def said(self, session: str) -> list[str]:
        """Return what a tab threw or wrote on its console so far."""
        return self._said.get(session, [])

    def tab(self) -> Tab:
        """Open a tab; it becomes the visible one."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Runtime.enable", session)
        self.call("Page.enable", session)
        return Tab(self, target, session)


class Tab:
    """One tab of it."""

    def __init__(self, browser: Chromium, target: str, session: str) -> None:
        self._browser = browser
        self._target = target
        self._session = session

    @property
    def said(self) -> list[str]:
        """What the page threw or wrote on the console."""
        return self._browser.said(self._session)

    def open(self, url: str) -> None:
        """Go to an address, and wait until its document is there."""
        self.go(url)
        self.arrive(url)

    def arrive(self, url: str) -> None:
        """Wait until the document at an address is there."""
        # A promise made in the page before would die with it.
        self.wait_for(f"document.readyState + location.href === {json.dumps('complete' + url)}")

    def evaluate(self, expression: str) -> Any:
        """Return what an expression comes to in the page; a promise is waited for."""
        answer = self._browser.call(
            "Runtime.evaluate",
            self._session,
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:2000])
        return answer["result"].get("value")

    def look_as(
        self, *, width: int, height: int = 1400, scheme: str = "light", media: str = "screen"
    ) -> None:
        """Show pages from now on as on a screen, or paper, of a size, light or dark."""
        self._browser.call(
            "Emulation.setDeviceMetricsOverride", self._session,
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self._browser.call(
            "Emulation.setEmulatedMedia", self._session, media=media,
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )  # fmt: skip

    def go(self, url: str) -> None:
        """Go to an address that may lead on to another, and do not wait."""
        self._browser.call("Page.navigate", self._session, url=url)

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true in the page, whichever page that is by then."""
        give_up = time.monotonic() + _PATIENCE_S
        while not self.evaluate(expression):
            if time.monotonic() > give_up:
                raise TimeoutError(expression)
            time.sleep(0.02)

    def press(self, key: str, code: int) -> None:
        """Press a key, as a person without a mouse does."""
        for kind in ("keyDown", "keyUp"):
            self._browser.call(
                "Input.dispatchKeyEvent", self._session, type=kind, key=key, code=key,
                windowsVirtualKeyCode=code, **({"text": "\r"} if key == "Enter" else {}),
            )  # fmt: skip

    def before_every_page(self, script: str) -> None:
        """Run a script in every page that is opened from now on, before any of its own."""
        self._browser.call("Page.addScriptToEvaluateOnNewDocument", self._session, source=script)

    def show(self) -> None:
        """Make this tab the visible one."""
        self._browser.call("Target.activateTarget", targetId=self._target)

    def keep(self, name: str, *, whole: bool = False) -> None:
        """Keep a picture of what is to be seen, or of the whole page, if they are wanted."""
        if folder := os.environ.get("LLMTRACE_PICTURES"):
            Path(folder, f"{name}.png").write_bytes(self.picture(whole=whole))

    def picture(self, *, whole: bool = False) -> bytes:
        """Return what is to be seen, or the whole page, as PNG."""
        shot = self._browser.call(
            "Page.captureScreenshot", self._session, captureBeyondViewport=whole
        )
        return base64.b64decode(shot["data"])

    def close(self) -> None:
        """Close the tab, as its user would."""
        self._browser.call("Target.closeTarget", targetId=self._target)


@contextmanager
def running(program: str) -> Iterator[Chromium]:
    """Run a browser with a profile of its own."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            port, path = _listening(process, Path(profile) / "DevToolsActivePort")
            address = f"ws://127.0.0.1:{port}{path}"
            with connect(address, max_size=None, open_timeout=_PATIENCE_S) as socket:
                browser = Chromium(socket)
                yield browser
                browser.call("Browser.close")
        finally:
            process.terminate()
            process.wait()


def _listening(process: subprocess.Popen[bytes], port_file: Path) -> list[str]:
    give_up = time.monotonic() + _PATIENCE_S
    while time.monotonic() < give_up and process.poll() is None:
        lines = port_file.read_text().split() if port_file.exists() else []
        if len(lines) == 2:
            return lines
        time.sleep(0.05)
    raise RuntimeError(f"the browser did not start (exit status {process.returncode})")
