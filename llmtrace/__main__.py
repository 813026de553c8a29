"""How does `python -m llmtrace` run? As the `llmtrace` command does."""

import sys

from llmtrace.cli import main

sys.exit(main())
