"""Compression of message bodies: the bits of sys_flag that tell of it, and the three ways that RocketMQ knows.

Senders and receivers do it; the broker stores what it is given. lz4 and zstandard are imported when a body needs
them. RocketMQ: MessageSysFlag, CompressionType, ZlibCompressor, Lz4Compressor, ZstdCompressor.
"""

import threading
import zlib
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Protocol

from mqdb.errors import CompressedBodyBroken, CompressionUnavailable


class Compression(StrEnum):
    """The compression of a body: zlib with its header, an LZ4 frame, or a Zstandard frame."""

    ZLIB = "ZLIB"
    LZ4 = "LZ4"
    ZSTD = "ZSTD"


#: Bit 0 of sys_flag; bits 8 to 10 hold the type. Source: MessageSysFlag.COMPRESSED_FLAG, COMPRESSION_TYPE_COMPARATOR.
COMPRESSED_FLAG: Final = 1

_TYPE_SHIFT, _TYPE_MASK = 8, 7
_TYPES: Final = {Compression.LZ4: 1, Compression.ZSTD: 2, Compression.ZLIB: 3}
# Old clients knew zlib only, and set no type.
_COMPRESSIONS: Final = {0: Compression.ZLIB} | {number: compression for compression, number in _TYPES.items()}

#: For zlib and Zstandard; RocketMQ gives LZ4 none. Source: MixAll.MESSAGE_COMPRESS_LEVEL.
_LEVEL: Final = 5

#: No body is compressed above this size, and none is decompressed beyond it: of zeros, 4 MiB of zlib hold 4 GiB, and
#: a receiver that such a message kills would get it again. RocketMQ has no limit; this is 64 times its largest message.
MAX_PLAIN_BYTES: Final = 256 * 1024 * 1024

# How much is given to a library before the size is looked at: of Zstandard's this holds 128 MiB at most.
_STEP_BYTES: Final = 4_096


def compressed_flag(compression: Compression) -> int:
    """The bits of sys_flag for a body that is compressed so."""
    return COMPRESSED_FLAG | _TYPES[compression] << _TYPE_SHIFT


def compression_of(sys_flag: int) -> Compression | None:
    """The compression of a body with this sys_flag; None for a plain one.

    Raises CompressedBodyBroken for a type that RocketMQ does not know. Source: CompressionType.findByValue.
    """
    if not sys_flag & COMPRESSED_FLAG:
        return None
    number = sys_flag >> _TYPE_SHIFT & _TYPE_MASK
    if number not in _COMPRESSIONS:
        raise CompressedBodyBroken(f"type {number}", f"sys_flag {sys_flag} names an undefined type")
    return _COMPRESSIONS[number]


def compressed(body: bytes, compression: Compression | None, threshold: int) -> tuple[bytes, int]:
    """The body to store, and its bits of sys_flag. It is compressed if it has at least `threshold` bytes.

    The body stays plain, without bits, if no compression is given, above MAX_PLAIN_BYTES, and if compression would not
    make it smaller. RocketMQ sends it compressed in the last case, and the receiver decompresses it for nothing. A
    batch is never compressed.
    Source: DefaultMQProducerImpl.tryToCompressMessage.
    """
    if compression is not None and threshold <= len(body) <= MAX_PLAIN_BYTES:
        smaller = compress(body, compression)
        if len(smaller) < len(body):
            return smaller, compressed_flag(compression)
    return body, 0


def compress(body: bytes, compression: Compression) -> bytes:
    """The body as RocketMQ's clients compress it. Raises CompressionUnavailable where the library is missing."""
    match compression:
        case Compression.ZLIB:
            return zlib.compress(body, _LEVEL)
        case Compression.LZ4:
            # lz4-java, which RocketMQ's clients read with, refuses blocks that refer to each other.
            packed: bytes = _lz4().compress(body, block_linked=False)
        case Compression.ZSTD:
            packed = _of_thread.zstd_compressor.compress(body)
    return packed


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The plain body of one that is stored with this sys_flag; a plain one is given back as it is.

    Raises CompressedBodyBroken for one that is not whole, or larger than MAX_PLAIN_BYTES, and CompressionUnavailable
    where the library is missing.
    """
    compression = compression_of(sys_flag)
    if compression is None:
        return body
    decompressor, failure = _decompressor(compression)
    try:
        return _all_of(body, decompressor, compression)
    except failure as error:
        raise CompressedBodyBroken(compression, str(error)) from error


class _Decompressor(Protocol):
    """The common methods of the decompressors of all three libraries."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: memoryview, /) -> bytes: ...


def _all_of(body: bytes, decompressor: _Decompressor, compression: Compression) -> bytes:
    parts = []
    size = 0
    rest = memoryview(body)
    while rest and not decompressor.eof:
        part = decompressor.decompress(rest[:_STEP_BYTES])
        rest = rest[_STEP_BYTES:]
        size += len(part)
        if size > MAX_PLAIN_BYTES:
            raise CompressedBodyBroken(compression, f"it has more than {MAX_PLAIN_BYTES:,} bytes")
        parts.append(part)
    if not decompressor.eof:
        raise CompressedBodyBroken(compression, f"it ends too early, after {len(body):,} bytes")
    if rest or decompressor.unused_data:
        raise CompressedBodyBroken(compression, "something follows its end")
    return b"".join(parts)


def _decompressor(compression: Compression) -> tuple[_Decompressor, type[Exception]]:
    """A decompressor for one body, and what it raises when the body is broken."""
    match compression:
        case Compression.ZLIB:
            return zlib.decompressobj(), zlib.error
        case Compression.LZ4:
            return _lz4().LZ4FrameDecompressor(), RuntimeError
        case Compression.ZSTD:
            return _of_thread.zstd_decompressor.decompressobj(), _zstandard().ZstdError


class _OfThread(threading.local):
    """The compressors of one thread. Making one takes six times as long as compressing 4,096 bytes."""

    @cached_property
    def zstd_compressor(self) -> Any:
        return _zstandard().ZstdCompressor(level=_LEVEL)

    @cached_property
    def zstd_decompressor(self) -> Any:
        return _zstandard().ZstdDecompressor()


_of_thread = _OfThread()

# An import statement that finds its module loaded takes less than a microsecond.


def _lz4() -> Any:
    try:
        import lz4.frame
    except ImportError as error:
        raise CompressionUnavailable(Compression.LZ4, "lz4") from error
    return lz4.frame


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise CompressionUnavailable(Compression.ZSTD, "zstandard") from error
    return zstandard
