"""How does llmtrace look at work, with nothing set up? `llmtrace demo` runs `demo.run`."""
