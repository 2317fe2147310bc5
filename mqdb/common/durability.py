"""Durability: what a commit waits for before a send is acknowledged. RocketMQ: FlushDiskType, BrokerRole."""

from enum import StrEnum


class Durability(StrEnum):
    """The event that a send waits for. The names are RocketMQ's; its ASYNC_MASTER covers the first two.

    FLUSH_DISK_TIMEOUT never occurs: a commit that waits for the disk cannot be cancelled. If a disk is too slow, the
    send ends without an answer, with SendOutcomeUnknown.
    """

    #: No wait. A server crash may lose messages stored in the last 0.6 s (three times wal_writer_delay).
    ASYNC_FLUSH = "ASYNC_FLUSH"
    #: Wait for the broker's disk, with or without standbys. Behind a transaction pooler the server's own setting
    #: decides, which by default also waits for synchronous standbys, if there are any.
    SYNC_FLUSH = "SYNC_FLUSH"
    #: Wait for the disks of the broker and of its synchronous standbys (synchronous_standby_names); if the server's
    #: own setting is remote_apply, until the standbys show the message.
    SYNC_MASTER = "SYNC_MASTER"
