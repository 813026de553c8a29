"""The collector's settings."""
