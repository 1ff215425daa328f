"""What the person at the keyboard asked for and cannot have."""


class Mistake(Exception):
    """One clear sentence; the command ends with exit code 2."""
