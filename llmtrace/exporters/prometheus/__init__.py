"""Rows as Prometheus metrics."""
