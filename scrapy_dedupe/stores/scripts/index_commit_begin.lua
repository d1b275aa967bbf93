-- Begins a commit, or goes on with one that was cut off.
-- ARGV  2 crawl  3 statistics as JSON, or ""
-- Gives "ok", "committed" (nothing is left to do) or the state that does not allow it.
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
if not has(UNCOMMITTED, crawl) then return state_of(crawl) end
if call('HEXISTS', meta, 'imported') == 1 then return 'importing' end
call('SADD', COMMITTING, crawl)
if ARGV[3] ~= '' then
  call('HSET', meta, 'stats', ARGV[3])
end
return 'ok'
