-- For the new server of an upgrade, until `upgrade.sh finish`: partitions come and go with the rows that name them, which are replicated.
-- The services of the old server make and drop some each hour, and a row for a partition that is not there would stop the replication.
CREATE SCHEMA mqdb_upgrade;

CREATE FUNCTION mqdb_upgrade.add_partitions() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_TABLE_NAME = 'segment' THEN
        IF to_regclass('mqdb.commit_log_' || NEW.segment) IS NULL THEN
            PERFORM mqdb.add_partitions(NEW.segment, NEW.start_pos, NEW.end_pos);
        END IF;
    ELSIF to_regclass('mqdb.timer_' || NEW.slot) IS NULL THEN
        PERFORM mqdb.add_timer_slot(NEW.slot, NEW.first_ms, NEW.past_ms);
        RETURN NULL;  -- add_timer_slot has made the row
    END IF;
    RETURN NEW;
END
$$;

CREATE FUNCTION mqdb_upgrade.drop_partitions() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parent text;
BEGIN
    IF TG_TABLE_NAME = 'timer_slot' THEN
        EXECUTE format('DROP TABLE IF EXISTS mqdb.timer_%s', OLD.slot);
    ELSE
        FOREACH parent IN ARRAY ARRAY['commit_log', 'queue_run', 'message_index'] LOOP
            EXECUTE format('DROP TABLE IF EXISTS mqdb.%s_%s', parent, OLD.segment);
        END LOOP;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER upgrade_adds BEFORE INSERT ON mqdb.segment FOR EACH ROW EXECUTE FUNCTION mqdb_upgrade.add_partitions();
CREATE TRIGGER upgrade_adds BEFORE INSERT ON mqdb.timer_slot FOR EACH ROW EXECUTE FUNCTION mqdb_upgrade.add_partitions();
CREATE TRIGGER upgrade_drops AFTER DELETE ON mqdb.segment FOR EACH ROW EXECUTE FUNCTION mqdb_upgrade.drop_partitions();
CREATE TRIGGER upgrade_drops AFTER DELETE ON mqdb.timer_slot FOR EACH ROW EXECUTE FUNCTION mqdb_upgrade.drop_partitions();
ALTER TABLE mqdb.segment ENABLE REPLICA TRIGGER upgrade_adds, ENABLE REPLICA TRIGGER upgrade_drops;
ALTER TABLE mqdb.timer_slot ENABLE REPLICA TRIGGER upgrade_adds, ENABLE REPLICA TRIGGER upgrade_drops;
