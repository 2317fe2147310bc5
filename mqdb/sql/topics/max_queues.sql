-- Each queue has a row for each role with a right on its topic, and adds to the cost of each look at all queues. A role
-- that creates a topic through a right may therefore create fewer queues than the owner. `mqdb/common/topic.py` has the
-- same numbers.
CREATE FUNCTION mqdb.max_queues(topic text) RETURNS integer
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
RETURN CASE WHEN mqdb.is_owner(session_user) THEN 65536 WHEN mqdb.is_topic_of_users(topic) THEN 1024 ELSE 64 END;
COMMENT ON FUNCTION mqdb.max_queues(text) IS 'Largest number of queues that the logged-in role may give to a topic that it administers';
