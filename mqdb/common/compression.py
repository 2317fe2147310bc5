"""Compression of message bodies: its bits in sys_flag, and the three formats that RocketMQ supports.

Senders compress and receivers decompress; the broker stores bodies unchanged. lz4 and zstandard are imported when a
body needs them. RocketMQ: MessageSysFlag, CompressionType, ZlibCompressor, Lz4Compressor, ZstdCompressor.
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
# Old clients supported only zlib, and did not set a type.
_COMPRESSIONS: Final = {0: Compression.ZLIB} | {number: compression for compression, number in _TYPES.items()}

#: The level for zlib and Zstandard; RocketMQ sets no level for LZ4. Source: MixAll.MESSAGE_COMPRESS_LEVEL.
_LEVEL: Final = 5

#: Larger bodies are not compressed, and bodies are not decompressed beyond this size: 4 MiB of zlib can hold 4 GiB of
#: zeros, and a receiver killed by such a message would get it again. RocketMQ has no limit; this is 64 times its
#: largest message.
MAX_PLAIN_BYTES: Final = 256 * 1024 * 1024

# How much input a library gets before the size is checked: with Zstandard this expands to 128 MiB at most.
_STEP_BYTES: Final = 4_096


def compressed_flag(compression: Compression) -> int:
    """The bits of sys_flag for a body with this compression."""
    return COMPRESSED_FLAG | _TYPES[compression] << _TYPE_SHIFT


def compression_of(sys_flag: int) -> Compression | None:
    """The compression of a body with this sys_flag; None for a plain body.

    Raises CompressedBodyBroken for a type that RocketMQ does not define. Source: CompressionType.findByValue.
    """
    if not sys_flag & COMPRESSED_FLAG:
        return None
    number = sys_flag >> _TYPE_SHIFT & _TYPE_MASK
    if number not in _COMPRESSIONS:
        raise CompressedBodyBroken(f"type {number}", f"sys_flag {sys_flag} names an undefined type")
    return _COMPRESSIONS[number]


def compressed(body: bytes, compression: Compression | None, threshold: int) -> tuple[bytes, int]:
    """The body to store, and its bits of sys_flag. A body of at least `threshold` bytes is compressed.

    The body stays plain, without bits, if no compression is given, if it is larger than MAX_PLAIN_BYTES, or if
    compression would not make it smaller. In the last case RocketMQ sends it compressed, and the receiver decompresses
    it needlessly. A batch is never compressed.
    Source: DefaultMQProducerImpl.tryToCompressMessage.
    """
    if compression is not None and threshold <= len(body) <= MAX_PLAIN_BYTES:
        smaller = compress(body, compression)
        if len(smaller) < len(body):
            return smaller, compressed_flag(compression)
    return body, 0


def compress(body: bytes, compression: Compression) -> bytes:
    """Compress a body as RocketMQ's clients do. Raises CompressionUnavailable if the library is missing."""
    match compression:
        case Compression.ZLIB:
            return zlib.compress(body, _LEVEL)
        case Compression.LZ4:
            # lz4-java, which RocketMQ's clients use, refuses blocks that refer to each other.
            packed: bytes = _lz4().compress(body, block_linked=False)
        case Compression.ZSTD:
            packed = _of_thread.zstd_compressor.compress(body)
    return packed


def decompress(body: bytes, sys_flag: int) -> bytes:
    """The plain form of a body stored with this sys_flag; a plain body is returned unchanged.

    Raises CompressedBodyBroken for a body that is damaged or larger than MAX_PLAIN_BYTES, and CompressionUnavailable if
    the library is missing.
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
        raise CompressedBodyBroken(compression, "there is data after its end")
    return b"".join(parts)


def _decompressor(compression: Compression) -> tuple[_Decompressor, type[Exception]]:
    """A decompressor for one body, and the error that it raises for a broken body."""
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

# An import statement for a loaded module takes less than a microsecond.


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
