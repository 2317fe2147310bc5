-- The functions in the following files change the state of a group for its members, who have no right to delete rows
-- themselves: a role that may delete from a table may lock it against everyone.
CREATE FUNCTION mqdb.check_member(group_name text) RETURNS integer
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    check_member.group_name := mqdb.full_group(check_member.group_name);
    PERFORM mqdb.check_right('READ', 'GROUP', check_member.group_name);
    RETURN (SELECT g.group_id FROM mqdb.subscription_group g WHERE g.group_name = check_member.group_name);
END
$$;
COMMENT ON FUNCTION mqdb.check_member(text) IS 'The id of a group; NULL if it does not exist. Raises an error if the logged-in role may not be a member';
