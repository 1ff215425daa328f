"""Which cells are chosen, for whom they are, and what is said about names that nobody knows."""

import pytest

from benchmarks.compare.cells import (
    APACHE,
    CELLS,
    FRESH_METRICS,
    IDLE,
    KAFKA,
    METRICS,
    NATS,
    OURS,
    STOP,
    Kind,
    UnknownCell,
    choose,
    parse_peers,
)


def test_every_shape_of_the_matrix_is_there_once() -> None:
    names = [cell.name for cell in CELLS]
    assert len(set(names)) == len(names)
    wanted = [
        f"send-{flush}-{in_flight}-{body}"
        for flush in ("async", "sync")
        for in_flight in (1, 64, 1024)
        for body in ("128B", "1KiB")
    ]
    wanted += ["batch-128B", "batch-1KiB", "consume-1KiB", "latency-5000", "topics-1000", "topics-10000"]
    assert set(wanted) | {"start", "memory", "recover", "spark"} <= set(names)


def test_who_is_left_out_of_a_cell_is_told_why() -> None:
    everyone = {OURS, APACHE, KAFKA, NATS}
    assert [cell.name for cell in CELLS if OURS not in cell.systems] == []
    assert [cell.name for cell in CELLS if cell.systems != everyone and not cell.not_for] == []


def test_a_bar_is_set_on_a_figure_that_the_cell_has() -> None:
    assert all(metric.name in METRICS for cell in CELLS for metric, _ in cell.bars)
    fresh = [cell for cell in CELLS if cell.kind is Kind.FRESH]
    assert {cell.name for cell in fresh} == set(FRESH_METRICS)
    assert {
        metric for cell in fresh for metric in FRESH_METRICS[cell.name] if not cell.bar(metric)
    } == {IDLE, STOP}  # fmt: skip


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["start"], ["start"]),
        (["send-async-64-*"], ["send-async-64-128B", "send-async-64-1KiB"]),
        (["topics-*", "start", "st*"], ["topics-1000", "topics-10000", "start", "stop"]),
    ],
)
def test_patterns_choose_in_the_order_of_the_cells(patterns: list[str], names: list[str]) -> None:
    assert [cell.name for cell in choose(patterns, [APACHE])] == names


def test_without_patterns_the_peers_decide() -> None:
    beside_apache = {cell.name for cell in choose([], [APACHE])}
    beside_nats = {cell.name for cell in choose([], [NATS])}
    assert {"send-sync-1-128B", "recover", "spark", "latency-5000"} <= beside_apache
    assert not any(name.startswith("java-") for name in beside_apache)
    assert {"java-sync-1-128B", "start", "memory"} <= beside_nats
    assert not beside_nats & {"send-sync-1-128B", "recover", "topics-1000"}
    assert {cell.name for cell in choose([], [APACHE, KAFKA])} == {cell.name for cell in CELLS}


def test_quick_leaves_out_what_takes_minutes_unless_it_is_named() -> None:
    quick = {cell.name for cell in choose([], [APACHE], quick=True)}
    assert {cell.name for cell in choose([], [APACHE])} - quick == {"topics-10000", "spark"}
    assert [cell.name for cell in choose(["spark"], [APACHE], quick=True)] == ["spark"]


def test_unknown_names_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(UnknownCell, match=r"unknown cell 'sned-\*'; choose send-async-1-128B"):
        choose(["start", "sned-*"], [APACHE])
    with pytest.raises(UnknownCell, match="unknown peer 'rabbit'; choose apache, kafka, nats"):
        parse_peers("apache,rabbit")
    with pytest.raises(UnknownCell, match="unknown peer"):
        parse_peers(" , ")


def test_peers_are_taken_once_in_their_order() -> None:
    assert parse_peers("nats, apache,nats") == [NATS, APACHE]
