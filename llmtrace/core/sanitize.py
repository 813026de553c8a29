"""Make foreign text safe to print on a terminal."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text as one line may show it: a server's words could steer the terminal.

    Example:
        >>> printable("rate\x1b[2Jlimit")
        'rate?[2Jlimit'
    """
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text)
