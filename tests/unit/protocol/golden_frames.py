"""The frames captured from Apache RocketMQ 5.3.3, for tests and fuzzing."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

FRAMES = Path(__file__).parents[2] / "golden" / "frames"
NOT_FRAMES = ("illegal", "ha", "epoch-ha")


@dataclass(frozen=True)
class Captured:
    """One frame. `asked` is, for responses, the request that they answer, if it was kept."""

    scenario: str
    kind: str
    encoding: str
    header: dict[str, Any]
    body: bytes
    frame: bytes
    asked: "Captured | None" = None

    @property
    def code(self) -> int:
        return int(self.header["code"])


def lines(scenario: str) -> Iterator[dict[str, Any]]:
    """Yield what one file holds."""
    with gzip.open(FRAMES / f"{scenario}.jsonl.gz", "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


@cache
def captured(scenario: str = "") -> tuple[Captured, ...]:
    """Return the frames of a scenario, or of all."""
    if scenario:
        return tuple(_pair(scenario))
    names = sorted(path.name.removesuffix(".jsonl.gz") for path in FRAMES.glob("*.jsonl.gz"))
    return tuple(frame for name in names if name not in NOT_FRAMES for frame in captured(name))


def _pair(scenario: str) -> Iterator[Captured]:
    asked: dict[tuple[int, int, str], Captured] = {}
    for line in lines(scenario):
        text = line.get("body_utf8")
        header = line["header"]
        is_response = line["kind"] == "response"
        key = (line["conn"], header["opaque"], line["direction"])
        frame = Captured(
            scenario,
            line["kind"],
            line["serialize"],
            header,
            text.encode() if text is not None else bytes.fromhex(line.get("body_hex", "")),
            bytes.fromhex(line["frame_hex"]),
            asked.get(key) if is_response else None,
        )
        if not is_response:
            asked[key[0], key[1], "response" if line["direction"] == "request" else "request"] = frame
        yield frame
