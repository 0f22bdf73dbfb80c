"""The database: tables, migrations, and what is stored in them."""
