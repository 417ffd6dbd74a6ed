"""Names and values that come from a user's file, made safe to show: on a terminal, in a figure, in a spreadsheet."""

from __future__ import annotations

import unicodedata

__all__ = ["shorten", "shown", "spreadsheet_safe"]

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}  # control, format (also right-to-left overrides), surrogates, separators
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def shown(text: object, limit: int = 60) -> str:
    r"""Text on one line of at most ``limit`` letters; what would steer a terminal is written out.

    >>> shown("a\x1b[31mb")
    'a\\x1b[31mb'
    >>> shown("x" * 100, 10)
    'xxxxxx...x'
    """
    raw = str(text)
    if len(raw) > 4 * limit:
        raw = raw[: 2 * limit] + raw[-2 * limit :]
    letters = []
    for letter in raw:
        if letter.isprintable() or (letter != "\n" and unicodedata.category(letter) not in _HIDDEN):
            letters.append(letter)
        elif letter in "\n\t":
            letters.append(" ")
        else:
            letters.append(letter.encode("unicode_escape").decode())
    return shorten("".join(letters), limit)


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` letters: the beginning and the end, because long names often differ in their last letters."""
    if len(text) <= limit:
        return text
    end = max(0, limit // 3 - 2)
    return f"{text[: limit - 3 - end]}...{text[len(text) - end :]}"


def spreadsheet_safe(value: object) -> object:
    """A text that a spreadsheet would run as a formula, with a quote mark before it; anything else as it is.

    >>> spreadsheet_safe("=1+1"), spreadsheet_safe("a-b"), spreadsheet_safe(-1.5)
    ("'=1+1", 'a-b', -1.5)
    """
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return value
