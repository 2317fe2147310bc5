-- Every decision on a right. A principal is a login role: session_user, which neither SET ROLE nor a function of its owner
-- changes. RocketMQ: AuthorizationStrategy, with deny as the default.
CREATE FUNCTION mqdb.is_owner(principal text) RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
RETURN coalesce(
    (SELECT pg_has_role(to_regrole(quote_ident(principal)), n.nspowner, 'USAGE') FROM pg_namespace n WHERE n.nspname = 'mqdb'), false);
COMMENT ON FUNCTION mqdb.is_owner(text) IS 'Whether a role owns the schema, or is a member of the role that does';

CREATE FUNCTION mqdb.is_covered(topic text, resource text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN mqdb.is_topic_of_users(topic)
    AND (resource = topic OR right(resource, 1) = '*' AND starts_with(topic, left(resource, -1)));
COMMENT ON FUNCTION mqdb.is_covered(text, text) IS 'Whether a right on a resource, a name or a prefix that ends in *, covers a topic';

CREATE FUNCTION mqdb.is_allowed(principal text, access text, resource_type text, resource text) RETURNS boolean
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF principal IS DISTINCT FROM session_user AND NOT mqdb.is_owner(session_user) THEN
        PERFORM mqdb.refuse_parameter('principal', principal, 'only the owner of the broker may ask for somebody else');
    END IF;
    -- Who has the right is not asked whose role it is.
    RETURN EXISTS (
            SELECT FROM mqdb.acl a
            WHERE a.principal = is_allowed.principal AND a.access = is_allowed.access AND a.resource_type = is_allowed.resource_type
              AND mqdb.is_covered(is_allowed.resource, a.resource))
        OR mqdb.is_owner(principal);
END
$$;
COMMENT ON FUNCTION mqdb.is_allowed(text, text, text, text) IS 'Whether a principal has a right, SEND, on a TOPIC. The owner of the schema has all of them, and may ask for anybody';
