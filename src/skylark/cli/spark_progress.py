"""What a Spark command is doing: lines in place on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.text import Text

from skylark.cli.output import Screen
from skylark.cli.table import cut

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.live import Live

    from skylark.pipelines.jobs.queries import QueryProgress

LINE_INTERVAL_S = 2.0
STAGES_INTERVAL_S = 0.5
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
SPIN_S = 0.1
BAR_MIN, BAR_MAX = 8, 40


class QueryState:
    """The batches of a query so far."""

    def __init__(self) -> None:
        self.messages = 0
        self.last: QueryProgress | None = None

    def take(self, progress: QueryProgress) -> None:
        self.messages += progress.messages
        self.last = progress

    @property
    def share(self) -> float | None:
        """Messages read of those that are known to be there."""
        behind = self.last.behind if self.last is not None else None
        return None if behind is None else self.messages / max(self.messages + behind, 1)

    def words(self) -> tuple[str, str]:
        """What comes before and after the bar."""
        assert self.last is not None
        behind = self.last.behind
        lag = "" if behind is None else ", up to date" if behind == 0 else f", {behind:,} behind"
        rate = f"{self.last.messages_per_second:,.0f}/s"
        return f"{self.last.query}: batch {self.last.batch}", f"{self.messages:,} messages, {rate}{lag}"


class SparkProgress:
    """Shows what a command waits for, from the start of Spark to the last batch, on standard error.

    Nothing of it stays on a terminal. `watch` and `tasks` may be called by any thread.
    """

    def __init__(self, screen: Screen, clock: Callable[[], float] = time.monotonic) -> None:
        self._screen = screen
        self._clock = clock
        self._activity = ""
        self._since, self._last_line_at = clock(), float("-inf")
        self._queries: dict[str, QueryState] = {}
        self._tasks: tuple[int, int] | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._screen.err.is_terminal:
            from rich.live import Live  # noqa: PLC0415

            self._live = Live(
                console=self._screen.err,
                get_renderable=self._renderable,
                transient=True,
                refresh_per_second=1 / SPIN_S,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Clear the lines. Results can be printed then."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, activity: str) -> None:
        """What is done now, and how long it usually takes."""
        self._activity, self._since = activity, self._clock()
        if not self._screen.err.is_terminal:
            self._screen.err.print(Text(activity))

    def watch(self, progress: QueryProgress) -> None:
        """A batch was finished."""
        state = self._queries.setdefault(progress.query, QueryState())
        state.take(progress)
        now = self._clock()
        if not self._screen.err.is_terminal and now - self._last_line_at >= LINE_INTERVAL_S:
            self._last_line_at = now
            self._screen.err.print(Text(", ".join(state.words())))

    def tasks(self, done: int, total: int) -> None:
        """Tasks of a job that is not a stream."""
        self._tasks = (done, total) if total else None

    def lines(self, width: int) -> list[Text]:
        """One line per query, or one that says what is done; at most `width` cells each."""
        seconds = self._clock() - self._since
        spinner = SPINNER[int(seconds / SPIN_S) % len(SPINNER)]
        queries = [state for state in self._queries.values() if state.last is not None]
        if queries:
            return [_line(spinner, *state.words(), state.share, width) for state in queries]
        after = f"{seconds:.0f} s"
        if self._tasks is None:
            return [_line(spinner, f"{self._activity} ({after})", "", None, width)]
        done, total = self._tasks
        return [
            _line(spinner, f"{self._activity}:", f"{done} of {total} tasks, {after}", done / total, width)
        ]

    def _renderable(self) -> Text:
        return Text("\n").join(self.lines(self._screen.err.width))


def _line(spinner: str, before: str, after: str, share: float | None, width: int) -> Text:
    """The bar takes what the words leave."""
    room = min(width - len(f"{spinner} {before}  {after}") - 1, BAR_MAX)
    line = Text(f"{spinner} ", style="cyan")
    if share is None or room < BAR_MIN:
        line.append(cut(f"{before} {after}".rstrip(), width - 3), style="default")
        return line
    filled = round(room * min(max(share, 0.0), 1.0))
    line.append(f"{before} ", style="default")
    line.append("━" * filled, style="green").append("─" * (room - filled), style="dim")
    return line.append(f" {after}", style="default")


class StageWatch:
    """Asks Spark for the tasks of running stages, in a thread, while it is open. Not for a Connect server."""

    def __init__(self, spark: SparkSession, progress: SparkProgress) -> None:
        self._spark = spark
        self._progress = progress
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="skylark-stages", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with suppress(Exception):  # the session may end; nothing depends on these numbers
            tracker: Any = self._spark.sparkContext.statusTracker()
            while not self._stopped.wait(STAGES_INTERVAL_S):
                stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
                known = [stage for stage in stages if stage is not None]
                done = sum(stage.numCompletedTasks for stage in known)
                self._progress.tasks(done, sum(stage.numTasks for stage in known))
