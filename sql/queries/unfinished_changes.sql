-- How many statements that change the log are not done yet.
SELECT count()
FROM system.mutations
WHERE database = currentDatabase() AND table = 'messages' AND NOT is_done;
