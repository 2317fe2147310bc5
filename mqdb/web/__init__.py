"""The web application of `mqdb serve`: metrics and health, for monitors and probes.

    Rounds ◀── each loop of the process reports the start and the result of its rounds
      ├── Health ──────────────▶ /healthz, /readyz
      └── BrokerCollector ─────▶ /metrics
            └── Sampler            a service: queries the database every 5 s while this process leads

Scrapes and probes never query the database; only the pages of a dashboard do (`mqdb.dashboard`). Only `access`,
`application`, `collector`, `families`, `process_metrics`, `proxies` and `web_server` import Starlette, uvicorn and
prometheus-client, and these modules are imported only if HTTP is served.

    loop_rounds, health, probe_report   the state of loops, and the answers to probes
    sampler, broker_sample, histories, time_series, live_figures   samples of the database, kept for scrapes
    collector, families, durations, bounds, process_metrics   metrics
    application, web_server             the paths, and HTTP
    access, guesses, proxies            the control of access
"""
