-- Begins (ARGV[3] = "begin") or ends ("end") the cancelling of a crawl; between them lies index_release.lua.
-- ARGV  2 crawl  3 step
-- Gives "ok", "done" (nothing is left to do), "committed" or "unknown".
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
if ARGV[3] == 'begin' then
  if has(COMMITTED, crawl) then return 'committed' end
  if call('SMOVE', UNCOMMITTED, CANCELED, crawl) == 1 then
    call('SREM', COMMITTING, crawl)
    call('SREM', CONCURRENT, crawl)
    call('HSET', meta, 'canceling', '1')
    return 'ok'
  end
  if call('HEXISTS', meta, 'canceling') == 1 then return 'ok' end
  if has(CANCELED, crawl) then return 'done' end
  return 'unknown'
end
if call('HDEL', meta, 'canceling') == 1 then
  forget_records(crawl)
  call('HDEL', meta, 'stats', 'incomplete', 'token')
end
return 'ok'
