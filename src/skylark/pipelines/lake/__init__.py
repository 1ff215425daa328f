"""Delta tables and Parquet directories that jobs write, each batch committed once.

Tasks write Parquet files (`parquet_files`), the driver commits them (`table_log`). One writer per table at
a time. Start with `table_sink`, the Spark sink `skylark-table`.
"""
