"""Explain why a p95 moved: pure functions over rows and signals (docs/on-call/triage.md)."""
