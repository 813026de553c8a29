"""Stores for tests. A process has one embedded store at a time, so each module closes its own."""

from __future__ import annotations

import pytest

from llmtrace_collector.store import open_store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """An embedded store, empty at first and shared by a module's tests."""
    opened = open_store(tmp_path_factory.mktemp("store"))
    yield opened
    opened.close()
