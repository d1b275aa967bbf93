-- Begins to end a source, or goes on with it.
-- ARGV  2 crawl  3 name of the source
-- Gives {"ok", how many digests it has entered}, {"done"} or {"dropped"}.
local crawl, name = ARGV[2], ARGV[3]
local state, _, source, value = begun_source(name)
if not state then
  return {has(DONE, name) and 'done' or 'dropped'}
end
if state == 'd' or source.crawlId ~= crawl or not (has(UNCOMMITTED, crawl) or has(COMMITTED, crawl)) then
  return {'dropped'}
end
call('HSET', BEGUN, name, 'e' .. string.sub(value, 2))
if has(UNCOMMITTED, crawl) then
  call('SADD', COMMITTING, crawl)
end
call('UNLINK', 'dedupe:newwaits:' .. name)
return {'ok', call('SCARD', 'dedupe:entered:' .. name)}
