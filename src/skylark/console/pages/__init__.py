"""One module per noun: each page asks the servers and returns a `PageView`."""
