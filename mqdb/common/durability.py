"""Durability: what a commit waits for before a send is acknowledged. RocketMQ: FlushDiskType, BrokerRole."""

from enum import StrEnum


class Durability(StrEnum):
    """What a send waits for. The names are RocketMQ's, whose ASYNC_MASTER is the replication of the first two.

    FLUSH_DISK_TIMEOUT has no cause here: a commit that waits for the disk cannot be cancelled, so a disk that is too
    slow makes the send end without an answer, as a SendOutcomeUnknown.
    """

    #: For nothing. A crash of the server may lose what it stored in its last 0.6 s (three times wal_writer_delay).
    ASYNC_FLUSH = "ASYNC_FLUSH"
    #: For the broker's disk, whether there are standbys or not. Behind a transaction pooler the server's own setting
    #: rules, which is to wait for synchronous standbys as well where it has any.
    SYNC_FLUSH = "SYNC_FLUSH"
    #: For the disks of the broker and of its synchronous standbys (synchronous_standby_names); where the server's
    #: own setting is remote_apply, until the standbys show the message.
    SYNC_MASTER = "SYNC_MASTER"
