"""Status of a server for its operator: health, metrics and one page, on a port of its own.

    /healthz   200 as long as the process answers
    /readyz    200 if users enough for a step are connected, else 503
    /metrics   counts for Prometheus; nothing about single users or nodes
    /          a page with progress, budget, and the names of the nodes that are missing

Names are shown on the page only: listen on loopback, or where the operator alone can reach it.
"""

from __future__ import annotations

import html
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from privfed.foundation.errors import ConfigError
from privfed.runtimes.admission import AdmissionControl
from privfed.runtimes.reachability import split_address

log = logging.getLogger("privfed.server")
TEXT, PAGE = "text/plain; version=0.0.4; charset=utf-8", "text/html; charset=utf-8"
REFRESH = 5
"""Seconds after which the page loads itself again."""
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem}"
    "progress{width:100%}td{padding:0 1.5rem 0 0}"
)


class ServerStatus:
    """What the operator of a server is shown.

    Args:
        strategy: server side of the algorithm.
        admission: knows the connected nodes.
        about: description of the federation.
    """

    def __init__(self, strategy: Any, admission: AdmissionControl, about: str) -> None:
        self.strategy, self.admission, self.about = strategy, admission, about
        self.steps, self.seconds, self.last = 0, 0.0, 0.0
        self.started = time.time()
        federation = strategy.federation
        keep = federation.on_step

        def noted(record: Any) -> None:
            self.last = float(record.seconds or 0.0)
            self.steps, self.seconds = self.steps + 1, self.seconds + self.last
            keep(record)

        federation.on_step = noted

    @property
    def present(self) -> int:
        """Number of users behind the connected nodes."""
        away = set(self.admission.missing())
        nodes = self.strategy.federation.registered
        return sum(users for name, users in nodes.items() if name not in away)

    @property
    def ready(self) -> bool:
        """Whether users enough for a step are connected."""
        federation = self.strategy.federation
        return self.present >= max(1.0, federation.quorum * federation.n)

    def figures(self) -> dict[str, tuple[str, str, float]]:
        """Return kind, meaning and value of each figure by its Prometheus name."""
        federation, ledger = self.strategy.federation, self.strategy.federation.gate.ledger
        return {
            "privfed_steps_done": ("gauge", "Steps that are done.", self.strategy.done),
            "privfed_steps_planned": ("gauge", "Steps of the run.", len(self.strategy.plan)),
            "privfed_users_registered": ("gauge", "Registered users.", federation.n),
            "privfed_users_present": ("gauge", "Users of connected nodes.", self.present),
            "privfed_nodes_missing": (
                "gauge",
                "Nodes that are not connected.",
                len(self.admission.missing()),
            ),
            "privfed_epsilon_spent": ("gauge", "Epsilon by the ledger.", ledger.epsilon),
            "privfed_epsilon_budget": ("gauge", "Epsilon of the budget.", ledger.budget.epsilon),
            "privfed_step_seconds_sum": ("counter", "Seconds of all steps.", self.seconds),
            "privfed_step_seconds_count": ("counter", "Steps of this process.", self.steps),
            "privfed_step_seconds_last": ("gauge", "Seconds of the last step.", self.last),
            "privfed_start_time_seconds": ("gauge", "Start of the process.", self.started),
        }

    def metrics(self) -> str:
        """Return the figures in the text format of Prometheus."""
        lines = []
        for name, (kind, meaning, value) in self.figures().items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", f"{name} {value:.17g}"]
        name = "privfed_refused_connections_total"
        lines += [f"# HELP {name} Refused connections by reason.", f"# TYPE {name} counter"]
        for reason, count in sorted(self.admission.refusals.items()):
            lines.append(f'{name}{{reason="{reason}"}} {count}')
        return "\n".join([*lines, ""])

    def page(self) -> str:
        """Return the page that a person watches."""
        figures = {name: value for name, (_, _, value) in self.figures().items()}
        done, planned = self.strategy.done, len(self.strategy.plan)
        rows = {
            "steps": f"{done} of {planned}",
            "users connected": f"{self.present:,} of {self.strategy.federation.n:,}",
            "epsilon spent": f"{figures['privfed_epsilon_spent']:.4g} of "
            f"{figures['privfed_epsilon_budget']:g}",
            "last step": f"{self.last:.3g} s",
            "refused connections": f"{sum(self.admission.refusals.values())}",
        }
        table = "".join(f"<tr><td>{key}</td><td>{value}</td></tr>" for key, value in rows.items())
        away = self.admission.missing()
        names = "".join(f"<li>{html.escape(name)}</li>" for name in away)
        missing = f"<h2>Missing nodes ({len(away)})</h2><ul>{names}</ul>" if away else ""
        about = html.escape(self.about)
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{about}</title>'
            f'<meta http-equiv="refresh" content="{REFRESH}"><style>{STYLE}</style></head><body>'
            f'<h1>{about}</h1><progress max="{max(1, planned)}" value="{done}"></progress>'
            f"<table>{table}</table>{missing}</body></html>"
        )

    def answer(self, path: str) -> tuple[int, str, str]:
        """Return status code, type and content for a path."""
        if path == "/healthz":
            return 200, TEXT, "ok\n"
        if path == "/readyz":
            return (200, TEXT, "ready\n") if self.ready else (503, TEXT, "too few users\n")
        if path == "/metrics":
            return 200, TEXT, self.metrics()
        return (200, PAGE, self.page()) if path == "/" else (404, TEXT, "no such page\n")


@contextmanager
def serving_status(status: ServerStatus, address: str) -> Iterator[int]:
    """Serve the status over HTTP.

    Args:
        status: what is shown.
        address: HOST:PORT; port 0 takes a free one.

    Yields:
        The port.

    Raises:
        ConfigError: if the server cannot listen there.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            code, kind, content = status.answer(self.path.partition("?")[0])
            body = content.encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: Any) -> None:
            log.debug(format, *arguments)

    try:
        server = ThreadingHTTPServer(split_address(address), Handler)
    except OSError as error:
        raise ConfigError(f"--status {address}: cannot listen there ({error.strerror})") from error
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
