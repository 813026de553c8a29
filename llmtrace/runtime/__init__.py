"""The current recording, its trace context, and where finished rows go."""
