"""Administration: `Admin` and what it answers. Imports client, protocol and below; one event loop owns it."""
