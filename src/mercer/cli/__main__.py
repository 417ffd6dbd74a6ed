"""``python -m mercer.cli``: the same as ``mercer``."""

from mercer.cli import main

main()
