"""One process beside the engines: spans and metrics in, joined rows and signals out."""
