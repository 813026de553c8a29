"""Rows to Langfuse, also coexisting with Langfuse's own SDK."""
