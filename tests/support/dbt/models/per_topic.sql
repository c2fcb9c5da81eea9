{{ config(materialized='table', order_by='topic', engine='MergeTree()') }}
SELECT topic, count() AS records FROM {{ ref('records') }} GROUP BY topic
