"""The HTTP APIs that the simulated engine serves."""
