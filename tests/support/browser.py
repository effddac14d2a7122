"""A real browser for tests: headless Chromium, driven over two pipes by its DevTools protocol."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 60.0
"""How long any answer may take on a busy machine."""


def find_chromium() -> str | None:
    """The browser's path, or None."""
    return os.environ.get("PRIVFED_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One page of one browser."""

    def __init__(self, path: str) -> None:
        self.home = tempfile.TemporaryDirectory(
            prefix="privfed-chromium-", ignore_cleanup_errors=True
        )
        flags = [
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-first-run",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]
        flags += [
            "--disable-extensions",
            "--disable-background-networking",
            f"--user-data-dir={self.home.name}",
        ]
        flags += ["--no-sandbox"] if os.geteuid() == 0 else []
        commands, self.out = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in os.pipe())
        self.into, answers = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in os.pipe())
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
        pipes = [(os.POSIX_SPAWN_DUP2, commands, 3), (os.POSIX_SPAWN_DUP2, answers, 4)]
        self.pid = os.posix_spawn(
            path, [path, *flags, "about:blank"], os.environ, file_actions=[*nothing, *pipes]
        )
        os.close(commands)
        os.close(answers)
        self.number, self.rest, self.session = 0, b"", ""
        self.complaints: list[str] = []
        """What the page has written to its console as an error, and exceptions nobody caught."""
        self.loaded = False
        page = next(
            target
            for target in self.call("Target.getTargets")["targetInfos"]
            if target["type"] == "page"
        )
        self.session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self.session = ""
        self.call("Browser.close")
        os.close(self.out)
        os.close(self.into)
        deadline = time.monotonic() + 10
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
            time.sleep(0.05)
        self.home.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The answer to a command."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        content = (
            json.dumps(message | ({"sessionId": self.session} if self.session else {})).encode()
            + b"\0"
        )
        while content:
            content = content[os.write(self.out, content) :]
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def open(self, path: Path, width: int = 1280, dark: bool = False) -> None:
        """Show a file in a window of this width, in light or dark colours."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.loaded, self.complaints = False, []
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not self.loaded:
            self._next()

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """A key of the keyboard."""
        codes = {"Tab": (9, ""), "Enter": (13, "\r"), "Space": (32, " ")}
        code, text = codes[key]
        common = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def picture(self, path: Path) -> None:
        """The whole page as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        """The next message, after taking note of what it tells."""
        deadline = time.monotonic() + SECONDS
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.into], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self.into, 1 << 16) if ready else b""
            assert part, (
                f"the browser said nothing for {SECONDS:.0f} s"
                if not ready
                else "the browser has ended"
            )
            self.rest += part
        content, _, self.rest = self.rest.partition(b"\0")
        message: dict[str, Any] = json.loads(content)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, told: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self.loaded = True
        elif event == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"].get("text")))
        elif event == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(told["args"]))
        elif event == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif event == "Network.requestWillBeSent" and not told["request"]["url"].startswith(
            ("file:", "data:")
        ):
            self.complaints.append(f"asked for {told['request']['url']}")
