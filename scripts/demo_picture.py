"""Draw docs/images/demo.svg: the terminal of a run of `skylark demo`.

python -m scripts.demo_picture [OPTION...]

Options are passed on to the demo. The run happens on a terminal of 116 columns, as a reader has one.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo.svg"
COLUMNS = 116
FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
"""Rich asks other sites for its fonts; a fixed-width font of the reader's machine does as well."""
PROMPT = "$ skylark demo\n"
NEXT_STEPS = "\nNext:"
"""From here on the demo names directories of the machine that it ran on."""


def recorded(words: list[str]) -> str:
    """Run a command on a terminal and return what it printed. Raises OSError if it fails."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(  # noqa: S603 - our own command
        words, stdin=slave, stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        parts = []
        try:
            while part := os.read(master, 1 << 16):
                parts.append(part)
        except OSError:
            pass  # Linux reports the end of a terminal as an error
        finally:
            os.close(master)
    if process.returncode:
        raise OSError(f"{' '.join(words)} ended with exit code {process.returncode}")
    return b"".join(parts).decode().replace("\r\n", "\n")


def last_state(line: str) -> str:
    """Return what is left of a line that was drawn over, such as one of progress."""
    return re.split(r"\r|\x1b\[2K|\x1b\[1A", line)[-1]


def picture(text: str) -> str:
    """Return a terminal's text as SVG."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    shown = "\n".join(last_state(line) for line in text.partition(NEXT_STEPS)[0].splitlines())
    console.print(Text.from_ansi(PROMPT + shown.rstrip()))
    return FONT.sub("", console.export_svg(title="skylark demo"))


if __name__ == "__main__":
    output = recorded([sys.executable, "-m", "skylark", "demo", *sys.argv[1:]])
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(picture(output))
