-- Removes a canceled crawl from the list of crawls. An empty index loses its mark too.
-- ARGV  2 crawl
-- Returns "ok".
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
if state_of(crawl) == 'canceled' and call('HEXISTS', meta, 'canceling') == 0 then
  forget_cancel(crawl)
  call('DEL', meta)
end
local is_empty = call('EXISTS', COMMITTED, UNCOMMITTED, CANCELED, MARKED, BEGUN, DUPES) == 0
if is_empty and call('HLEN', KEYS[1]) == 1 and call('HEXISTS', KEYS[1], 'format') == 1 then call('DEL', KEYS[1]) end
return 'ok'
