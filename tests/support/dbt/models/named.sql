{{ config(materialized='table', contract={'enforced': true}) }}
SELECT toInt32(words.id) AS id, names.name AS name FROM {{ ref('words') }} AS words INNER JOIN {{ ref('names') }} AS names ON names.id = words.id
