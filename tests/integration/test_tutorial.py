"""The tutorial, as a new user follows it: its commands and programs work, one after the other."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from skylark.testing import EmbeddedServers

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 120
SAID = {
    "skylark send orders": "SEND_OK",
    "skylark group status billing": "orders",
    "skylark message key orders order-7": "order-7",
    "from skylark import Message": "SendStatus.OK",
    "import threading": "11 orders billed",
}
"""What is to be seen, by how a command or program begins."""


def run(words: list[str], namesrv: str, directory: Path) -> str:
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "NAMESRV_ADDR": namesrv},
        cwd=directory,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(600)
def test_the_tutorial_from_top_to_bottom(tmp_path: Path) -> None:
    seen = set()
    # The one message that fails comes again after a second instead of ten.
    with EmbeddedServers(store={"delay_levels": " ".join(["1s"] * 18)}) as servers:
        for language, text in FENCE.findall(PAGE.read_text()):
            code = text.replace("127.0.0.1:9876", servers.namesrv)
            steps = [code] if language == "python" else code.splitlines()
            for step in steps:
                words = shlex.split(step) if language == "sh" else []
                program = ["-c", step] if language == "python" else ["-m", "skylark", *words[1:]]
                said = run([sys.executable, *program], servers.namesrv, tmp_path)
                for beginning, expected in SAID.items():
                    if step.startswith(beginning):
                        assert expected in said
                        seen.add(beginning)
    assert seen == set(SAID)
