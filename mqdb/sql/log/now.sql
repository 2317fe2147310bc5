-- The only clock of the broker. Only the owner can change it, by replacing this function (`mqdb.testing`). Its body is
-- parsed when it is created, so that no search_path changes its meaning, and it can be inlined.
CREATE FUNCTION mqdb.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock_timestamp();
COMMENT ON FUNCTION mqdb.now() IS 'The clock of the broker: clock_timestamp()';

-- The start of the transaction and of the statement, by the same clock.
CREATE FUNCTION mqdb.transaction_began() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN transaction_timestamp();
COMMENT ON FUNCTION mqdb.transaction_began() IS 'Start of the transaction, by the clock of mqdb.now()';

CREATE FUNCTION mqdb.statement_began() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN statement_timestamp();
COMMENT ON FUNCTION mqdb.statement_began() IS 'Start of the statement, by the clock of mqdb.now()';
