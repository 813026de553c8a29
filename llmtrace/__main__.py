"""Run the `llmtrace` command by `python -m llmtrace`."""

import sys

from llmtrace.cli import main

sys.exit(main())
