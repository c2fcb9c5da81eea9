{{ config(materialized='incremental', order_by='offset', unique_key='offset') }}
SELECT offset, value FROM {{ ref('records') }}
{% if is_incremental() %} WHERE offset > (SELECT max(offset) FROM {{ this }}) {% endif %}
