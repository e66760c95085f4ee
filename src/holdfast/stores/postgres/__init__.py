"""The store on PostgreSQL: one database for any number of machines."""
