-- The one clock of the broker. Nobody can move it but the owner, who may replace this function (`mqdb.testing`).
-- Its body is parsed when it is made, so that no search_path changes what it means, and it can be inlined.
CREATE FUNCTION mqdb.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN clock_timestamp();
COMMENT ON FUNCTION mqdb.now() IS 'The clock of the broker: clock_timestamp()';

-- When the transaction and the statement began, by the same clock.
CREATE FUNCTION mqdb.transaction_began() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN transaction_timestamp();
COMMENT ON FUNCTION mqdb.transaction_began() IS 'Start of the transaction, by mqdb.now()';

CREATE FUNCTION mqdb.statement_began() RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
RETURN statement_timestamp();
COMMENT ON FUNCTION mqdb.statement_began() IS 'Start of the statement, by mqdb.now()';
