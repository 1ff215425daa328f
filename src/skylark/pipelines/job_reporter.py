"""JobReporter: tells a cluster how a job is doing, so that consoles and `skylark spark list` can show it.

    with JobReporter("127.0.0.1:9876", kind="archive", name="archive-orders", topics=["orders"]) as reporter:
        archive(spark, source, output, state=state, once=True, watch=reporter.watch)

It sends from its own thread: the first and the last state, and between them one report in REPORT_EVERY_S.
A cluster that does not answer costs a line in the log; the job goes on.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from skylark.clock import now_ms
from skylark.errors import NoRoute, RocketMQError
from skylark.model.job_report import (
    BATCHES_MAX,
    FAILED,
    FINISHED,
    HEARTBEAT_S,
    REPORT_TOPIC,
    RUNNING,
    STOPPED,
    TAG_PROGRESS,
    TAG_STATE,
    TEXT_CHARS_MAX,
    JobBatch,
    JobReport,
    command_text,
    encode_report,
)
from skylark.model.message import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQUE_KEY, encode_properties
from skylark.model.names import AUTO_CREATE_TOPIC
from skylark.pipelines.cluster_client import ClusterClient
from skylark.pipelines.row_sender import OutMessage, RowSender
from skylark.protocol.bodies import MASTER_ID
from skylark.protocol.requests.topic import UpdateAndCreateTopic
from skylark.settings.client import ClientSettings
from skylark.settings.credentials import client_credentials
from skylark.settings.tls import client_tls_settings

if TYPE_CHECKING:
    from skylark.pipelines.jobs.queries import JobSummary, QueryProgress

log = logging.getLogger(__name__)

REPORT_EVERY_S = 10.0
REQUEST_TIMEOUT_S = 3.0
CLOSE_TIMEOUT_S = 5.0
"""How long the end of a job waits for its last report."""
PRODUCER_GROUP = "skylark_pipelines"
READ_WRITE = 6
INTERRUPTED = "interrupted"
"""The status of a summary."""


class JobReporter:
    """Reports one run of a job. `watch` and `batch` may be called by any thread and do not wait."""

    def __init__(
        self,
        namesrv: str,
        *,
        kind: str,
        name: str,
        source: str = "",
        topics: Sequence[str] = (),
        outputs: Sequence[str] = (),
        group: str = "",
        directory: str = "",
        client: ClientSettings | None = None,
        every_s: float = REPORT_EVERY_S,
    ) -> None:
        """`name` identifies the job over its runs. `client` holds credentials and TLS."""
        client = client or ClientSettings()
        started_ms = now_ms()
        self._report = JobReport(
            name=name,
            kind=kind,
            run=uuid.uuid4().hex[:12],
            time_ms=started_ms,
            started_ms=started_ms,
            source=source,
            topics=tuple(topics),
            outputs=tuple(outputs),
            group=group,
            directory=directory,
            command=command_text([Path(sys.argv[0]).name, *sys.argv[1:]]),
            host=platform.node(),
            pid=os.getpid(),
        )
        self._brokers = ClusterClient(
            namesrv,
            request_timeout_s=REQUEST_TIMEOUT_S,
            retry_timeout_s=0,
            credentials=client_credentials(client),
            tls=client_tls_settings(client),
        )
        self._every_s = every_s
        self._rows: dict[str, int] = {}
        self._rejected: dict[str, int] = {}
        self._last: deque[JobBatch] = deque(maxlen=BATCHES_MAX)
        self._condition = threading.Condition()
        self._is_new = True
        self._has_failed = False
        self._sender: RowSender | None = None
        self._thread = threading.Thread(target=self._work, name="skylark-report", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self.end(STOPPED)
        elif error is not None:
            self.end(FAILED, error=str(error) or type(error).__name__)
        else:
            self.end(FINISHED)
        self._thread.join(CLOSE_TIMEOUT_S)

    # --- Called by the job ---

    def watch(self, progress: QueryProgress) -> None:
        """A batch of a streaming query has ended."""
        self.batch(
            query=progress.query,
            number=progress.batch,
            rows=progress.messages,
            rows_per_s=progress.messages_per_second,
            lag=progress.behind,
            rejected=progress.rejected,
        )

    def batch(
        self,
        *,
        number: int,
        rows: int,
        rows_per_s: float,
        query: str = "",
        lag: int | None = None,
        rejected: int = 0,
    ) -> None:
        """A batch has ended. Every query of a job reads all its messages: the largest sums are shown."""
        with self._condition:
            self._rows[query] = self._rows.get(query, 0) + rows
            self._rejected[query] = self._rejected.get(query, 0) + rejected
            self._last.append(
                JobBatch(
                    query=query, number=number, time_ms=now_ms(), rows=rows, rows_per_s=rows_per_s, lag=lag,
                    rejected=rejected,
                )
            )  # fmt: skip
            self._report = replace(
                self._report,
                batches=self._report.batches + 1,
                rows=max(self._rows.values()),
                rejected=max(self._rejected.values()),
                last=tuple(self._last),
            )
            self._is_new = True
            self._condition.notify_all()

    def summed(self, summary: JobSummary) -> None:
        """The job has ended and counted its rows."""
        counts = {name: getattr(summary.counts, name) for name in type(summary.counts).__struct_fields__}
        with self._condition:
            read, rejected = counts["read"], counts["rejected"]
            self._report = replace(
                self._report, counts=counts, rows=max(self._report.rows, read), rejected=rejected
            )
        self.end(STOPPED if summary.status == INTERRUPTED else FINISHED)

    def end(self, state: str, *, error: str = "") -> None:
        """The run has ended; the first call counts."""
        with self._condition:
            if self._report.state == RUNNING:
                self._report = replace(self._report, state=state, error=error[:TEXT_CHARS_MAX])
                self._is_new = True
                self._condition.notify_all()

    # --- The thread ---

    def _work(self) -> None:
        tag, is_ended = TAG_STATE, False
        while not is_ended:
            with self._condition:
                self._is_new = False
                report = replace(self._report, time_ms=now_ms())
            is_ended = report.state != RUNNING
            if self._send(report, TAG_STATE if is_ended else tag):
                tag = TAG_PROGRESS
            if not is_ended:
                self._pause()
        self._brokers.close()

    def _pause(self) -> None:
        """Until there is something to report: the end at once, batches after the interval."""
        started_s = time.monotonic()
        with self._condition:
            self._condition.wait_for(lambda: self._report.state != RUNNING, self._every_s)
            left_s = max(started_s + HEARTBEAT_S - time.monotonic(), 0.0)
            self._condition.wait_for(lambda: self._is_new, left_s)

    def _send(self, report: JobReport, tag: str) -> bool:
        """Return whether the broker has it."""
        try:
            if self._sender is None:
                self._ensure_topic()
                self._sender = RowSender(
                    self._brokers, group=PRODUCER_GROUP, attempts_max=1, timeout_s=REQUEST_TIMEOUT_S
                )
            properties = {
                PROPERTY_TAGS: tag,
                PROPERTY_KEYS: f"{report.name} {report.run}",
                PROPERTY_UNIQUE_KEY: self._sender.next_unique_key(),
            }
            self._sender.send(
                OutMessage(REPORT_TOPIC, encode_report(report), encode_properties(properties), is_single=True)
            )
            self._sender.finish()
        except (RocketMQError, OSError) as error:
            level = logging.DEBUG if self._has_failed else logging.WARNING
            log.log(level, "cannot report job=%s topic=%s error=%s", report.name, REPORT_TOPIC, error)
            self._has_failed, self._sender = True, None
        return self._sender is not None

    def _ensure_topic(self) -> None:
        """Create the topic, with one queue on every master, unless it exists. Raises RocketMQError."""
        if self._has_topic():
            return
        request = UpdateAndCreateTopic(
            REPORT_TOPIC, AUTO_CREATE_TOPIC, 1, 1, READ_WRITE, "SINGLE_TAG", order=False
        )
        for data in self._brokers.cluster_info().broker_addr_table.values():
            if MASTER_ID in data.broker_addrs:
                connection = self._brokers.connection(data.broker_addrs[MASTER_ID])
                connection.call(request, timeout_s=REQUEST_TIMEOUT_S)
        until_s = time.monotonic() + REQUEST_TIMEOUT_S
        while not self._has_topic() and time.monotonic() < until_s:  # until the name servers know it
            time.sleep(0.05)

    def _has_topic(self) -> bool:
        try:
            self._brokers.route(REPORT_TOPIC, refresh=True)
        except NoRoute:
            return False
        return True
