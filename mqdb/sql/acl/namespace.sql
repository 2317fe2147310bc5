-- Namespaces. A principal may have one. In that case, topics and groups that it names belong to its namespace, and are
-- shown to it without the namespace. Names are stored in full, as `shop%orders`, like in RocketMQ's clients
-- (NamespaceUtil). Rights, services and message properties therefore need not handle namespaces, and a name without its
-- namespace matches nothing. The rights of a principal with a namespace are inside it (`mqdb.acl`).
CREATE VIEW mqdb.own_namespace WITH (security_barrier) AS
SELECT p.namespace FROM mqdb.principal p
WHERE p.principal = session_user::text COLLATE "default" AND p.is_role AND p.namespace IS NOT NULL;
COMMENT ON VIEW mqdb.own_namespace IS 'Namespace of the logged-in role; a role without a namespace has no row';
GRANT SELECT ON mqdb.own_namespace TO PUBLIC;

-- A name that contains a % is already complete, whether it belongs to this namespace or to another one.
CREATE FUNCTION mqdb.with_namespace(name text, resource_type text, namespace text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN namespace IS NULL THEN name
    WHEN resource_type = 'GROUP' THEN regexp_replace(name, '^([^%]+)$', namespace || E'%\\1')
    WHEN left(name, 1) = '%' OR mqdb.is_topic_of_users(name)
    THEN regexp_replace(name, '^(%RETRY%|%DLQ%)?([^%]+)$', E'\\1' || namespace || E'%\\2')
    ELSE name END;
COMMENT ON FUNCTION mqdb.with_namespace(text, text, text) IS 'The full name of a TOPIC or a GROUP; topics of the broker belong to no namespace (NamespaceUtil.wrapNamespace)';

CREATE FUNCTION mqdb.without_namespace(name text, namespace text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN regexp_replace(name, '^(%RETRY%|%DLQ%)?' || namespace || '%', E'\\1');
COMMENT ON FUNCTION mqdb.without_namespace(text, text) IS 'The name of a topic or a group within a namespace; NULL if the namespace is NULL (NamespaceUtil.withoutNamespace)';

CREATE FUNCTION mqdb.full_topic(topic text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN mqdb.with_namespace(topic, 'TOPIC', (SELECT n.namespace FROM mqdb.own_namespace n));
END
$$;
COMMENT ON FUNCTION mqdb.full_topic(text) IS 'The full name of a topic that the logged-in role names';

CREATE FUNCTION mqdb.full_group(group_name text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN mqdb.with_namespace(group_name, 'GROUP', (SELECT n.namespace FROM mqdb.own_namespace n));
END
$$;
COMMENT ON FUNCTION mqdb.full_group(text) IS 'The full name of a group or a cron that the logged-in role names';

CREATE FUNCTION mqdb.own_name(name text) RETURNS text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce(mqdb.without_namespace(name, (SELECT n.namespace FROM mqdb.own_namespace n)), name);
END
$$;
COMMENT ON FUNCTION mqdb.own_name(text) IS 'The name by which the logged-in role knows a topic or group with this full name';

-- Names as they are shown to the role. The view has two halves, because without a namespace a condition on the name has
-- to find its index. `topic_id > 0` gives the other half an index, too: clients plan with indexes only, and for
-- PostgreSQL 15 a single scan without an index makes all costs equal.
CREATE VIEW mqdb.named_topic WITH (security_invoker) AS
SELECT t.topic_id, t.topic FROM mqdb.topic t WHERE NOT EXISTS (SELECT FROM mqdb.own_namespace)
UNION ALL
SELECT t.topic_id, mqdb.without_namespace(t.topic, n.namespace) FROM mqdb.own_namespace n JOIN mqdb.topic t ON t.topic_id > 0;
COMMENT ON VIEW mqdb.named_topic IS 'Topics with their names as the logged-in role knows them';
GRANT SELECT ON mqdb.named_topic TO PUBLIC;
