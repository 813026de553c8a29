"""What the collector exposes to Prometheus."""
