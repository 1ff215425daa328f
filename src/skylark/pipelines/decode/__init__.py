"""Records to Arrow columns, whole buffers at a time.

Pure and without locks: the task that reads a range calls it in its own process. Start with `decoder`;
`record_layout` locates the fields of many records, `json_bodies` decodes bodies to structs.
"""
