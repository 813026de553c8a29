"""One simulated engine: its scheduler, its state and its metrics."""
