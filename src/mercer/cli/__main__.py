"""``python -m mercer.cli``: the same as ``mercer``."""

from mercer.cli import main

if __name__ == "__main__":
    main()
