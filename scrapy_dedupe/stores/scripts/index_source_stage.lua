-- Stores a batch of waiting revisits of a source that is ending for index_source_end.lua.
-- ARGV  2 crawl  3 name of the source  4 its token  5 number of the batch, from 1  6... digests, each with its sizes
-- Returns "ok", or "" if the source is not ending any more.
local crawl, name = ARGV[2], ARGV[3]
local key = 'dedupe:newwaits:' .. name
if own_source(crawl, name, ARGV[4]) ~= 'e' then return '' end
-- A client that lost the connection repeats the call; the sizes must not be added twice.
if tonumber(call('HGET', key, '') or 0) ~= ARGV[5] - 1 then return 'ok' end
call('HSET', key, '', ARGV[5])
for i = 6, #ARGV, 2 do
  add_sizes(key, ARGV[i], ARGV[i + 1])
end
return 'ok'
