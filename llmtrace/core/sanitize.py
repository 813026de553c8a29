"""Make foreign text safe to print on a terminal, and to write as UTF-8."""

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


def encodable(text: str) -> str:
    r"""Return a text that UTF-8 can hold: JSON may spell half a character, which `str` keeps.

    Example:
        >>> encodable("half \ud83d of a smile")
        'half ? of a smile'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
