-- The dead letters of a group for a role that may OPERATE the group but not read it: message ids, times and origins,
-- with the columns of mqdb.dlq. Columns with content of the message or its failure are NULL.
CREATE FUNCTION mqdb.dlq_outline(group_name text) RETURNS SETOF mqdb.dlq
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM mqdb.check_right('OPERATE', 'GROUP', dlq_outline.group_name);
    RETURN QUERY
    SELECT d.group_name, d.topic, d.msg_id, d.tags, d.keys, d.attempts, d.failed_at, d.exception, NULL::text, d.redriven_at,
           d.host, d.origin_queue_id, d.origin_queue_offset, d.origin_log_pos, d.queue_offset, d.log_pos, d.store_time, d.born_time,
           d.born_host, d.flag, d.sys_flag, d.compression, NULL::jsonb, NULL::text, NULL::text, NULL::bytea
    FROM mqdb.dlq d WHERE d.group_name = mqdb.own_name(dlq_outline.group_name);
END
$$;
COMMENT ON FUNCTION mqdb.dlq_outline(text) IS 'The rows of mqdb.dlq for a group, without the content of messages and failures, for a role that may operate the group';
