"""Files that bite who unpickles them."""


class Trap:
    """What a pickle in a data file would run."""

    sprung = False

    def __reduce__(self):
        return (_spring, ())


def _spring():
    Trap.sprung = True
