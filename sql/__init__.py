"""SQL: schema/ has the tables and views, queries/ the long queries, http/ the HTTP interface."""
