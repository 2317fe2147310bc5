"""The URI of a session that reads for Spark: the user's URI with mqdb's settings added."""

from psycopg.conninfo import conninfo_to_dict

from mqdb.pipeline.read.engines import session_uri

OURS = {"options", "application_name", "connect_timeout", "keepalives_idle", "keepalives_interval", "keepalives_count"}


def test_what_the_user_has_said_means_the_same_beside_the_settings() -> None:
    dsn = "postgresql://o%20%40%3A%2F%23%25:p%25%2Bw@h1,h2:5433/d%20%2F%3F?password=a+b%2Bc&sslmode=require"

    read = conninfo_to_dict(session_uri(dsn))

    assert {name: value for name, value in read.items() if name not in OURS} == conninfo_to_dict(dsn)


def test_options_of_the_user_stay_and_win_but_for_what_mqdb_relies_on() -> None:
    read = conninfo_to_dict(session_uri("postgresql://h/d?options=-c%20work_mem%3Da+b%20-c%20DateStyle%3DGerman"))

    options = str(read["options"])
    assert options.index("work_mem=32MB") < options.index("work_mem=a+b")
    assert options.index("DateStyle=German") < options.index("DateStyle=ISO")
