"""Tests of the triage."""
