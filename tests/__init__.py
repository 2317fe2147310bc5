"""unit: no database. integration, migration, plan: a real PostgreSQL. acceptance: processes."""
