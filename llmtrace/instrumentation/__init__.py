"""Instrument clients and protocols so that their streams are timed."""
