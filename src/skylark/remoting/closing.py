"""The end of a server on an event loop."""

import asyncio


def stop_listening(server: asyncio.Server) -> None:
    """Take no more connections, and free the port in the loop's next turn. May be repeated.

    A server that is closed at once leaves those open that it has accepted in this turn: asyncio cannot give
    them to it any more, says nothing, and closes them whenever the garbage collector comes by.
    """
    loop = server.get_loop()
    for listening in server.sockets:
        loop.remove_reader(listening)
    loop.call_soon(server.close)
