"""Measure a streamed response in the user's page, and join its beacon to the server's row.

Wrapping an ASGI application in `Middleware` is all a server needs; see docs/instrument/browser.md.
"""

from llmtrace.browser.asgi import Middleware, page_span, script
from llmtrace.browser.beacon import Beacon, read_beacon
from llmtrace.browser.join_beacon import joined_row, with_beacon

__all__ = [
    "Beacon",
    "Middleware",
    "joined_row",
    "page_span",
    "read_beacon",
    "script",
    "with_beacon",
]
