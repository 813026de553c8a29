"""Rows as columns, in files and in cases."""
