CREATE FUNCTION mqdb.max_body_bytes() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 4194304;
COMMENT ON FUNCTION mqdb.max_body_bytes() IS 'The largest body that SQL may send (MessageStoreConfig.maxMessageSize)';

CREATE FUNCTION mqdb.max_properties_bytes() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN 32767;
COMMENT ON FUNCTION mqdb.max_properties_bytes() IS 'The most that all properties of a message take, encoded as RocketMQ does; no tag or sharding key is longer either';
