from __future__ import annotations

import os

import pytest

from tests.support.internal_errors import reset_internal_errors


@pytest.fixture(autouse=True)
def _fresh_counts():
    """Each test counts internal errors from nothing."""
    reset_internal_errors()
    yield
    reset_internal_errors()


@pytest.fixture(autouse=True)
def _no_otel_environment(monkeypatch):
    """What happens to be set where the tests run must not steer them."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
