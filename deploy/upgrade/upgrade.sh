#!/usr/bin/env bash
# Moves the database of a broker to a newer PostgreSQL by logical replication. docs/upgrade.md says when to run which step.
#
#   upgrade.sh check    says what stands in the way; changes nothing
#   upgrade.sh begin    copies the schema and begins to copy the rows, while clients and services work on
#   upgrade.sh wait     waits until all tables are copied
#   upgrade.sh finish   closes the old database to writes, waits for the last row, ends the replication
#   upgrade.sh compare  counts the rows of both sides
#   upgrade.sh abandon  before `finish`: removes what `begin` has made on the old server
#
# OLD and NEW are connection strings of superusers, for the database on the old and on the new server. The new server uses
# OLD as well. psql and pg_dump of the newer version have to come first in PATH.
set -euo pipefail

step=${1:-}
: "${OLD:?is the connection string of the old database}" "${NEW:?is the connection string of the new database}"
here=$(dirname "$(readlink -f "$0")")

ask() { PGOPTIONS="${PGOPTIONS:-} -c client_min_messages=warning" psql --no-psqlrc --quiet --no-align --tuples-only --set=ON_ERROR_STOP=1 --dbname="$@"; }
stop() { echo "upgrade.sh $step: $*" >&2; exit 1; }

# The names of all tables that a publication FOR ALL TABLES has.
tables="SELECT format('%I.%I', n.nspname, c.relname) AS name FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind = 'r' AND c.relpersistence = 'p' AND n.nspname !~ '^pg_' AND n.nspname <> ALL ('{information_schema,mqdb_upgrade}')"

check() {
    [ "$(ask "$OLD" -c 'SHOW wal_level')" = logical ] || stop "wal_level of the old server is not logical; set it and restart the server"
    [ "$(ask "$NEW" -c 'SHOW server_encoding')" = UTF8 ] || stop "the encoding of the new database is not UTF8"
    [ "$(ask "$OLD" -c 'SELECT system_identifier FROM pg_control_system()')" != \
      "$(ask "$NEW" -c 'SELECT system_identifier FROM pg_control_system()')" ] || stop "OLD and NEW lead to the same server"
    local without
    without=$(ask "$OLD" -c "SELECT name FROM ($tables AND NOT (c.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid
        AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident END))) t ORDER BY 1")
    [ -z "$without" ] || stop "these tables have no replica identity, and could not be updated any more; ALTER TABLE ... REPLICA IDENTITY FULL:
$without"
    without=$(ask "$OLD" -c "SELECT DISTINCT pg_get_userbyid(relowner) FROM pg_class c JOIN ($tables) t ON c.oid = t.name::regclass ORDER BY 1" |
        while read -r role; do ask "$NEW" --set=role="$role" <<< "SELECT :'role' WHERE to_regrole(quote_ident(:'role')) IS NULL"; done)
    [ -z "$without" ] || stop "the new server lacks the roles: $without"
}

begin() {
    check
    [ -z "$(ask "$NEW" -c "SELECT to_regnamespace('mqdb')")" ] || stop "the new database has a schema mqdb already; give an empty database"
    ask "$OLD" -c "CREATE PUBLICATION mqdb_upgrade FOR ALL TABLES"
    pg_dump --schema-only --no-publications --no-subscriptions --dbname="$OLD" | ask "$NEW" --single-transaction > /dev/null
    ask "$NEW" --file="$here/partitions.sql"
    # Waits for transactions that are open on the old server.
    ask "$NEW" --set=old="$OLD" <<< "CREATE SUBSCRIPTION mqdb_upgrade CONNECTION :'old' PUBLICATION mqdb_upgrade" ||
        stop "if a relation does not exist, the old server has made a partition in this moment: abandon, make the new database again, and begin"
}

tell_errors() {
    ask "$NEW" -c "SELECT format('the new server has failed %s times, and tries again; its log says why', apply_error_count + sync_error_count)
        FROM pg_stat_subscription_stats WHERE subname = 'mqdb_upgrade' AND apply_error_count + sync_error_count > 0"
}

wait_() {
    local left
    while true; do
        # Partitions that were made and dropped since. One that the old server has just made may not be there yet.
        if ! ask "$NEW" -c "ALTER SUBSCRIPTION mqdb_upgrade REFRESH PUBLICATION"; then
            tell_errors
            sleep 2
            continue
        fi
        left=$(ask "$NEW" -c "SELECT string_agg(srrelid::regclass::text, ' ') FROM pg_subscription_rel WHERE srsubstate <> 'r'")
        [ -n "$left" ] || break
        echo "still to be copied: $left"
        tell_errors
        sleep 2
    done
}

finish() {
    [ -z "$(ask "$OLD" -c "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")" ] || stop "the old database has prepared transactions; end them"
    # From here on a session of the old database can only read, and whoever is connected has to connect again.
    ask "$OLD" -c "DO \$\$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_read_only = on', current_database()); END \$\$"
    ask "$OLD" -c "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()" > /dev/null
    while [ "$(ask "$OLD" -c "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_xid IS NOT NULL")" != 0 ]; do sleep 1; done
    local last
    last=$(ask "$OLD" -c "SELECT pg_current_wal_lsn()")
    wait_
    until [ "$(ask "$OLD" -c "SELECT confirmed_flush_lsn >= '$last' FROM pg_replication_slots WHERE slot_name = 'mqdb_upgrade'")" = t ]; do
        echo "the new server does not have all changes yet"
        tell_errors
        sleep 2
    done
    # Replication carries no values of sequences. Some are no numbers: the new dispatcher begins awake.
    ask "$OLD" -c "SELECT format('SELECT setval(%L, %s);', format('%I.%I', schemaname, sequencename), last_value) FROM pg_sequences
        WHERE last_value IS NOT NULL AND NOT (schemaname = 'mqdb' AND sequencename IN ('dispatcher_state', 'placed', 'placed_from'))" | ask "$NEW" > /dev/null
    ask "$NEW" -c "DROP SUBSCRIPTION mqdb_upgrade" -c "DROP SCHEMA mqdb_upgrade CASCADE"
    ask "$OLD" -c "SET default_transaction_read_only = off" -c "DROP PUBLICATION mqdb_upgrade"
    echo "the new database is complete; start mqdb serve on it, then the clients. Gathering statistics..."
    ask "$NEW" -c "ANALYZE"
}

compare() {
    local counts="SELECT format('SELECT %L, count(*) FROM %s', name, name) FROM ($tables) t \\gexec"
    local on_old on_new missing
    on_old=$(ask "$OLD" <<< "$counts" | LC_ALL=C sort)
    on_new=$(ask "$NEW" <<< "$counts" | LC_ALL=C sort)
    # The new server may still have a partition that the old one has dropped; its segment keeper drops it.
    missing=$(LC_ALL=C comm -23 <(echo "$on_old") <(echo "$on_new"))
    [ -z "$missing" ] || stop "the new server does not have these numbers of rows:
$missing"
    echo "the new server has all rows"
}

abandon() {
    ask "$NEW" -c "DROP SUBSCRIPTION IF EXISTS mqdb_upgrade"
    ask "$OLD" -c "DROP PUBLICATION IF EXISTS mqdb_upgrade"
}

case $step in
    check | begin | finish | compare | abandon) "$step" ;;
    wait) wait_ ;;
    *) stop "is no step; give check, begin, wait, finish, compare or abandon" ;;
esac
