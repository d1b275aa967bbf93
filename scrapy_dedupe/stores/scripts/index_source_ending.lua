-- Begins to end a source, or resumes it.
-- ARGV  2 crawl  3 name of the source  4 its token
-- Returns {"ok", number of its digests}, {"done"}, {"taken"} or {"dropped"}.
local crawl, name = ARGV[2], ARGV[3]
if call('HEXISTS', BEGUN, name) == 0 and has(DONE, name) then return {'done'} end
local state, value = own_source(crawl, name, ARGV[4])
if not value then return {state} end
call('HSET', BEGUN, name, 'e' .. string.sub(value, 2))
if is_uncommitted(crawl) then
  call('SADD', COMMITTING, crawl)
end
call('UNLINK', 'dedupe:newwaits:' .. name)
return {'ok', call('SCARD', 'dedupe:entered:' .. name)}
