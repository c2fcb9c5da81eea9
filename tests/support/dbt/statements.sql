-- What dbt 1.11 with dbt-clickhouse 1.10 sends for this project: `dbt debug`, `dbt build` twice, and
-- `dbt docs generate`, in the order of their arrival. A proxy recorded it. Of a
-- statement that only reads, the last repetition is kept; empty lines and random parts of names are
-- removed. A line of dashes ends a statement.
--------
SELECT version(), timezone()
--------
SELECT name, value, readonly FROM system.settings LIMIT 10000
 FORMAT Native
--------
SELECT 1 AS check
 FORMAT Native
--------
EXISTS DATABASE `shop`
--------
CREATE DATABASE IF NOT EXISTS `shop`
--------
SET allow_nondeterministic_mutations = 1
--------
SELECT engine FROM system.databases WHERE name = database()
--------
CREATE TABLE IF NOT EXISTS `__dbt_exchange_test_0` (test String) ENGINE MergeTree() ORDER BY tuple()
--------
CREATE TABLE IF NOT EXISTS `__dbt_exchange_test_1` (test String) ENGINE MergeTree() ORDER BY tuple()
--------
EXCHANGE TABLES __dbt_exchange_test_0 AND __dbt_exchange_test_1
--------
DROP TABLE IF EXISTS __dbt_exchange_test_0
--------
DROP TABLE IF EXISTS __dbt_exchange_test_1
--------
select 1 as id
--------
/* model.shop.records */
  create or replace view `shop`.`records`
  as (
SELECT topic, offset, value FROM brokerhouse.messages WHERE topic = 'kept'
  )
                    -- end_of_sql
--------
/* model.shop.as_they_come */
        create table `shop`.`as_they_come`
  engine = MergeTree()
        order by (offset)
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
          empty
          as (
SELECT offset, value FROM brokerhouse.messages WHERE topic = 'kept'
          )
--------
/* model.shop.as_they_come */
    select name, type from system.columns where table = 'as_they_come'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.as_they_come */
  insert into `shop`.`as_they_come`
        ("offset", "value")
SELECT offset, value FROM brokerhouse.messages WHERE topic = 'kept'
--------
/* seed.shop.names */
    create table `shop`.`names`
   ("id" Int32,"name" String)
  engine = MergeTree()
      order by (tuple())
--------
/* model.shop.as_they_come */
create materialized view if not exists `shop`.`as_they_come_mv`
    to `shop`.`as_they_come`
    as
SELECT offset, value FROM brokerhouse.messages WHERE topic = 'kept'
--------
/* seed.shop.names */
insert into `shop`.`names` ("id", "name")
      format CSV
      1,one
2,two
--------
/* model.shop.newest */
        create table `shop`.`newest`
  engine = MergeTree()
        order by (offset)
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
          empty
          as (
SELECT offset, value FROM `shop`.`records`
          )
--------
/* model.shop.per_topic */
        create table `shop`.`per_topic`
  engine = MergeTree()
        order by (topic)
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
          empty
          as (
SELECT topic, count() AS records FROM `shop`.`records` GROUP BY topic
          )
--------
/* model.shop.per_topic */
    select name, type from system.columns where table = 'per_topic'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.newest */
  insert into `shop`.`newest`
        ("offset", "value")
SELECT offset, value FROM `shop`.`records`
--------
/* model.shop.per_topic */
  insert into `shop`.`per_topic`
        ("topic", "records")
SELECT topic, count() AS records FROM `shop`.`records` GROUP BY topic
--------
/* snapshot.shop.names_over_time */
        select name, engine, comment
        from system.databases
        where name = 'shop'
 FORMAT Native
--------
/* snapshot.shop.names_over_time */
        create table `shop`.`names_over_time`
  engine = MergeTree()
      order by (tuple())
                    -- end_of_sql
          empty
          as (
    select *,
        halfMD5(coalesce(cast(id as varchar ), '')
     || '|' || coalesce(cast(
    now()
 as varchar ), '')
    ) as dbt_scd_id,
    now()
 as dbt_updated_at,
    now()
 as dbt_valid_from,
  coalesce(nullif(
    now()
,
    now()
), null)
  as dbt_valid_to
from (
        select * from `shop`.`names`
    ) sbq
          )
--------
/* model.shop.replaced */
        create table `shop`.`replaced`
  engine = MergeTree()
        order by (offset)
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
          empty
          as (
SELECT offset, value FROM `shop`.`records`
          )
--------
SELECT * FROM (
select * from (
    select *,
        halfMD5(coalesce(cast(id as varchar ), '')
     || '|' || coalesce(cast(
    now()
 as varchar ), '')
    ) as dbt_scd_id,
    now()
 as dbt_updated_at,
    now()
 as dbt_valid_from,
  coalesce(nullif(
    now()
,
    now()
), null)
  as dbt_valid_to
from (
        select * from `shop`.`names`
    ) sbq
    ) as __dbt_sbq
    where false
    limit 0
) LIMIT 0
 FORMAT JSON
--------
/* model.shop.replaced */
  insert into `shop`.`replaced`
        ("offset", "value")
SELECT offset, value FROM `shop`.`records`
--------
/* snapshot.shop.names_over_time */
  insert into `shop`.`names_over_time`
        ("id", "name", "dbt_scd_id", "dbt_updated_at", "dbt_valid_from", "dbt_valid_to")
    select *,
        halfMD5(coalesce(cast(id as varchar ), '')
     || '|' || coalesce(cast(
    now()
 as varchar ), '')
    ) as dbt_scd_id,
    now()
 as dbt_updated_at,
    now()
 as dbt_valid_from,
  coalesce(nullif(
    now()
,
    now()
), null)
  as dbt_valid_to
from (
        select * from `shop`.`names`
    ) sbq
--------
/* model.shop.named */
        create table `shop`.`named`
  (
    `id` Int32,
    `name` String
    )
  engine = MergeTree()
      order by (tuple())
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
--------
/* model.shop.named */
    select name, type from system.columns where table = 'named'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.named */
  insert into `shop`.`named`
        ("id", "name")-- Use a subquery to get columns in the right order
          SELECT "id", "name"
          FROM (
with __dbt__cte__words as (
SELECT toInt32(offset) AS id, value FROM `shop`.`records`
) SELECT toInt32(words.id) AS id, names.name AS name FROM `__dbt__cte__words` AS words INNER JOIN `shop`.`names` AS names ON names.id = words.id
            )
--------
/* list_ */
    select name from system.databases
 FORMAT Native
--------
/* model.shop.as_they_come */
    select name
    from system.tables
    where engine = 'MaterializedView'
      and extract(create_table_query, 'TO\\s+([^\\s(]+)') = 'shop.as_they_come'
 FORMAT Native
--------
/* model.shop.records */
    select name
    from system.tables
    where engine = 'MaterializedView'
      and extract(create_table_query, 'TO\\s+([^\\s(]+)') = 'shop.records'
 FORMAT Native
--------
/* model.shop.as_they_come */
select 1
--------
/* model.shop.records */
  create or replace view `shop`.`records`
  as (
SELECT topic, offset, value FROM brokerhouse.messages WHERE topic = 'kept'
  )
                    -- end_of_sql
--------
/* model.shop.as_they_come */
alter table `shop`.`as_they_come_mv`
   modify query
SELECT offset, value FROM brokerhouse.messages WHERE topic = 'kept'
--------
/* model.shop.as_they_come */
drop table if exists `shop`.`as_they_come__dbt_backup`
--------
/* seed.shop.names */
truncate table `shop`.`names`
--------
/* seed.shop.names */
insert into `shop`.`names` ("id", "name")
      format CSV
      1,one
2,two
--------
/* model.shop.newest */
drop table if exists `shop`.`newest__dbt_new_data`
--------
/* model.shop.per_topic */
        create table `shop`.`per_topic__dbt_backup`
  engine = MergeTree()
        order by (topic)
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
          empty
          as (
SELECT topic, count() AS records FROM `shop`.`records` GROUP BY topic
          )
--------
/* model.shop.per_topic */
    select name, type from system.columns where table = 'per_topic__dbt_backup'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.newest */
        create table `shop`.`newest__dbt_new_data`
  engine = MergeTree()
        order by (offset)
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
          empty
          as (
SELECT offset, value FROM `shop`.`records`
 WHERE offset > (SELECT max(offset) FROM `shop`.`newest`)
          )
--------
/* model.shop.newest */
    select name, type from system.columns where table = 'newest__dbt_new_data'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.per_topic */
  insert into `shop`.`per_topic__dbt_backup`
        ("topic", "records")
SELECT topic, count() AS records FROM `shop`.`records` GROUP BY topic
--------
/* model.shop.newest */
  insert into `shop`.`newest__dbt_new_data`
        ("offset", "value")
SELECT offset, value FROM `shop`.`records`
 WHERE offset > (SELECT max(offset) FROM `shop`.`newest`)
--------
/* model.shop.per_topic */
EXCHANGE TABLES `shop`.`per_topic__dbt_backup` AND `shop`.`per_topic`
--------
/* model.shop.per_topic */
drop table if exists `shop`.`per_topic__dbt_backup`
--------
/* model.shop.newest */
          create table `shop`.`newest__dbt_tmp`
   as `shop`.`newest__dbt_new_data`
--------
/* model.shop.newest */
    select name, type from system.columns where table = 'newest'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.replaced */
drop table if exists `shop`.`replaced__dbt_new_data_1`
--------
/* model.shop.newest */
        insert into `shop`.`newest__dbt_tmp` ("offset", "value")
        select "offset", "value"
        from `shop`.`newest`
          where (offset) not in (
            select offset
            from `shop`.`newest__dbt_new_data`
          )
--------
/* model.shop.newest */
     insert into `shop`.`newest__dbt_tmp` ("offset", "value")
        select "offset", "value"
        from `shop`.`newest__dbt_new_data`
--------
/* model.shop.replaced */
        create table `shop`.`replaced__dbt_new_data_1`
  engine = MergeTree()
        order by (offset)
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
          empty
          as (
SELECT offset, value FROM `shop`.`records`
          )
--------
/* model.shop.newest */
drop table if exists `shop`.`newest__dbt_new_data`
--------
/* model.shop.replaced */
    select name, type from system.columns where table = 'replaced__dbt_new_data_1'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.newest */
    drop table if exists `shop`.`newest__dbt_backup`
--------
/* model.shop.newest */
    rename table `shop`.`newest__dbt_tmp` to `shop`.`newest__dbt_backup`
--------
/* model.shop.replaced */
  insert into `shop`.`replaced__dbt_new_data_1`
        ("offset", "value")
SELECT offset, value FROM `shop`.`records`
--------
/* model.shop.newest */
EXCHANGE TABLES `shop`.`newest__dbt_backup` AND `shop`.`newest`
--------
/* model.shop.replaced */
            delete from `shop`.`replaced` where (offset) in (select offset
                                          from `shop`.`replaced__dbt_new_data_1`)
--------
/* model.shop.replaced */
    select name, type from system.columns where table = 'replaced'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.newest */
drop table if exists `shop`.`newest__dbt_backup`
--------
/* model.shop.replaced */
        insert into `shop`.`replaced` select "offset", "value" from `shop`.`replaced__dbt_new_data_1`
--------
/* snapshot.shop.names_over_time */
select * from (
        select * from `shop`.`names`
    ) as __dbt_sbq
    limit 0
 FORMAT JSON
--------
/* model.shop.replaced */
drop table if exists `shop`.`replaced__dbt_new_data_1`
--------
/* model.shop.replaced */
drop table if exists `shop`.`replaced__dbt_distributed_new_data`
--------
/* test.shop.accepted_values_per_topic_records__False__10.f44c3561fa */
    select
      count(*) as failures,
      count(*) != 0 as should_warn,
      count(*) != 0 as should_error
    from (
with all_values as (
    select
        records as value_field,
        count(*) as n_records
    from `shop`.`per_topic`
    group by records
)
select *
from all_values
where value_field not in (
    10
)
    ) dbt_internal_test
 FORMAT Native
--------
/* snapshot.shop.names_over_time */
drop table if exists `shop`.`names_over_time__dbt_tmp`
--------
/* test.shop.not_null_per_topic_topic.ed946b39ef */
    select
      count(*) as failures,
      count(*) != 0 as should_warn,
      count(*) != 0 as should_error
    from (
select topic
from `shop`.`per_topic`
where topic is null
    ) dbt_internal_test
 FORMAT Native
--------
/* snapshot.shop.names_over_time */
        create table `shop`.`names_over_time__dbt_tmp`
  engine = MergeTree()
      order by (tuple())
                    -- end_of_sql
          empty
          as (
        with snapshot_time as (
        select
    now()
 as ts  -- Single timestamp
    ),
        snapshot_query as (
        select * from `shop`.`names`
    ),
    snapshotted_data as (
        select *,
            id as dbt_unique_key
        from `shop`.`names_over_time`
        where dbt_valid_to is null
    ),
    insertions_source_data as (
        select
            *,
            id as dbt_unique_key,
            snapshot_time.ts as dbt_updated_at,
            snapshot_time.ts as dbt_valid_from,
            nullif(snapshot_time.ts, snapshot_time.ts) as dbt_valid_to,
            halfMD5(coalesce(cast(id as varchar ), '')
     || '|' || coalesce(cast(
    now()
 as varchar ), '')
    ) as dbt_scd_id
        from snapshot_query, snapshot_time
    ),
    updates_source_data as (
        select
            *,
            id as dbt_unique_key,
            snapshot_time.ts as dbt_updated_at,
            snapshot_time.ts as dbt_valid_from,
            snapshot_time.ts as dbt_valid_to
        from snapshot_query, snapshot_time
    ),
    insertions as (
        select
            'insert' as dbt_change_type,
            source_data.*
        from insertions_source_data as source_data
        left outer join snapshotted_data on snapshotted_data.dbt_unique_key = source_data.dbt_unique_key
        where snapshotted_data.dbt_unique_key is null
           or (
                snapshotted_data.dbt_unique_key is not null
            and (
                (snapshotted_data."id" != source_data."id"
        or
        (
            ((snapshotted_data."id" is null) and not (source_data."id" is null))
            or
            ((not snapshotted_data."id" is null) and (source_data."id" is null))
        ) or snapshotted_data."name" != source_data."name"
        or
        (
            ((snapshotted_data."name" is null) and not (source_data."name" is null))
            or
            ((not snapshotted_data."name" is null) and (source_data."name" is null))
        ))
            )
        )
    ),
    updates as (
        select
            'update' as dbt_change_type,
            source_data.*,
            snapshotted_data.dbt_scd_id
        from updates_source_data as source_data
        join snapshotted_data on snapshotted_data.dbt_unique_key = source_data.dbt_unique_key
        where (
            (snapshotted_data."id" != source_data."id"
        or
        (
            ((snapshotted_data."id" is null) and not (source_data."id" is null))
            or
            ((not snapshotted_data."id" is null) and (source_data."id" is null))
        ) or snapshotted_data."name" != source_data."name"
        or
        (
            ((snapshotted_data."name" is null) and not (source_data."name" is null))
            or
            ((not snapshotted_data."name" is null) and (source_data."name" is null))
        ))
        )
    )
    select * EXCEPT (ts) from insertions
    union all
    select * EXCEPT (ts) from updates
          )
--------
/* test.shop.unique_per_topic_topic.7883a204ad */
    select
      count(*) as failures,
      count(*) != 0 as should_warn,
      count(*) != 0 as should_error
    from (
select
    topic as unique_field,
    count(*) as n_records
from `shop`.`per_topic`
where topic is not null
group by topic
having count(*) > 1
    ) dbt_internal_test
 FORMAT Native
--------
/* test.shop.unique_newest_offset.d6ceb8332f */
    select
      count(*) as failures,
      count(*) != 0 as should_warn,
      count(*) != 0 as should_error
    from (
select
    offset as unique_field,
    count(*) as n_records
from `shop`.`newest`
where offset is not null
group by offset
having count(*) > 1
    ) dbt_internal_test
 FORMAT Native
--------
/* snapshot.shop.names_over_time */
  insert into `shop`.`names_over_time__dbt_tmp`
        ("dbt_change_type", "id", "name", "dbt_unique_key", "dbt_updated_at", "dbt_valid_from", "dbt_valid_to", "dbt_scd_id")
        with snapshot_time as (
        select
    now()
 as ts  -- Single timestamp
    ),
        snapshot_query as (
        select * from `shop`.`names`
    ),
    snapshotted_data as (
        select *,
            id as dbt_unique_key
        from `shop`.`names_over_time`
        where dbt_valid_to is null
    ),
    insertions_source_data as (
        select
            *,
            id as dbt_unique_key,
            snapshot_time.ts as dbt_updated_at,
            snapshot_time.ts as dbt_valid_from,
            nullif(snapshot_time.ts, snapshot_time.ts) as dbt_valid_to,
            halfMD5(coalesce(cast(id as varchar ), '')
     || '|' || coalesce(cast(
    now()
 as varchar ), '')
    ) as dbt_scd_id
        from snapshot_query, snapshot_time
    ),
    updates_source_data as (
        select
            *,
            id as dbt_unique_key,
            snapshot_time.ts as dbt_updated_at,
            snapshot_time.ts as dbt_valid_from,
            snapshot_time.ts as dbt_valid_to
        from snapshot_query, snapshot_time
    ),
    insertions as (
        select
            'insert' as dbt_change_type,
            source_data.*
        from insertions_source_data as source_data
        left outer join snapshotted_data on snapshotted_data.dbt_unique_key = source_data.dbt_unique_key
        where snapshotted_data.dbt_unique_key is null
           or (
                snapshotted_data.dbt_unique_key is not null
            and (
                (snapshotted_data."id" != source_data."id"
        or
        (
            ((snapshotted_data."id" is null) and not (source_data."id" is null))
            or
            ((not snapshotted_data."id" is null) and (source_data."id" is null))
        ) or snapshotted_data."name" != source_data."name"
        or
        (
            ((snapshotted_data."name" is null) and not (source_data."name" is null))
            or
            ((not snapshotted_data."name" is null) and (source_data."name" is null))
        ))
            )
        )
    ),
    updates as (
        select
            'update' as dbt_change_type,
            source_data.*,
            snapshotted_data.dbt_scd_id
        from updates_source_data as source_data
        join snapshotted_data on snapshotted_data.dbt_unique_key = source_data.dbt_unique_key
        where (
            (snapshotted_data."id" != source_data."id"
        or
        (
            ((snapshotted_data."id" is null) and not (source_data."id" is null))
            or
            ((not snapshotted_data."id" is null) and (source_data."id" is null))
        ) or snapshotted_data."name" != source_data."name"
        or
        (
            ((snapshotted_data."name" is null) and not (source_data."name" is null))
            or
            ((not snapshotted_data."name" is null) and (source_data."name" is null))
        ))
        )
    )
    select * EXCEPT (ts) from insertions
    union all
    select * EXCEPT (ts) from updates
--------
SELECT * FROM (
with __dbt__cte__words as (
SELECT toInt32(offset) AS id, value FROM `shop`.`records`
) SELECT toInt32(words.id) AS id, names.name AS name FROM `__dbt__cte__words` AS words INNER JOIN `shop`.`names` AS names ON names.id = words.id
) LIMIT 0
 FORMAT JSON
--------
/* model.shop.named */
        create table `shop`.`named__dbt_backup`
  (
    `id` Int32,
    `name` String
    )
  engine = MergeTree()
      order by (tuple())
                    -- end_of_sql
                    SETTINGS replicated_deduplication_window='0'
--------
/* snapshot.shop.names_over_time */
    select name, type from system.columns where table = 'names_over_time'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* snapshot.shop.names_over_time */
    select name, type from system.columns where table = 'names_over_time__dbt_tmp'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* model.shop.named */
    select name, type from system.columns where table = 'named__dbt_backup'
        and database = 'shop'
    order by position
 FORMAT Native
--------
/* snapshot.shop.names_over_time */
    create table if not exists `shop`.`names_over_time__snapshot_upsert`
   as `shop`.`names_over_time`
--------
/* model.shop.named */
  insert into `shop`.`named__dbt_backup`
        ("id", "name")-- Use a subquery to get columns in the right order
          SELECT "id", "name"
          FROM (
with __dbt__cte__words as (
SELECT toInt32(offset) AS id, value FROM `shop`.`records`
) SELECT toInt32(words.id) AS id, names.name AS name FROM `__dbt__cte__words` AS words INNER JOIN `shop`.`names` AS names ON names.id = words.id
            )
--------
/* snapshot.shop.names_over_time */
    insert into `shop`.`names_over_time__snapshot_upsert` ("id", "name", "dbt_updated_at", "dbt_valid_from", "dbt_valid_to", "dbt_scd_id")
    select "id","name","dbt_updated_at","dbt_valid_from","dbt_valid_to","dbt_scd_id"
    from `shop`.`names_over_time`
    where dbt_scd_id not in (
      select `shop`.`names_over_time__dbt_tmp`.dbt_scd_id from `shop`.`names_over_time__dbt_tmp`
    )
--------
/* model.shop.named */
EXCHANGE TABLES `shop`.`named__dbt_backup` AND `shop`.`named`
--------
/* model.shop.named */
drop table if exists `shop`.`named__dbt_backup`
--------
/* snapshot.shop.names_over_time */
    insert into `shop`.`names_over_time__snapshot_upsert` ("id", "name", "dbt_updated_at", "dbt_valid_from", "dbt_valid_to", "dbt_scd_id")
    with updates_and_deletes as (
      select
        dbt_scd_id,
        dbt_valid_to
      from `shop`.`names_over_time__dbt_tmp`
      where dbt_change_type IN ('update', 'delete')
    )
    select target."id" as "id",target."name" as "name",target."dbt_updated_at" as "dbt_updated_at",target."dbt_valid_from" as "dbt_valid_from",updates_and_deletes.dbt_valid_to as dbt_valid_to,target."dbt_scd_id" as "dbt_scd_id"
    from `shop`.`names_over_time` target
    join updates_and_deletes on target.dbt_scd_id = updates_and_deletes.dbt_scd_id;
--------
/* snapshot.shop.names_over_time */
    insert into `shop`.`names_over_time__snapshot_upsert` ("id", "name", "dbt_updated_at", "dbt_valid_from", "dbt_valid_to", "dbt_scd_id")
    select "id","name","dbt_updated_at","dbt_valid_from","dbt_valid_to","dbt_scd_id"
    from `shop`.`names_over_time__dbt_tmp`
    where `shop`.`names_over_time__dbt_tmp`.dbt_change_type IN ('insert');
--------
/* test.shop.relationships_named_id__id__ref_names_.21411bb2b8 */
    select
      count(*) as failures,
      count(*) != 0 as should_warn,
      count(*) != 0 as should_error
    from (
with child as (
    select id as from_field
    from `shop`.`named`
    where id is not null
),
parent as (
    select id as to_field
    from `shop`.`names`
)
select
    from_field
from child
left join parent
    on child.from_field = parent.to_field
where parent.to_field is null
-- end_of_sql
settings join_use_nulls = 1
    ) dbt_internal_test
 FORMAT Native
--------
/* snapshot.shop.names_over_time */
EXCHANGE TABLES `shop`.`names_over_time__snapshot_upsert` AND `shop`.`names_over_time`
--------
/* snapshot.shop.names_over_time */
      drop table if exists `shop`.`names_over_time__snapshot_upsert`
  ;
--------
SELECT * FROM (
select * from (
        with snapshot_time as (
        select
    now()
 as ts  -- Single timestamp
    ),
        snapshot_query as (
        select * from `shop`.`names`
    ),
    snapshotted_data as (
        select *,
            id as dbt_unique_key
        from `shop`.`names_over_time`
        where dbt_valid_to is null
    ),
    insertions_source_data as (
        select
            *,
            id as dbt_unique_key,
            snapshot_time.ts as dbt_updated_at,
            snapshot_time.ts as dbt_valid_from,
            nullif(snapshot_time.ts, snapshot_time.ts) as dbt_valid_to,
            halfMD5(coalesce(cast(id as varchar ), '')
     || '|' || coalesce(cast(
    now()
 as varchar ), '')
    ) as dbt_scd_id
        from snapshot_query, snapshot_time
    ),
    updates_source_data as (
        select
            *,
            id as dbt_unique_key,
            snapshot_time.ts as dbt_updated_at,
            snapshot_time.ts as dbt_valid_from,
            snapshot_time.ts as dbt_valid_to
        from snapshot_query, snapshot_time
    ),
    insertions as (
        select
            'insert' as dbt_change_type,
            source_data.*
        from insertions_source_data as source_data
        left outer join snapshotted_data on snapshotted_data.dbt_unique_key = source_data.dbt_unique_key
        where snapshotted_data.dbt_unique_key is null
           or (
                snapshotted_data.dbt_unique_key is not null
            and (
                (snapshotted_data."id" != source_data."id"
        or
        (
            ((snapshotted_data."id" is null) and not (source_data."id" is null))
            or
            ((not snapshotted_data."id" is null) and (source_data."id" is null))
        ) or snapshotted_data."name" != source_data."name"
        or
        (
            ((snapshotted_data."name" is null) and not (source_data."name" is null))
            or
            ((not snapshotted_data."name" is null) and (source_data."name" is null))
        ))
            )
        )
    ),
    updates as (
        select
            'update' as dbt_change_type,
            source_data.*,
            snapshotted_data.dbt_scd_id
        from updates_source_data as source_data
        join snapshotted_data on snapshotted_data.dbt_unique_key = source_data.dbt_unique_key
        where (
            (snapshotted_data."id" != source_data."id"
        or
        (
            ((snapshotted_data."id" is null) and not (source_data."id" is null))
            or
            ((not snapshotted_data."id" is null) and (source_data."id" is null))
        ) or snapshotted_data."name" != source_data."name"
        or
        (
            ((snapshotted_data."name" is null) and not (source_data."name" is null))
            or
            ((not snapshotted_data."name" is null) and (source_data."name" is null))
        ))
        )
    )
    select * EXCEPT (ts) from insertions
    union all
    select * EXCEPT (ts) from updates
    ) as __dbt_sbq
    where false
    limit 0
) LIMIT 0
 FORMAT JSON
--------
SELECT * FROM (
select * from (
        select
    now()
 as dbt_snapshot_time
    ) as __dbt_sbq
    where false
    limit 0
) LIMIT 0
 FORMAT JSON
--------
/* snapshot.shop.names_over_time */
      select 1
--------
/* snapshot.shop.names_over_time */
drop table if exists `shop`.`names_over_time__dbt_tmp`
--------
/* list__shop */
with mv_sources as (
      -- Find all MVs and their target tables (database and name of the MV, plus the SELECT SQL)
      select
        name as mv_name,
        database as mv_database,
        any(as_select) as mv_sql,any(replaceRegexpOne(create_table_query, '.*TO\\s+`\x3F([^`\\s(]+)`\x3F\\.`\x3F([^`\\s(]+)`\x3F.*', '\\1.\\2')) as target_fqn
      from system.tables
      where engine = 'MaterializedView'
        and create_table_query like '%TO %'
      group by mv_name, mv_database
    )
    select
      t.name as name,
      t.database as schema,
      multiIf(
        t.engine = 'MaterializedView', 'materialized_view',
        t.engine = 'View', 'view',
        t.engine = 'Dictionary', 'dictionary',
        'table'
      ) as type,
      db.engine as db_engine,
      groupArrayIf(
        map('schema', mv_sources.mv_database, 'name', mv_sources.mv_name, 'sql', mv_sources.mv_sql),
        mv_sources.mv_name != ''
      ) as mvs_pointing_to_it,
      -- The refresh clause of a refreshable MV sits between the view name and the TO clause,
      -- e.g. CREATE MATERIALIZED VIEW db.mv REFRESH EVERY 2 MINUTE [APPEND] TO db.target ...
      max(position(substring(t.create_table_query, 1, position(t.create_table_query, ' TO ')), ' REFRESH ')) > 0 as is_refreshable,
      max(position(substring(t.create_table_query, 1, position(t.create_table_query, ' TO ')), ' APPEND')) > 0 as refreshable_append,0 as is_on_cluster
        from system.tables as t
        join system.databases as db on t.database = db.name
        left join mv_sources on mv_sources.target_fqn = concat(t.database, '.', t.name)
      where schema = 'shop'
      group by name, schema, type, db_engine
 FORMAT Native
--------
/* .information_schema */
select
      '' as table_database,
      columns.database as table_schema,
      columns.table as table_name,
      if(tables.engine not in ('MaterializedView', 'View'), 'table', 'view') as table_type,
      nullIf(tables.comment, '') as table_comment,
      columns.name as column_name,
      columns.position as column_index,
      columns.type as column_type,
      nullIf(columns.comment, '') as column_comment,
      cast(null as Nullable(String)) as table_owner
    from system.columns as columns
    join system.tables as tables on tables.database = columns.database and tables.name = columns.table
    where columns.database != 'system'
      and (
        (
          columns.database = 'shop'
          and columns.table = 'newest'
        ) or
        (
          columns.database = 'shop'
          and columns.table = 'records'
        ) or
        (
          columns.database = 'shop'
          and columns.table = 'replaced'
        ) or
        (
          columns.database = 'shop'
          and columns.table = 'names_over_time'
        ) or
        (
          columns.database = 'shop'
          and columns.table = 'as_they_come'
        ) or
        (
          columns.database = 'shop'
          and columns.table = 'names'
        ) or
        (
          columns.database = 'shop'
          and columns.table = 'per_topic'
        ) or
        (
          columns.database = 'shop'
          and columns.table = 'named'
        ))
    order by columns.database, columns.table, columns.position
 FORMAT Native
