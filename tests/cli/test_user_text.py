"""Text of a user's file, on a terminal and in a spreadsheet."""

import pytest

from mercer.user_text import shorten, shown, spreadsheet_safe

HOSTILE = {
    "escape": ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
    "carriage return": ("good\rbad", "good\\rbad"),
    "line break": ("a\nb\tc", "a b c"),
    "right to left": ("abc\u202efdp.exe", "abc\\u202efdp.exe"),
    "surrogate": ("a\udcffb", "a\\udcffb"),
    "c1": ("a\x9b31mb", "a\\x9b31mb"),
    "plain": ("Größe, 価格 ≤ 5", "Größe, 価格 ≤ 5"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_58_nothing_steers_the_terminal(name):
    text, expected = HOSTILE[name]
    assert shown(text) == expected


def test_58_a_name_of_any_length_fits():
    assert len(shown("x" * 100_000, 30)) == 30
    assert len(shown("\x1b" * 100_000, 30)) == 30
    assert shown("total_amount_in_january_2024", 20).endswith("2024")
    assert shorten("short", 20) == "short" and len(shorten("y" * 50, 5)) == 5


def test_58_formulas_are_text_by_option():
    for text in ("=cmd()", "+1", "-1", "@x", "\t=1", "\r=1"):
        assert spreadsheet_safe(text) == f"'{text}"


def test_58_numbers_stay_numbers():
    assert spreadsheet_safe(-3.0) == -3.0 and spreadsheet_safe("a=b") == "a=b"
