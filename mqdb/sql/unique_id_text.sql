CREATE FUNCTION mqdb.unique_id_text(msg_id uuid) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN upper(replace(msg_id::text, '-', ''));
COMMENT ON FUNCTION mqdb.unique_id_text(uuid) IS 'A unique id as RocketMQ prints it: 32 upper-case hex digits';
