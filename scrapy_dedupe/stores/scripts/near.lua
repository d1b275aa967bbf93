-- Finds the most similar kept text, or else keeps this one, in one step. See stores/redis_content.py for the
-- keys. The keys of candidates are known to the script alone; they have the same hash tag as all others.
--
-- KEYS: k, n, s + digest, then for each band its hash of buckets
-- ARGV: prefix, digest, row bytes, smallest number of equal row bytes, URL, then for each band its field
-- Answer: nil if the text is kept, else {first capture of the other text, its crawl id, 1 if this URL had that
-- text before, number of equal row bytes}

local prefix, digest, rows, min_equal = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local seen = {[digest] = true}
local best, best_equal, best_first
for band = 4, #KEYS do
  local candidate = redis.call('HGET', KEYS[band], ARGV[band + 2])
  if candidate and not seen[candidate] then
    seen[candidate] = true
    local other = redis.call('GET', prefix .. 's' .. candidate)
    if other then
      local equal = 0
      for place = 1, #rows do
        if string.byte(rows, place) == string.byte(other, place) then
          equal = equal + 1
        end
      end
      local is_better = not best or equal > best_equal or (equal == best_equal and candidate > best)
      if equal >= min_equal and is_better then
        local first = redis.call('GET', prefix .. 't' .. candidate)
        if first then
          best, best_equal, best_first = candidate, equal, first
        end
      end
    end
  end
end

if best then
  local place, url = string.match(best_first, '^%d+ (%d+) (.*)$')
  local had = 1
  if url ~= ARGV[5] then
    local pair = string.gsub(string.sub(redis.sha1hex(best .. ARGV[5]), 1, 32), '%x%x', function(byte)
      return string.char(tonumber(byte, 16))
    end)
    had = redis.call('EXISTS', prefix .. 'c' .. pair)
  end
  return {best_first, redis.call('LINDEX', KEYS[2], place), had, best_equal}
end

if redis.call('SET', KEYS[3], rows, 'NX') then
  redis.call('HINCRBY', KEYS[1], 'kept', 1)
end
for band = 4, #KEYS do
  redis.call('HSET', KEYS[band], ARGV[band + 2], digest)
end
return false
