-- The rights of the logged-in role, for policies and views. The views run with the rights of their owner.
CREATE VIEW mqdb.own_right WITH (security_barrier) AS
SELECT a.access, a.resource_type, a.resource FROM mqdb.acl a
WHERE a.principal = session_user::text COLLATE "default"  -- a name is compared by no index
  AND NOT EXISTS (SELECT FROM mqdb.principal p WHERE p.principal = a.principal AND NOT p.is_role);
COMMENT ON VIEW mqdb.own_right IS 'Rights of the logged-in role';

-- For functions and views that run with the rights of the owner. Policies read acl_queue directly.
CREATE VIEW mqdb.own_queue WITH (security_barrier) AS
SELECT a.queue_key, a.may_send, a.may_read FROM mqdb.acl_queue a WHERE a.principal = session_user::text COLLATE "default";
COMMENT ON VIEW mqdb.own_queue IS 'Queues on which the logged-in role has a right';

CREATE VIEW mqdb.own_group WITH (security_barrier) AS
SELECT g.group_id, g.group_name
FROM mqdb.own_right a JOIN mqdb.subscription_group g ON g.group_name = a.resource
WHERE a.access = 'READ' AND a.resource_type = 'GROUP';
COMMENT ON VIEW mqdb.own_group IS 'Groups of which the logged-in role may be a member';

CREATE VIEW mqdb.seen_group WITH (security_barrier) AS
SELECT g.group_id, g.group_name
FROM mqdb.own_right a JOIN mqdb.subscription_group g ON mqdb.is_named(g.group_name, a.resource)
WHERE a.resource_type = 'GROUP';
COMMENT ON VIEW mqdb.seen_group IS 'Groups on which the logged-in role has a right, once for each right';

GRANT SELECT ON mqdb.own_right, mqdb.own_queue, mqdb.own_group, mqdb.seen_group TO PUBLIC;

