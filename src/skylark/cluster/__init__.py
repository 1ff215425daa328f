"""A whole cluster: laid out, run on one machine, or written down for several.

`layout.py` decides which processes there are and their settings; `supervisor.py` runs them on this machine;
`deployment.py` writes units and files for others. Start with `layout.py`.
"""
