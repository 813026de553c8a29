"""Requests as columns, in files and in cases: reading, writing and summing up."""
