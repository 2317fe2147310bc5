CREATE FUNCTION mqdb.refuse_parameter(name text, value text, reason text) RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION '% = %: %', name, coalesce(left(value, 100), 'NULL'), reason
        USING ERRCODE = 'MQ108', DETAIL = jsonb_build_object('name', name, 'value', left(value, 100), 'reason', reason);
END
$$;
COMMENT ON FUNCTION mqdb.refuse_parameter(text, text, text) IS 'Raises the error for an invalid parameter of a function';
