"""Percentiles, their confidence intervals and tests of significance."""
