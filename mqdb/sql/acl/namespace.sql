-- Namespaces. A principal may have one. Then the topics and groups that it names are those of its namespace, and what it is shown is
-- named without it. Names are stored whole, `shop%orders`, as RocketMQ's clients write them (NamespaceUtil). So rights, services and
-- properties of messages know nothing of namespaces, and a name that somebody has forgotten to complete is nobody's.
--
-- A namespace says what a name means and protects nothing; rights do. Those of a principal with a namespace lie in it (`mqdb.acl`).
CREATE VIEW mqdb.own_namespace WITH (security_barrier) AS
SELECT p.namespace FROM mqdb.principal p
WHERE p.principal = session_user::text COLLATE "default" AND p.is_role AND p.namespace IS NOT NULL;
COMMENT ON VIEW mqdb.own_namespace IS 'The namespace of the role that is logged in; no row without a namespace';
GRANT SELECT ON mqdb.own_namespace TO PUBLIC;

-- A name that has a % is whole already, whether it is of this namespace or of another one.
CREATE FUNCTION mqdb.with_namespace(name text, resource_type text, namespace text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN namespace IS NULL THEN name
    WHEN resource_type = 'GROUP' THEN regexp_replace(name, '^([^%]+)$', namespace || E'%\\1')
    WHEN left(name, 1) = '%' OR mqdb.is_topic_of_users(name)
    THEN regexp_replace(name, '^(%RETRY%|%DLQ%)?([^%]+)$', E'\\1' || namespace || E'%\\2')
    ELSE name END;
COMMENT ON FUNCTION mqdb.with_namespace(text, text, text) IS 'The whole name of a TOPIC or a GROUP; a topic of the broker belongs to no namespace (NamespaceUtil.wrapNamespace)';

CREATE FUNCTION mqdb.without_namespace(name text, namespace text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN regexp_replace(name, '^(%RETRY%|%DLQ%)?' || namespace || '%', E'\\1');
COMMENT ON FUNCTION mqdb.without_namespace(text, text) IS 'The name of a topic or a group as it is called in a namespace; NULL without a namespace (NamespaceUtil.withoutNamespace)';

CREATE FUNCTION mqdb.full_topic(topic text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN mqdb.with_namespace(topic, 'TOPIC', (SELECT n.namespace FROM mqdb.own_namespace n));
END
$$;
COMMENT ON FUNCTION mqdb.full_topic(text) IS 'The whole name of a topic, as the role that is logged in names it';

CREATE FUNCTION mqdb.full_group(group_name text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN mqdb.with_namespace(group_name, 'GROUP', (SELECT n.namespace FROM mqdb.own_namespace n));
END
$$;
COMMENT ON FUNCTION mqdb.full_group(text) IS 'The whole name of a group or a cron, as the role that is logged in names it';

CREATE FUNCTION mqdb.own_name(name text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce(mqdb.without_namespace(name, (SELECT n.namespace FROM mqdb.own_namespace n)), name);
END
$$;
COMMENT ON FUNCTION mqdb.own_name(text) IS 'The name by which the role that is logged in knows the topic or group of that whole name';

-- Names as they are shown. Two halves, for without a namespace a condition on the name has to find its index. `topic_id > 0` gives
-- the other half an index, too: clients plan by indexes only, and one scan without any makes all costs alike to PostgreSQL 15.
CREATE VIEW mqdb.named_topic WITH (security_invoker) AS
SELECT t.topic_id, t.topic FROM mqdb.topic t WHERE NOT EXISTS (SELECT FROM mqdb.own_namespace)
UNION ALL
SELECT t.topic_id, mqdb.without_namespace(t.topic, n.namespace) FROM mqdb.own_namespace n JOIN mqdb.topic t ON t.topic_id > 0;
COMMENT ON VIEW mqdb.named_topic IS 'Topics, as the role that is logged in calls them';
GRANT SELECT ON mqdb.named_topic TO PUBLIC;
