"""The web application of `mqdb serve`: metrics and health, for monitors and probes.

    Rounds ◀── each loop of the process says when a round begins and what it came to
      ├── Health ──────────────▶ /healthz, /readyz
      └── BrokerCollector ─────▶ /metrics
            └── Sampler            a service: asks the database every 5 s while this process leads

No scrape or probe asks the database; pages that the server is handed (`mqdb.dashboard`) do. Only `access`,
`application`, `collector`, `families`, `process_metrics`, `proxies` and `web_server` import Starlette, uvicorn and
prometheus-client, and these modules are imported only if HTTP is served.

    loop_rounds, health, probe_report   what loops do, and what a probe says
    sampler, broker_sample, histories, time_series, live_figures   looks at the database, kept for scrapes
    collector, families, durations, bounds, process_metrics   metrics
    application, web_server             the paths, and HTTP; access, guesses, proxies: who may ask
"""
