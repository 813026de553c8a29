"""Rows in files: sinks that append them, and a reader that gives them back."""
