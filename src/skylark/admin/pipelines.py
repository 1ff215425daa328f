"""Jobs of pipelines, as they reported themselves to the cluster."""

from __future__ import annotations

import time
from collections.abc import Iterable

from skylark.admin.messages import AsyncMessages
from skylark.admin.server_calls import at_once
from skylark.client.received_message import ReceivedMessage
from skylark.errors import NoRoute, RocketMQError
from skylark.model.job_report import (
    REPORT_TOPIC,
    SILENT,
    SILENT_AFTER_MS,
    TAG_STATE,
    JobReport,
    decode_reports,
    newest_of_jobs,
    newest_runs,
)

HISTORY_MS = 7 * 86_400_000
REPORTS_MAX = 2000
"""First and last reports that one call reads from each queue."""
RECENT_MAX = 500
SILENT_MAX = 20
"""Silent runs whose last progress is looked up."""


class AsyncPipelines:
    """Part of `AsyncAdmin`."""

    def __init__(self, messages: AsyncMessages) -> None:
        self._messages = messages

    async def jobs(self, *, history_ms: int = HISTORY_MS) -> list[JobReport]:
        """The last run of every job, running ones first. Raises RemotingError."""
        return newest_of_jobs(await self.runs(history_ms=history_ms))

    async def runs(self, job: str | None = None, *, history_ms: int = HISTORY_MS) -> list[JobReport]:
        """The last report of every run, of one job or all, newest run first; empty if none ever reported.

        Reads the first and last reports of the time, and all of the last minutes: what running jobs sent
        before is not needed. Raises RemotingError.
        """
        now_ms = round(time.time() * 1000)
        try:
            ends = await self._messages.between(
                REPORT_TOPIC, now_ms - history_ms, expression=TAG_STATE, messages_max=REPORTS_MAX
            )
            recent = await self._messages.newest(
                REPORT_TOPIC, since_ms=now_ms - SILENT_AFTER_MS, messages_max=RECENT_MAX
            )
        except NoRoute:
            return []
        reports = _reports([*ends.messages, *recent.messages])
        runs = newest_runs(report for report in reports if job in (None, report.name))
        silent = [run.run for run in runs if run.state_at(now_ms) == SILENT][:SILENT_MAX]

        async def last(run: str) -> list[JobReport]:
            return _reports((await self._messages.by_key(REPORT_TOPIC, run)).messages)

        found = [part for part in await at_once(last, silent) if not isinstance(part, RocketMQError)]
        return newest_runs([*runs, *(report for part in found for report in part)])


def _reports(messages: Iterable[ReceivedMessage]) -> list[JobReport]:
    return decode_reports(message.body for message in messages)
