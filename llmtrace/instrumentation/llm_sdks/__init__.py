"""Record the OpenAI and Anthropic SDKs, and read their chunks and responses."""
