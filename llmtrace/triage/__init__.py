"""Why did a p95 move? Pure functions over rows and signals; docs/triage.md has the method."""
