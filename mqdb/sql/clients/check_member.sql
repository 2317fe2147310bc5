-- The functions that follow it change the state of a group for its members, who have no right to delete rows themselves:
-- a role that may delete in a table may lock it against everybody.
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
COMMENT ON FUNCTION mqdb.check_member(text) IS 'The id of a group; NULL if it does not exist. Raises an error for a role that may not be its member';
