"""A broker's tables and store without its servers, where nobody pulls and nobody asks for routes."""

from skylark.broker.long_polling import HeldPull
from skylark.broker.state import BrokerState
from skylark.protocol.bodies import TopicRouteData


class LoneBroker(BrokerState):
    def resume_pull(self, held: HeldPull) -> None:
        raise AssertionError("nobody pulls here")

    async def wait_registered(self) -> None:
        pass

    async def find_route(self, topic: str) -> TopicRouteData | None:
        raise AssertionError("nobody asks for routes here")

    async def keep_offsets(self) -> None:
        raise AssertionError("nobody follows a master here")

    def watermarks(self) -> dict[str, int]:
        return {}
