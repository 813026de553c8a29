"""Run the `llmtrace` command by `python -m llmtrace`, or as the program `llmtrace`."""

import sys


def main() -> int:
    """Run the command of the process's arguments; Ctrl-C while it is imported is quiet too."""
    try:
        from llmtrace import cli
    except KeyboardInterrupt:
        sys.stderr.write("llmtrace: interrupted\n")
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
