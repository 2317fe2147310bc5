CREATE FUNCTION mqdb.unique_id_text(msg_id uuid) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN upper(encode(uuid_send(msg_id), 'hex'));
COMMENT ON FUNCTION mqdb.unique_id_text(uuid) IS 'A unique id in RocketMQ''s format: 32 upper-case hexadecimal digits';
