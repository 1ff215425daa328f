"""The releases of Apache RocketMQ that the interop tests run, and the poms with their jars."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import apache

JAVA = Path(__file__).parent / "java"
OLDEST = "4.9.7"
MAIN = "5.3.3"
POMS = {
    OLDEST: JAVA / "pom-servers-4.9.7.xml",
    "4.9.8": JAVA / "pom-4.9.8.xml",
    MAIN: apache.POM,
    "5.5.0": JAVA / "pom-5.5.0.xml",
}
"""4.9.7 has the last servers of 4.9 on Maven Central, 4.9.8 the last client."""
NEWEST = pytest.param("5.5.0", marks=pytest.mark.nightly)
SERVERS = (MAIN, NEWEST)
"""Parameters of fixtures with Apache's servers."""
CLIENTS = (MAIN, pytest.param("4.9.8", marks=pytest.mark.nightly), NEWEST)
"""Parameters of fixtures with Apache's clients."""
