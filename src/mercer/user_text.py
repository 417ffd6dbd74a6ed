"""Names and values that come from a user's file, made safe to show: on a terminal, in a figure, in a spreadsheet."""

from __future__ import annotations

import unicodedata

__all__ = ["shortened", "shown", "spreadsheet_safe"]

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
    return shortened("".join(letter if _is_visible(letter) else _write_out(letter) for letter in raw), limit)


def shortened(text: str, limit: int) -> str:
    """At most ``limit`` letters: the beginning and the end, for names of columns often differ in their last letters."""
    if len(text) <= limit:
        return text
    end = max(0, limit // 3 - 2)
    return f"{text[: limit - 3 - end]}...{text[len(text) - end :] if end else ''}"


def spreadsheet_safe(value: object) -> object:
    """A text that a spreadsheet would run as a formula, with a quote mark before it; anything else as it is.

    >>> spreadsheet_safe("=1+1"), spreadsheet_safe("a-b"), spreadsheet_safe(-1.5)
    ("'=1+1", 'a-b', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


def _is_visible(letter: str) -> bool:
    return letter.isprintable() or (letter != "\n" and unicodedata.category(letter) not in _HIDDEN)


def _write_out(letter: str) -> str:
    return " " if letter in "\n\t" else letter.encode("unicode_escape").decode()
