"""Work out what the KV cache of an engine holds: bytes a token, tokens and requests that fit."""
