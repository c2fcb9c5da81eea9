-- The views that have failed and were not repaired, and how far that has come.
--
-- Placeholders: database (of the table), ended (the state of those that were repaired).
SELECT database, view, state FROM ${database}.failed_view_versions FINAL WHERE state != '${ended}';
