-- How far the join had come after each of its runs, and the last version that it wrote.
until_ns UInt64,
    far_ns UInt64,
    rows UInt64,
    seconds Float64,
    at DateTime64(6, 'UTC') DEFAULT now64(6),
    version_ns UInt64 DEFAULT 0,
    first_start DateTime64(9, 'UTC') DEFAULT 0
