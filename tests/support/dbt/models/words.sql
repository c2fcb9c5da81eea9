{{ config(materialized='ephemeral') }}
SELECT toInt32(offset) AS id, value FROM {{ ref('records') }}
