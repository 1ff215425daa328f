"""Records to Arrow columns and Arrow columns to batches of messages, whole buffers at a time.

Pure and without locks. Start with `decoder`; `record_layout` locates the fields of many records,
`json_bodies` decodes bodies to structs, `columns` names the columns; `batch_elements` encodes. Used by
Spark's source and sink, by pull consumers (`poll_arrow`) and producers (`send_arrow`); needs pyarrow, numpy.
"""
