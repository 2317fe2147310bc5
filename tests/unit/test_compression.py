"""Compression of bodies: RocketMQ's flag bits, round trips with three algorithms, and broken bodies."""

import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqdb.common import compression
from mqdb.common.compression import Compression, compress, compressed, compressed_flag, compression_of, decompress
from mqdb.errors import CompressedBodyBroken, CompressionUnavailable

THRESHOLD = 4_096
every_compression = pytest.mark.parametrize("how", Compression)


def incompressible(size: int) -> bytes:
    return random.Random(size).randbytes(size)


# -- the bits of sys_flag -----------------------------------------------------------------------

FLAGS = {Compression.LZ4: 0x101, Compression.ZSTD: 0x201, Compression.ZLIB: 0x301}


@every_compression
def test_the_bits_are_those_of_rocketmq(how: Compression) -> None:
    assert compressed_flag(how) == FLAGS[how]


@every_compression
def test_other_bits_do_not_hide_the_compression(how: Compression) -> None:
    transaction_and_host_bits = 0x4 | 0x8 | 0x10 | 0x20 | ~0x7FF

    assert compression_of(FLAGS[how] | transaction_and_host_bits) is how


def test_an_old_client_that_sets_no_type_means_zlib() -> None:
    assert compression_of(1) is Compression.ZLIB
    assert decompress(zlib.compress(b"body"), 1) == b"body"


@pytest.mark.parametrize("sys_flag", [0, 4, 0x300, ~1])
def test_a_body_without_the_flag_is_plain(sys_flag: int) -> None:
    assert compression_of(sys_flag) is None
    assert decompress(b"body", sys_flag) == b"body"


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_a_type_that_nobody_has_defined_is_a_broken_body(number: int) -> None:
    with pytest.raises(CompressedBodyBroken, match=f"type {number}"):
        decompress(b"body", 1 | number << 8)


# -- there and back -----------------------------------------------------------------------------


@every_compression
@given(body=st.binary() | st.builds(lambda part, times: part * times, st.binary(max_size=20), st.integers(0, 10_000)))
def test_a_body_comes_back_as_it_was(how: Compression, body: bytes) -> None:
    assert decompress(compress(body, how), compressed_flag(how)) == body


@every_compression
def test_a_body_of_the_largest_size_comes_back_as_it_was(how: Compression) -> None:
    body = incompressible(2 * 1024 * 1024) + bytes(2 * 1024 * 1024)

    assert decompress(compress(body, how), compressed_flag(how)) == body


def test_zlib_has_its_header_and_level_5() -> None:
    assert compress(b"body", Compression.ZLIB) == zlib.compress(b"body", 5)


def test_the_blocks_of_an_lz4_frame_are_independent() -> None:
    """lz4-java reads only independent blocks. The flag is in the fifth byte, after the magic number."""
    packed = compress(incompressible(THRESHOLD) * 100, Compression.LZ4)

    assert packed[:4] == bytes.fromhex("04224d18")
    assert packed[4] & 0x20


def test_a_zstd_frame_that_does_not_tell_its_size_is_read() -> None:
    """A zstd frame without a content size can be read. RocketMQ's clients write such frames as a stream."""
    import zstandard

    stream = zstandard.ZstdCompressor(level=5).compressobj()
    packed = stream.compress(b"body" * 10_000) + stream.flush()

    assert decompress(packed, compressed_flag(Compression.ZSTD)) == b"body" * 10_000


@every_compression
def test_threads_do_not_disturb_each_other(how: Compression) -> None:
    bodies = [incompressible(size) * 10 for size in range(20_000, 20_040)]

    with ThreadPoolExecutor(8) as threads:
        came_back = list(threads.map(lambda body: decompress(compress(body, how), compressed_flag(how)), bodies))

    assert came_back == bodies


# -- what is sent -------------------------------------------------------------------------------


@every_compression
def test_a_body_is_compressed_from_the_threshold_on(how: Compression) -> None:
    below, at = bytes(THRESHOLD - 1), bytes(THRESHOLD)

    assert compressed(below, how, THRESHOLD) == (below, 0)
    assert compressed(at, how, THRESHOLD) == (compress(at, how), compressed_flag(how))


@every_compression
def test_a_body_that_would_not_become_smaller_stays_plain(how: Compression) -> None:
    body = incompressible(THRESHOLD)

    assert compressed(body, how, THRESHOLD) == (body, 0)


def test_nothing_is_compressed_unless_asked_for() -> None:
    assert compressed(bytes(THRESHOLD), None, THRESHOLD) == (bytes(THRESHOLD), 0)


@every_compression
def test_a_body_that_receivers_would_refuse_for_its_size_stays_plain(
    how: Compression, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MAX_PLAIN_BYTES", 10_000)

    assert compressed(bytes(10_000), how, THRESHOLD)[1] == compressed_flag(how)
    assert compressed(bytes(10_001), how, THRESHOLD) == (bytes(10_001), 0)


# -- a library that is not there ----------------------------------------------------------------

LIBRARIES = [(Compression.LZ4, "lz4"), (Compression.ZSTD, "zstandard")]


@pytest.mark.parametrize(("how", "library"), LIBRARIES)
@pytest.mark.parametrize("use", [compress, lambda body, how: decompress(body, compressed_flag(how))])
def test_a_missing_library_is_named_with_the_way_to_get_it(
    use: Callable[[bytes, Compression], bytes], how: Compression, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)

    # A thread that has compressed before would not ask for the library again.
    with (
        ThreadPoolExecutor(1) as new_thread,
        pytest.raises(CompressionUnavailable, match=rf"{library}.*pip install 'mqdb\[compression\]'"),
    ):
        new_thread.submit(use, b"body", how).result()


def test_zlib_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for _, library in LIBRARIES:
        monkeypatch.setitem(sys.modules, library, None)

    assert decompress(compress(b"body", Compression.ZLIB), FLAGS[Compression.ZLIB]) == b"body"


def test_no_library_is_loaded_before_a_body_needs_it() -> None:
    look = "import sys, mqdb_client; print({'lz4', 'zstandard'} & sys.modules.keys())"

    assert subprocess.run([sys.executable, "-c", look], capture_output=True, check=True).stdout == b"set()\n"


# -- broken bodies ------------------------------------------------------------------------------


@every_compression
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_body_that_is_cut_is_refused_wherever_the_cut_is(how: Compression, size: int) -> None:
    packed = compress(incompressible(size), how)

    for length in (0, 1, 5, len(packed) // 2, len(packed) - 1):
        with pytest.raises(CompressedBodyBroken, match=how):
            decompress(packed[:length], compressed_flag(how))

    assert decompress(packed, compressed_flag(how)) == incompressible(size)


@every_compression
def test_a_body_that_was_never_compressed_is_refused(how: Compression) -> None:
    with pytest.raises(CompressedBodyBroken, match=how) as refused:
        decompress(b"this is plain text", compressed_flag(how))

    assert refused.value.reason


@every_compression
@pytest.mark.parametrize("behind", [b"!", bytes(10_000)])
def test_a_body_with_something_behind_its_end_is_refused(how: Compression, behind: bytes) -> None:
    with pytest.raises(CompressedBodyBroken, match="data after its end"):
        decompress(compress(b"body", how) + behind, compressed_flag(how))


@given(how=st.sampled_from(Compression), body=st.binary(min_size=1), place=st.integers(0), change=st.integers(1, 255))
def test_a_body_with_a_wrong_byte_gives_no_other_error(how: Compression, body: bytes, place: int, change: int) -> None:
    packed = bytearray(compress(body, how))
    packed[place % len(packed)] ^= change

    with suppress(CompressedBodyBroken):
        decompress(bytes(packed), compressed_flag(how))


@every_compression
def test_a_small_body_that_would_fill_the_memory_is_refused(how: Compression, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compress(bytes(20_000_000), how)
    monkeypatch.setattr(compression, "MAX_PLAIN_BYTES", 10_000_000)

    with pytest.raises(CompressedBodyBroken, match="more than 10,000,000 bytes"):
        decompress(bomb, compressed_flag(how))
