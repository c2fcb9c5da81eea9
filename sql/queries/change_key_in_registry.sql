-- Changes a key in the registry of a cluster, if it is still as expected.
--
-- Placeholders: table, settings; as_expected (the condition); kept (the length of the marks of earlier writes that the
-- value keeps). Parameters: value; mark (of this write); those of the condition.
ALTER TABLE ${table}
UPDATE value = concat({mark:String}, substring(value, 1, ${kept}), {value:String})
WHERE ${as_expected}
${settings};
