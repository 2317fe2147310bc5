CREATE FUNCTION mqdb.refuse_sealed() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'position % lies in sealed segment %; send again', NEW.log_pos, TG_TABLE_NAME
        USING ERRCODE = 'MQ401', DETAIL = jsonb_build_object('log_pos', NEW.log_pos, 'segment', TG_TABLE_NAME);
END
$$;
COMMENT ON FUNCTION mqdb.refuse_sealed() IS 'Trigger function for sealed segments: a record that comes too late is refused, and never lost';
