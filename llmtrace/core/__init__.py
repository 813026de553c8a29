"""Stages, rows and recordings: the model, on the standard library alone."""
