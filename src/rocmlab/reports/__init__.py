"""What a run reports, for a user (`report.html`) and for a CI system (`junit.xml`): functions of its `results.json`."""

HTML = "report.html"
JUNIT = "junit.xml"
