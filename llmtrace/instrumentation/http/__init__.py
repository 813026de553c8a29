"""Time HTTP requests, and read their bodies where no SDK does."""
