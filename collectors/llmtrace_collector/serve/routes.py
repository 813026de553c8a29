"""The addresses of the read API, for its own index and for the documentation."""

from __future__ import annotations

from typing import Final

# Address, methods, words.
ADDRESSES: Final = (
    ("/api/v1/rows", "GET", "requests' rows, as JSON lines or Arrow"),
    ("/api/v1/signals", "GET", "samples of engines, gateways and GPUs, in the same formats"),
    ("/api/v1/facts", "GET", "what is known about each engine"),
    ("/api/v1/events", "GET, POST", "deploys, scalings, changes of settings"),
    ("/api/v1/stages", "GET", "percentiles of stages and metrics per time step"),
    ("/api/v1/traces/{trace_id}", "GET", "one trace: its rows and its spans"),
    ("/api/v1/requests/{id}", "GET", "the rows with this request, response or trace id"),
    ("/api/v1/slowest", "GET", "the slowest requests"),
    ("/api/v1/coverage", "GET", "how much of each stage is known, by source"),
    ("/api/v1/quarantine", "GET, POST", "requests that the store rejected; POST retries them"),
    ("/api/v1/live", "GET", "what the live page shows"),
)
