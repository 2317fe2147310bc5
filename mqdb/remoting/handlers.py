"""The handlers of request codes. RocketMQ: RequestCode, BrokerController.registerProcessor."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from mqdb.fronts.database import Database
from mqdb.remoting.consuming.consuming import Consuming
from mqdb.remoting.producing.send_back import SendBack
from mqdb.remoting.producing.sends import Sends
from mqdb.remoting.producing.transactions import ClientTransactions
from mqdb.remoting.routes import NameServer
from mqdb.remoting.session.access import FrameAccess
from mqdb.remoting.session.connection import Connection
from mqdb.remoting.session.members import FrontMembers
from mqdb.remoting.tools.administration import Administration
from mqdb.remoting.tools.lookup import Lookup
from mqdb.remoting.tools.questions import Questions
from mqdb.remoting.tools.tool_statistics import Statistics
from mqdb.remoting.wire.answers import Answer
from mqdb.remoting.wire.codes import RequestCode
from mqdb.remoting.wire.frame import Frame

#: Slightly less than clients wait. A client whose wait ends without an answer closes its connection, with all pulls in
#: progress; RocketMQ's client in C++ then misses their answers for 30 s.
#: Source: ClientConfig.mqClientApiTimeout, 3 s; MQClientAPIImpl.lockBatchMQ, 1 s.
_ANSWERED_WITHIN_SECONDS: Final = 2.5
_LOCKED_WITHIN_SECONDS: Final = 0.9


class Handler(NamedTuple):
    """The handler of a request code: `run` returns the answer, or None if `run` answers by itself.

    A request with `is_in_turn` waits for earlier ones of its connection, so that a commit sent before leaving counts.
    """

    run: Callable[[Connection, Frame], Awaitable[Answer | None] | None]
    is_in_turn: bool = False
    #: After this time, the client gets an error, while the work continues. None if `run` limits the time itself, or if
    #: the client is one of RocketMQ's tools, which wait for a long time.
    seconds: float | None = None


def _soon(
    run: Callable[[Connection, Frame], Awaitable[Answer]],
    *,
    is_in_turn: bool = False,
    seconds: float = _ANSWERED_WITHIN_SECONDS,
) -> Handler:
    return Handler(run, is_in_turn, seconds)


def consuming_handlers(consuming: Consuming) -> dict[int, Handler]:
    """The handlers of codes that only consumers send."""
    pulls, pops, offsets, locks = consuming.pulls, consuming.pops, consuming.offsets, consuming.locks
    return {
        RequestCode.PULL_MESSAGE: Handler(pulls.pull),
        RequestCode.LITE_PULL_MESSAGE: Handler(pulls.pull),
        RequestCode.QUERY_ASSIGNMENT: _soon(consuming.assignments.query),
        RequestCode.POP_MESSAGE: Handler(pops.pop),
        RequestCode.ACK_MESSAGE: _soon(pops.ack),
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _soon(pops.change),
        RequestCode.QUERY_CONSUMER_OFFSET: _soon(offsets.query),
        # Handled at once: the last offsets of a client may arrive after its request to leave.
        RequestCode.UPDATE_CONSUMER_OFFSET: Handler(offsets.update),
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _soon(offsets.search),
        RequestCode.GET_MAX_OFFSET: _soon(offsets.maximum),
        RequestCode.GET_MIN_OFFSET: _soon(offsets.minimum),
        RequestCode.GET_EARLIEST_MSG_STORETIME: _soon(offsets.earliest_time),
        RequestCode.LOCK_BATCH_MQ: _soon(locks.lock, is_in_turn=True, seconds=_LOCKED_WITHIN_SECONDS),
        RequestCode.UNLOCK_BATCH_MQ: _soon(locks.unlock, is_in_turn=True, seconds=_LOCKED_WITHIN_SECONDS),
    }


def handlers(
    routes: NameServer,
    members: FrontMembers,
    sends: Sends,
    send_back: SendBack,
    transactions: ClientTransactions,
    messages: Lookup,
) -> dict[int, Handler]:
    """The handlers of all codes."""
    return {
        RequestCode.GET_ROUTEINFO_BY_TOPIC: _soon(routes.route),
        RequestCode.GET_BROKER_CLUSTER_INFO: Handler(routes.cluster),
        RequestCode.SEND_MESSAGE: Handler(sends.send),
        RequestCode.SEND_MESSAGE_V2: Handler(sends.send),
        RequestCode.SEND_BATCH_MESSAGE: Handler(sends.send),
        RequestCode.HEART_BEAT: _soon(members.heartbeat, is_in_turn=True),
        RequestCode.UNREGISTER_CLIENT: _soon(members.unregister, is_in_turn=True),
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: _soon(members.members),
        RequestCode.CHECK_CLIENT_CONFIG: _soon(members.check_client),
        RequestCode.CONSUMER_SEND_MSG_BACK: _soon(send_back.send_back),
        RequestCode.END_TRANSACTION: Handler(transactions.end),
        RequestCode.QUERY_MESSAGE: Handler(messages.query),
        RequestCode.VIEW_MESSAGE_BY_ID: _soon(messages.view),
        RequestCode.RECALL_MESSAGE: _soon(messages.recall),
        RequestCode.SEND_REPLY_MESSAGE: Handler(sends.reply),
        RequestCode.SEND_REPLY_MESSAGE_V2: Handler(sends.reply),
    }


def administration_handlers(
    database: Database, members: FrontMembers, access: FrameAccess, questions: Questions, address: tuple[str, int]
) -> dict[int, Handler]:
    """The handlers of codes that only RocketMQ's tools send, except that producers send 17, too."""
    administration = Administration(database, address)
    statistics = Statistics(database, members, access)
    return {
        RequestCode.GET_BROKER_RUNTIME_INFO: Handler(administration.runtime_info),
        RequestCode.GET_BROKER_CONFIG: Handler(administration.broker_config),
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Handler(administration.topic_names),
        RequestCode.GET_TOPICS_BY_CLUSTER: Handler(administration.topic_names),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: Handler(administration.system_topic_names),
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Handler(administration.system_topic_names),
        RequestCode.GET_ALL_TOPIC_CONFIG: Handler(administration.topic_configs),
        RequestCode.GET_TOPIC_CONFIG: Handler(administration.topic_config),
        RequestCode.UPDATE_AND_CREATE_TOPIC: Handler(administration.save_topic),
        RequestCode.DELETE_TOPIC_IN_BROKER: Handler(administration.delete_topic),
        RequestCode.DELETE_TOPIC_IN_NAMESRV: Handler(administration.forget_topic),
        RequestCode.PUT_KV_CONFIG: Handler(administration.save_value),
        RequestCode.GET_KV_CONFIG: Handler(administration.value),
        RequestCode.DELETE_KV_CONFIG: Handler(administration.forget_topic),
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Handler(administration.group_configs),
        RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Handler(administration.group_config),
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Handler(administration.save_group),
        RequestCode.SET_MESSAGE_REQUEST_MODE: Handler(administration.set_request_mode),
        RequestCode.DELETE_SUBSCRIPTIONGROUP: Handler(administration.delete_group),
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Handler(administration.reset_offset),
        RequestCode.GET_TOPIC_STATS_INFO: Handler(statistics.topic_stats),
        RequestCode.VIEW_BROKER_STATS_DATA: Handler(statistics.puts),
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Handler(statistics.readers),
        RequestCode.GET_CONSUME_STATS: Handler(statistics.consume_stats),
        RequestCode.QUERY_TOPICS_BY_CONSUMER: Handler(statistics.topics_of_group),
        RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Handler(statistics.subscription),
        RequestCode.GET_CONSUMER_CONNECTION_LIST: Handler(statistics.consumers),
        RequestCode.GET_PRODUCER_CONNECTION_LIST: Handler(statistics.producers),
        RequestCode.GET_ALL_PRODUCER_INFO: Handler(statistics.all_producers),
        RequestCode.GET_CONSUMER_RUNNING_INFO: Handler(questions.running_info),
        RequestCode.CONSUME_MESSAGE_DIRECTLY: Handler(questions.consume_directly),
    }
