"""Redis gone, frozen, full or slow costs phrases and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.e2e.client import Case
from tests.faults.fleet import Fleet
from tests.faults.load import Load
from tests.support.redis_server import RedisServer
from tests.support.tcp_proxy import TcpProxy
from tests.support.waiting import until

PATIENCE_S = 180.0
# Ten times the timeout of a call to Redis.
SLOW_S = 0.5
MOST_GROWTH_BYTES = 128 << 20


@dataclass(frozen=True)
class RedisFleet:
    """A fleet, its Redis and the proxy between them."""

    fleet: Fleet
    server: RedisServer
    wire: TcpProxy

    def limit(self, memory: str) -> None:
        """Limits Redis' memory, with `noeviction`: beyond the limit every write is an error."""
        with self.server.client() as client:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", memory)

    def delay(self, seconds: float) -> None:
        """Delays every piece of data in both directions."""
        self.wire.delay_s = seconds


@pytest.fixture(scope="module")
def phrases(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisFleet]:
    folder = tmp_path_factory.mktemp("phrases")
    with RedisServer(folder) as server, TcpProxy(f"127.0.0.1:{server.port}") as wire:
        url = ["--phrases-url", f"redis://{wire.address}"]
        flags = {"orchestrator": url, "drafter": url}
        with Fleet(folder, orchestrators=1, flags=flags) as fleet:
            yield RedisFleet(fleet, server, wire)


Act = Callable[[RedisFleet], None]
FAULTS: dict[str, tuple[Act, Act]] = {
    "killed": (lambda it: it.server.kill(), lambda it: it.server.start()),
    "frozen": (lambda it: it.server.freeze(), lambda it: it.server.thaw()),
    "full": (lambda it: it.limit("1"), lambda it: it.limit("0")),
    "slow": (lambda it: it.delay(SLOW_S), lambda it: it.delay(0)),
}


@pytest.mark.faults
@pytest.mark.parametrize("fault", FAULTS)
def test_redis_faults_change_no_token(
    phrases: RedisFleet, requests: list[Case], fault_free_outputs: list[list[int]], fault: str
) -> None:
    """The same tokens during and after the fault; memory does not grow with unsent phrases."""
    fleet, (start_fault, end_fault) = phrases.fleet, FAULTS[fault]
    with Load(fleet.orchestrators, requests, fault_free_outputs) as load:
        load.wait_until_under_way()
        before = fleet.memory()
        start_fault(phrases)
        try:
            wait_for_more_answers(load)
        finally:
            end_fault(phrases)
        wait_for_more_answers(load)
    load.tally.assert_none_lost()
    fleet.wait_until_free()
    growth = {name: size - before[name] for name, size in fleet.memory().items()}
    assert max(growth.values()) < MOST_GROWTH_BYTES, growth
    assert '"level": "error"' not in fleet.log("orchestrator")


def wait_for_more_answers(load: Load) -> None:
    """Returns after two answers per client; half of those requests began after this call."""
    target = load.tally.answered + 32
    until(lambda: load.tally.answered >= target, PATIENCE_S)
