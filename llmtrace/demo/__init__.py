"""The demo: llmtrace at work with nothing set up. `llmtrace demo` runs `demo.run`."""
