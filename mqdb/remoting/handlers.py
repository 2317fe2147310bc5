"""Which request is answered where. RocketMQ: RequestCode, BrokerController.registerProcessor."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from mqdb.remoting.codes import RequestCode
from mqdb.remoting.connection import Answer, Connection
from mqdb.remoting.frame import Frame
from mqdb.remoting.locks import Locks
from mqdb.remoting.members import Members
from mqdb.remoting.messages import Messages
from mqdb.remoting.offsets import Offsets
from mqdb.remoting.pulls import Pulls
from mqdb.remoting.replies import Replies
from mqdb.remoting.routes import Routes
from mqdb.remoting.send_back import SendBack
from mqdb.remoting.sends import Sends
from mqdb.remoting.transactions import Transactions


class Handler(NamedTuple):
    """How a request is answered: by what `run` returns, or by itself if that is None.

    Requests in turn wait for those of their connection that have come before: what a client commits before it leaves
    counts.
    """

    run: Callable[[Connection, Frame], Awaitable[Answer | None] | None]
    is_in_turn: bool = False


def consuming_handlers(pulls: Pulls, offsets: Offsets, locks: Locks) -> dict[int, Handler]:
    """The handler of each code that only consumers send."""
    return {
        RequestCode.PULL_MESSAGE: Handler(pulls.pull),
        RequestCode.LITE_PULL_MESSAGE: Handler(pulls.pull),
        RequestCode.QUERY_CONSUMER_OFFSET: Handler(offsets.query),
        # At once: a client may say that it leaves before it says how far it has come.
        RequestCode.UPDATE_CONSUMER_OFFSET: Handler(offsets.update),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Handler(offsets.search),
        RequestCode.GET_MAX_OFFSET: Handler(offsets.maximum),
        RequestCode.GET_MIN_OFFSET: Handler(offsets.minimum),
        RequestCode.LOCK_BATCH_MQ: Handler(locks.lock, is_in_turn=True),
        RequestCode.UNLOCK_BATCH_MQ: Handler(locks.unlock, is_in_turn=True),
    }


def handlers(
    routes: Routes,
    members: Members,
    sends: Sends,
    send_back: SendBack,
    transactions: Transactions,
    messages: Messages,
    replies: Replies,
) -> dict[int, Handler]:
    """The handler of each code."""
    return {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: Handler(routes.route),
        RequestCode.GET_BROKER_CLUSTER_INFO: Handler(routes.cluster),
        RequestCode.SEND_MESSAGE: Handler(sends.send),
        RequestCode.SEND_MESSAGE_V2: Handler(sends.send),
        RequestCode.SEND_BATCH_MESSAGE: Handler(sends.send),
        RequestCode.HEART_BEAT: Handler(members.heartbeat, is_in_turn=True),
        RequestCode.UNREGISTER_CLIENT: Handler(members.unregister, is_in_turn=True),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: Handler(members.members),
        RequestCode.CHECK_CLIENT_CONFIG: Handler(members.check_client),
        RequestCode.CONSUMER_SEND_MSG_BACK: Handler(send_back.send_back),
        RequestCode.END_TRANSACTION: Handler(transactions.end),
        RequestCode.QUERY_MESSAGE: Handler(messages.query),
        RequestCode.VIEW_MESSAGE_BY_ID: Handler(messages.view),
        RequestCode.RECALL_MESSAGE: Handler(messages.recall),
        RequestCode.SEND_REPLY_MESSAGE: Handler(replies.reply),
        RequestCode.SEND_REPLY_MESSAGE_V2: Handler(replies.reply),
    }
