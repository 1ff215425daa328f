"""The `skylark` command, one file per noun: each reads options, calls the package that does the work, prints.

The table of commands is in `main.py`; a command's module is imported only when the command is run.
`options.py`, `output.py` and `errors.py` are shared by all. Start reading in `main.py`.
"""
