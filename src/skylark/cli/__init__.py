"""The command line: reads options, calls the parts that do the work (imported when needed), prints."""
