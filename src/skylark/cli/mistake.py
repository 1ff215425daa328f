"""What the person at the keyboard asked for and cannot have, and how commands end that do not end well."""

EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class Mistake(Exception):
    """One clear sentence; the command ends with exit code 2."""
