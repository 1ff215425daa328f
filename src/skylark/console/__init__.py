"""The web console: pages and an HTTP API over `AsyncAdmin`, for Skylark's clusters and Apache's.

One process, one event loop. `server.py` has the routes, `guard.py` decides who may ask, `connections.py`
holds what talks to the clusters. A page is a function in `pages/` that returns a `PageView`, which becomes
HTML, JSON or CSV. Start reading in `server.py`.
"""
