-- How many statements that change the tables of the sweep are not done yet.
SELECT count()
FROM system.mutations
WHERE database = currentDatabase()
    AND table IN ('messages', 'partition_minutes', 'partition_checkpoints', 'leader_epochs') AND NOT is_done;
