-- The condition of rows that have an id: of their trace, request or response.
--
-- name  the id
(trace_id = {name:String} OR request_id = {name:String} OR response_id = {name:String})
