-- The names of the topics that belong to the broker. The same names are in mqdb/common/topic.py; a test compares both.
CREATE FUNCTION mqdb.schedule_topic() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'SCHEDULE_TOPIC_XXXX';
COMMENT ON FUNCTION mqdb.schedule_topic() IS 'Topic in which messages wait for their delay level; queue number level - 1';

CREATE FUNCTION mqdb.timer_topic() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'rmq_sys_wheel_timer';
COMMENT ON FUNCTION mqdb.timer_topic() IS 'Topic in which messages wait for their delivery time';

CREATE FUNCTION mqdb.half_topic() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'RMQ_SYS_TRANS_HALF_TOPIC';
COMMENT ON FUNCTION mqdb.half_topic() IS 'Topic of half messages';

CREATE FUNCTION mqdb.retry_prefix() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN '%RETRY%';
COMMENT ON FUNCTION mqdb.retry_prefix() IS 'Prefix of the name of a group''s retry topic; the name of the group follows';

CREATE FUNCTION mqdb.dlq_prefix() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN '%DLQ%';
COMMENT ON FUNCTION mqdb.dlq_prefix() IS 'Prefix of the name of a group''s dead letter topic; the name of the group follows';

CREATE FUNCTION mqdb.deleted_prefix() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'rmq_sys_deleted_';
COMMENT ON FUNCTION mqdb.deleted_prefix() IS 'Prefix of the names of deleted topics whose queues are still to be removed; a number follows';

CREATE FUNCTION mqdb.topics_not_allowed() RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN ARRAY[mqdb.schedule_topic(), mqdb.timer_topic(), mqdb.half_topic(), 'RMQ_SYS_TRANS_OP_HALF_TOPIC',
             'TRANS_CHECK_MAX_TIME_TOPIC', 'SELF_TEST_TOPIC', 'OFFSET_MOVED_EVENT'];
COMMENT ON FUNCTION mqdb.topics_not_allowed() IS 'System topics to which only the broker writes (TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET)';

CREATE FUNCTION mqdb.is_topic_of_users(topic text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN NOT (topic = ANY (mqdb.topics_not_allowed() || ARRAY['TBW102', 'BenchmarkTest', 'RMQ_SYS_TRACE_TOPIC', 'CHECKPOINT_TOPIC'])
            OR starts_with(topic, 'rmq_sys_') OR starts_with(topic, mqdb.retry_prefix()) OR starts_with(topic, mqdb.dlq_prefix())
            OR right(topic, 12) = '_REPLY_TOPIC');
COMMENT ON FUNCTION mqdb.is_topic_of_users(text) IS 'False for the topics of the broker, of groups, and of replies, which no right covers';
