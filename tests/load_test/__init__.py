"""Tests of load tests."""
