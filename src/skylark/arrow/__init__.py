"""Records to Arrow columns, whole buffers at a time.

Pure and without locks. Start with `decoder`; `record_layout` locates the fields of many records,
`json_bodies` decodes bodies to structs, `columns` names the columns. Used by Spark's source and by pull
consumers (`poll_arrow`); needs pyarrow and numpy.
"""
