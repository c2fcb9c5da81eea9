{{ config(materialized='incremental', order_by='offset', unique_key='offset', incremental_strategy='delete+insert') }}
SELECT offset, value FROM {{ ref('records') }}
