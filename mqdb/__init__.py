"""mqdb: a message broker that lives in PostgreSQL and behaves like Apache RocketMQ.

The broker's side: tables, verbs, services and the command line. Programs that send and receive
import `mqdb_client`. ARCHITECTURE.md follows one message through these modules.

    errors        every error, and what a caller can do about it
    common        the vocabulary; selector, rebalance: filters, and who gets which queue; drawing: charts
    store         nouns: tables with their statements; sql: the functions of the schema
    broker        verbs: what clients ask of a broker
    service       agents: what a broker does by itself
    pipeline      Spark
    embedded      a PostgreSQL of our own
    settings      what a user may set, and where the brokers are
    process       signals, systemd; web: metrics and health
    server        the broker process: PostgreSQL, schema, services
    fronts        what the fronts for RocketMQ's clients share
    dashboard, remoting, grpc   pages for people; the fronts for clients of RocketMQ 4 and 5
    serving       `mqdb serve`, `mqdb web`, `mqdb remoting`, `mqdb grpc`, put together
    cli           the command line
"""

__version__ = "0.1.0"
