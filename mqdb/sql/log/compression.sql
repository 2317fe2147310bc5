-- For people: views show how a body is compressed. Bit 0 of sys_flag says whether it is compressed, and bits 8 to 10
-- say how; old clients set no type and supported only ZLIB. RocketMQ: MessageSysFlag, CompressionType.
CREATE FUNCTION mqdb.compression(sys_flag integer) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN CASE WHEN sys_flag & 1 = 1
    THEN (ARRAY['ZLIB', 'LZ4', 'ZSTD', 'ZLIB', 'type 4', 'type 5', 'type 6', 'type 7'])[(sys_flag >> 8 & 7) + 1]
END;
COMMENT ON FUNCTION mqdb.compression(integer) IS 'The compression of a body with this sys_flag: ZLIB, LZ4 or ZSTD; NULL if it is not compressed';
