"""Two windows compared: p95 and outcomes."""
