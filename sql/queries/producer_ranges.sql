-- What rows of a partition tell about each of their producers, as rows of `producer_states` without their partition:
-- its newest batches and markers, by producer, newest first. Neighbouring batches come as one range, because their
-- rows do not say where one ended; the markers of an epoch come as one range, with the highest epoch of their
-- coordinators. `shift` tells the sequences of a range.
--
-- Placeholder: condition (which rows). Parameters: those of the condition; kept: how many ranges of a producer are
-- wanted, and how many of markers; rows: how many rows.
SELECT producer_id, producer_epoch, control, shift, first_offset, last, coordinator_epoch, append_ms
FROM
(
    SELECT
        producer_id, producer_epoch, control, toInt32(positiveModulo(offset - sequence, 2147483648)) AS shift,
        min(offset) AS first_offset, max(offset) AS last, toInt32(-1) AS coordinator_epoch,
        toUnixTimestamp64Milli(max(append_time)) AS append_ms
    FROM messages
    WHERE ${condition} AND NOT control
    GROUP BY producer_id, producer_epoch, control, shift
    UNION ALL
    SELECT
        producer_id, producer_epoch, control, toInt32(0), min(offset), max(offset),
        max(reinterpretAsInt32(reverse(substring(assumeNotNull(value), 3, 4)))), toUnixTimestamp64Milli(max(append_time))
    FROM messages
    WHERE ${condition} AND control
    GROUP BY producer_id, producer_epoch, control
)
ORDER BY producer_id, producer_epoch DESC, last DESC
LIMIT {kept:UInt8} BY producer_id, control
LIMIT {rows:UInt32};
