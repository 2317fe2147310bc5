-- The layout is described in mqdb/common/unique_id.py. For an id of another kind, the result is an arbitrary number.
CREATE FUNCTION mqdb.unique_id_ms(msg_id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ('x' || encode(substr(uuid_send(msg_id), 11, 4), 'hex'))::bit(32)::bigint;
COMMENT ON FUNCTION mqdb.unique_id_ms(uuid) IS 'Time at which mqdb generated a unique id, in milliseconds since the start of the month in UTC';
