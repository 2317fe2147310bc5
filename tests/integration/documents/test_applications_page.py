"""The examples of docs/applications.md, word for word: an application, and a FastAPI program around it."""

import asyncio
import importlib
import re
import sys
from pathlib import Path

import pytest
from httpx import ASGITransport, AsyncClient
from sqlalchemy import Connection

from tests.fixtures.broker import topic
from tests.fixtures.postgres import Database
from tests.fixtures.processes import wait_until

PAGE = Path(__file__).parents[3] / "docs" / "applications.md"


def test_a_route_sends_and_the_same_process_consumes(
    broker: Connection,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocks = re.findall(r"```python\n# (shop/\w+\.py)[^\n]*\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == ["shop/tasks.py", "shop/web.py"]
    (tmp_path / "shop").mkdir()
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("MQDB_DSN", database.dsn)
    topic(broker, "orders")
    web = importlib.import_module("shop.web")

    async def work() -> None:
        client = AsyncClient(transport=ASGITransport(web.api), base_url="http://shop")
        async with web.api.router.lifespan_context(web.api), client:
            answer = await client.post("/orders", json={"number": 17, "total": 42.0})
            assert len(answer.json()) == 32
            await asyncio.to_thread(wait_until, lambda: "billed 17" in capsys.readouterr().out)

    try:
        asyncio.run(work())
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
            del sys.modules[name]
