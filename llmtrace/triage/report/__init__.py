"""A result as a terminal screen, a page and a timeline."""
