"""Tests of what a KV cache holds."""
