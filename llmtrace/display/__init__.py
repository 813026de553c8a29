"""Colours, page frame and tables that several programs share."""
