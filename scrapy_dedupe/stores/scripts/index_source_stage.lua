-- Stores waiting revisits of a source that is ending for index_source_end.lua.
-- ARGV  2 crawl  3 name of the source  4 its token  5... digests, each with its sizes
-- Returns "ok", or "" if the source is not ending any more.
local crawl, name = ARGV[2], ARGV[3]
if own_source(crawl, name, ARGV[4]) ~= 'e' then return '' end
for i = 5, #ARGV, 2 do
  call('HSET', 'dedupe:newwaits:' .. name, ARGV[i], ARGV[i + 1])
end
return 'ok'
