-- Begins (ARGV[3] = "begin") or ends ("end") the cancelling of a crawl; between them lies index_release.lua.
-- ARGV  2 crawl  3 step  4 token of this cancelling: at the beginning a new one
-- Gives {"ok", token}, {"done"} (nothing is left to do), {"committed"} or {"unknown"}. Who goes on with a cancelling that was
-- cut off gets its token.
local crawl = ARGV[2]
local meta = 'dedupe:crawl:' .. crawl
if ARGV[3] == 'begin' then
  if has(COMMITTED, crawl) then return {'committed'} end
  if call('SMOVE', UNCOMMITTED, CANCELED, crawl) == 1 then
    call('SREM', COMMITTING, crawl)
    call('SREM', CONCURRENT, crawl)
    call('HDEL', meta, 'resetting')
    call('HSET', meta, 'canceling', ARGV[4])
  end
  if has(CANCELED, crawl) then forget_report(crawl) end
  local token = call('HGET', meta, 'canceling')
  if token then return {'ok', token} end
  return {has(CANCELED, crawl) and 'done' or 'unknown'}
end
-- Another process may have ended it, and the crawl may be another one now.
if call('HGET', meta, 'canceling') == ARGV[4] then
  forget_records(crawl)
  call('HDEL', meta, 'canceling', 'stats', 'incomplete', 'token', 'committing')
  forget_mode()
end
return {'ok'}
