CREATE FUNCTION mqdb.max_body_bytes() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 4194304;
COMMENT ON FUNCTION mqdb.max_body_bytes() IS 'The largest body that SQL may send, in bytes (MessageStoreConfig.maxMessageSize)';

CREATE FUNCTION mqdb.max_properties_bytes() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 32767;
COMMENT ON FUNCTION mqdb.max_properties_bytes() IS 'The maximum size of all properties of a message, encoded as in RocketMQ; also the limit for a single tag or sharding key';
