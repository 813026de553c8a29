"""Responses of caches are recognised by documented headers and nothing else."""

from __future__ import annotations

import pytest

from llmtrace.instrumentation.headers.cache_hits import hit
from llmtrace.instrumentation.headers.server_timing import entries


@pytest.mark.parametrize(
    ("timing", "expected"),
    [
        ("cache;desc=hit", True),
        ('cache;desc="HIT"', True),
        ('cache;desc="hit, stale"', True),
        ("cache;desc=miss", False),
        ("cache;desc=white", None),
        ("cache;dur=5", None),
        ("cache;desc=miss, cache;desc=hit", True),
        ("gateway;desc=hit", None),
        ("", None),
    ],
)
def test_server_timing(timing, expected):
    """The entry named cache says hit or miss."""
    assert hit({}, entries(timing)) is expected


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-portkey-cache-status", "HIT", True),
        ("x-portkey-cache-status", "SEMANTIC HIT", True),
        ("x-portkey-cache-status", "SEMANTIC MISS", False),
        ("x-portkey-cache-status", "DISABLED", None),
        ("cf-aig-cache-status", "HIT", True),
        ("cf-aig-cache-status", "MISS", False),
        ("helicone-cache", "HIT", True),
        ("x-litellm-cache-key", "5f2a", True),
        ("x-litellm-cache-key", "", None),
        ("x-cache", "HIT", True),
        ("x-cache", "Hit from cloudfront", True),
        ("x-cache", "TCP_HIT", True),
        ("x-cache", "HIT, MISS", None),
        ("x-cache", "MISS, HIT", True),
        ("x-cache", "MISS", None),
        ("x-cache", "BYPASS", None),
        ("x-cache-hits", "1", None),
        ("cf-cache-status", "DYNAMIC", None),
    ],
)
def test_headers(name, value, expected):
    """Gateways report both; a proxy's miss means only that it never caches such answers."""
    assert hit({name: value}) is expected
