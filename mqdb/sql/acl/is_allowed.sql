-- All decisions on rights. A principal is a login role: session_user, which is changed neither by SET ROLE nor by a
-- function with its owner's rights. RocketMQ: AuthorizationStrategy, with deny as the default.
--
-- is_owner is in plpgsql for its plan: a function in SQL would plan its query again in each statement.
CREATE FUNCTION mqdb.is_owner(principal text) RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce(
        (SELECT pg_has_role(to_regrole(quote_ident(principal)), n.nspowner, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'mqdb'), false);
END
$$;
COMMENT ON FUNCTION mqdb.is_owner(text) IS 'Whether a role owns the schema, or is a member of the role that owns it';

-- A prefix without a % covers no names in namespaces.
CREATE FUNCTION mqdb.is_named(name text, resource text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN resource = name
    OR right(resource, 1) = '*' AND starts_with(name, left(resource, -1)) AND (strpos(name, '%') = 0 OR strpos(resource, '%') > 0);
COMMENT ON FUNCTION mqdb.is_named(text, text) IS 'Whether a resource of a right, which is a name or a prefix ending in *, covers the name of a topic or group';

CREATE FUNCTION mqdb.is_covered(topic text, resource_type text, resource text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN resource_type = 'TOPIC' THEN mqdb.is_topic_of_users(topic) AND mqdb.is_named(topic, resource)
    WHEN starts_with(topic, mqdb.retry_prefix()) THEN mqdb.is_named(substr(topic, length(mqdb.retry_prefix()) + 1), resource)
    ELSE starts_with(topic, mqdb.dlq_prefix()) AND mqdb.is_named(substr(topic, length(mqdb.dlq_prefix()) + 1), resource) END;
COMMENT ON FUNCTION mqdb.is_covered(text, text, text) IS 'Whether a right covers a topic: a right on a TOPIC, or a right on a GROUP, which covers the two topics of that group';

CREATE FUNCTION mqdb.is_allowed(principal text, access text, resource_type text, resource text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    its mqdb.principal;
BEGIN
    IF principal IS DISTINCT FROM session_user AND NOT mqdb.is_owner(session_user) THEN
        PERFORM mqdb.refuse_parameter('principal', principal, 'only the owner of the broker may ask for another role');
    END IF;
    SELECT * INTO its FROM mqdb.principal p WHERE p.principal = is_allowed.principal;
    resource := mqdb.with_namespace(resource, resource_type, its.namespace);
    -- Rights are checked first, because checking role membership costs more. A role never gets the rights of an
    -- external principal with the same name.
    RETURN EXISTS (
            SELECT FROM mqdb.acl a
            WHERE a.principal = is_allowed.principal AND a.access = is_allowed.access
              AND (its.is_role IS NOT FALSE OR is_allowed.principal IS DISTINCT FROM session_user)
              AND CASE is_allowed.resource_type
                  WHEN 'TOPIC' THEN mqdb.is_covered(is_allowed.resource, a.resource_type, a.resource)
                  ELSE a.resource_type = is_allowed.resource_type AND mqdb.is_named(is_allowed.resource, a.resource) END)
        OR its.is_role IS NOT FALSE AND mqdb.is_owner(principal);
END
$$;
COMMENT ON FUNCTION mqdb.is_allowed(text, text, text, text) IS 'Whether a principal, which need not be a role, has a right: SEND, READ, OPERATE or ADMIN on a TOPIC; READ (membership), OPERATE or ADMIN on a GROUP. The owner of the schema has all rights, and may ask about any principal';

CREATE FUNCTION mqdb.check_right(access text, resource_type text, resource text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF mqdb.is_allowed(session_user, access, resource_type, coalesce(resource, '')) IS NOT TRUE THEN
        resource := CASE resource_type WHEN 'GROUP' THEN mqdb.full_group(resource) ELSE mqdb.full_topic(resource) END;
        RAISE EXCEPTION '"%" has no right % on % "%"; the owner of the broker grants it with: mqdb acl grant',
            session_user, access, lower(resource_type), resource
            USING ERRCODE = 'MQ204', DETAIL = jsonb_build_object(
                'principal', session_user, 'access', access, 'resource_type', resource_type, 'resource', coalesce(resource, ''));
    END IF;
END
$$;
COMMENT ON FUNCTION mqdb.check_right(text, text, text) IS 'Raises an error unless the logged-in role has this right';
