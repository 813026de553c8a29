"""Triage without rows: by what engines count of their own requests."""
