"""Rows as OTLP spans, by HTTP or gRPC."""
