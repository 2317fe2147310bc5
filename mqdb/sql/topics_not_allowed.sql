CREATE FUNCTION mqdb.topics_not_allowed() RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN string_to_array(
    'SCHEDULE_TOPIC_XXXX rmq_sys_wheel_timer RMQ_SYS_TRANS_HALF_TOPIC RMQ_SYS_TRANS_OP_HALF_TOPIC '
    'TRANS_CHECK_MAX_TIME_TOPIC SELF_TEST_TOPIC OFFSET_MOVED_EVENT', ' ');
COMMENT ON FUNCTION mqdb.topics_not_allowed() IS 'System topics that only the broker writes to (TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET)';
