"""`skylark lake`: keeps any number of topics archived in tables, with bounded delay.

`rules` says which topics go where. `table_archiver` moves messages to one table, batch by batch: a batch is
planned in the table's store (`batch_plan`), written by an engine (`engines`), and committed once. `service`
takes turns with all tables of a process, `supervisor` restarts those processes. Start with `table_archiver`.
"""
