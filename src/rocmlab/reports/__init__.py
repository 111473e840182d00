"""What a run reports, for a user (`report.html`) and for a CI system (`junit.xml`): functions of its `results.json`."""

HTML = "report.html"
JUNIT = "junit.xml"
SCHEMA_VERSION = 1  # `schema` in `results.json`; the schema, in `results.schema.json`, documents when it changes
NO_FAILURE = ("ok", "skipped")  # statuses of a job
