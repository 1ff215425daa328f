"""The clients: decisions are pure modules, sessions and faces are asyncio, `sync` makes them blocking."""
