-- Looks up the original of revisits that another program recorded, and credits them as that program does: the number of a
-- crawl's revisits times the size of the original, minus the sum of their sizes.
-- ARGV  2 digest as in the keys  3... the digest in the spellings that the index may have
-- Returns the number of revisits that were resolved.
local label = ARGV[2]
local sums, numbers = 'rev:' .. label .. ':s', 'rev:' .. label .. ':c'
local found = call('HGETALL', numbers)
if #found == 0 then
  call('SREM', 'dedupe:revs', label)
  return 0
end
local size = nil
for i = 3, #ARGV do
  local _, entry = committed(ARGV[i])
  if entry then
    size = string.match(entry, '^%d+ %d+ %S+ (%d+)$')
    if size then break end
  end
end
if not size then return 0 end
local resolved = 0
for i = 1, #found, 2 do
  local crawl, count = found[i], tonumber(found[i + 1])
  local sum = tonumber(call('HGET', sums, crawl) or '')
  if count and sum then
    resolved = resolved + count
    local conserved = count * size - sum
    if conserved > 0 then
      conserved = string.format('%.0f', conserved)
      if has(COMMITTED, crawl) then
        call('HINCRBY', 'h:' .. crawl .. ':counts', 'conservedSize', conserved)
        call('HINCRBY', TOTALS, 'conservedSize', conserved)
      elseif is_uncommitted(crawl) then
        call('HINCRBY', 'h:' .. crawl .. ':counts', 'conservedSize', conserved)
      end
    end
  end
end
call('DEL', sums, numbers)
call('SREM', 'dedupe:revs', label)
return resolved
