-- Removes what was stored of open transactions of topics that are deleted.
--
-- Placeholder: settings.
ALTER TABLE open_transaction_versions DELETE
WHERE topic_id IN (SELECT topic_id FROM topic_versions FINAL WHERE state = 'deleted')
SETTINGS ${settings};
