"""How does llmtrace get to see a stream? One file a client or protocol."""
