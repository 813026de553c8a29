"""Rows to Langfuse, also beside Langfuse's own SDK."""
