"""SQL: schema/ has the tables and views, queries/ the long statements, http/ the HTTP interface."""
