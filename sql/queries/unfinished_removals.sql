-- How many statements that change the log are not done yet, and why one of them has failed.
SELECT count(), max(latest_fail_reason)
FROM system.mutations
WHERE database = currentDatabase() AND table = 'messages' AND NOT is_done;
