"""Engines, gateways, GPUs and Prometheus, scraped."""
