-- mqdb/common/unique_id.py has the layout. An id of another kind has any number there.
CREATE FUNCTION mqdb.unique_id_ms(msg_id uuid) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ('x' || encode(substr(uuid_send(msg_id), 11, 4), 'hex'))::bit(32)::bigint;
COMMENT ON FUNCTION mqdb.unique_id_ms(uuid) IS 'Time at which an id of our own generator was made, in milliseconds since the month began in UTC';
