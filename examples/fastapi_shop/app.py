"""A shop with FastAPI and SQLAlchemy. One transaction stores an order and its message; the same process bills orders.

export MQDB_DSN="$(mqdb dsn)"   # the DSN of the embedded broker, or of your own
mqdb topic create fastapi-orders
uvicorn --factory examples.fastapi_shop.app:create_app
curl localhost:8000/orders --json '{"item": "tea", "price": 3}'
curl localhost:8000/orders/1
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from mqdb_client import App, ConsumeFromWhere


class Base(DeclarativeBase):
    """The tables of the shop."""


class Order(Base):
    """An order of a customer."""

    __tablename__ = "fastapi_order"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    price: Mapped[int]
    is_billed: Mapped[bool] = mapped_column(default=False)


class NewOrder(BaseModel):
    """A new order, as a customer sends it."""

    item: str
    price: int


class ShownOrder(NewOrder):
    """An order, as the shop returns it to a customer."""

    id: int
    is_billed: bool


def create_app(dsn: str | None = None, topic: str = "fastapi-orders", group: str = "fastapi-billing") -> FastAPI:
    """The application. `dsn` is the DSN of the database of the shop and its broker, by default MQDB_DSN."""
    dsn = dsn or os.environ["MQDB_DSN"]
    engine = create_async_engine(make_url(dsn).set(drivername="postgresql+psycopg"))
    sessions = async_sessionmaker(engine, expire_on_commit=False)
    shop = App("shop", dsn=dsn)
    shop.configure_group(
        group, consume_from_where=ConsumeFromWhere.FIRST_OFFSET, persist_consumer_offset_interval=timedelta(seconds=1)
    )

    @shop.listener(topic, group=group)
    async def bill(order_id: int) -> None:
        async with sessions.begin() as session:
            order = await session.get_one(Order, order_id)
            order.is_billed = True

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        async with shop.consuming():
            yield
        await shop.aclose()
        await engine.dispose()

    app = FastAPI(title="Shop", lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place(new: NewOrder) -> ShownOrder:
        async with sessions.begin() as session:
            order = Order(item=new.item, price=new.price)
            session.add(order)
            await session.flush()  # which gives it its id
            await shop.asend(topic, order.id, keys=str(order.id), connection=session)
            if order.price < 0:
                raise HTTPException(422, "a price is not below 0")  # neither the order nor its message is stored
        return shown(order)

    @app.get("/orders/{order_id}")
    async def show(order_id: int) -> ShownOrder:
        async with sessions() as session:
            order = await session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, "no such order")
        return shown(order)

    return app


def shown(order: Order) -> ShownOrder:
    """Convert an order to the form that customers see."""
    return ShownOrder(id=order.id, item=order.item, price=order.price, is_billed=order.is_billed)
