"""Explain why a p95 moved: pure functions over rows and signals; docs/triage.md has the method."""
