-- Finds the most similar kept text for each text, or keeps the text, in one step. The keys are described in
-- stores/redis_content.py; all have the hash tag of the key that is passed.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; "claim" or "find"; lifetime in milliseconds (0: unlimited); then for
-- each text its digest, URL key, URL, time in milliseconds, the smallest numbers of equal rows (of the whole text, of the
-- text without the template), row bytes, rare row bytes, its bands in one string, and the bands that are only searched
-- Answer for each text: 0 if there is no near text (1: if only a template was similar), else {first capture of the near
-- text, its crawl id, 1 if this URL had that text before, number of equal row bytes, digest of the near text}

local run, match, sub, byte = redis.call, string.match, string.sub, string.byte
local prefix, is_claim, lifetime = ARGV[2], ARGV[3] == 'claim', tonumber(ARGV[4])
local BAND = 8
local FEWEST_DECIDED = 8

local function is_forgotten(then_ms, ms)
  return lifetime > 0 and tonumber(then_ms) + lifetime <= ms
end

local function had(url_key, digest, ms)
  local note = run('HGET', prefix .. 'c' .. url_key, digest)
  return note and not is_forgotten(match(note, '^%S+ (%S+)'), ms)
end

local function equal_bytes(one, other)
  local equal = 0
  for place = 1, #one do
    if byte(one, place) == byte(other, place) then
      equal = equal + 1
    end
  end
  return equal
end

-- See Signature in stores/base.py.
local function rests_are_near(rows, rare, kept, kept_rare, wanted)
  if (rare == '') == (kept_rare == '') then
    return equal_bytes(rare ~= '' and rare or rows, kept_rare ~= '' and kept_rare or kept) >= wanted
  end
  local known, its_rare = rows, rare
  if rare == '' then
    known, its_rare = kept, kept_rare
  end
  local decided, equal = 0, 0
  for place = 1, #rows do
    if byte(known, place) == byte(its_rare, place) then
      decided = decided + 1
      if byte(rows, place) == byte(kept, place) then
        equal = equal + 1
      end
    end
  end
  return decided >= FEWEST_DECIDED and equal * #rows >= wanted * decided
end

-- Lua's own comparison depends on the locale of the server.
local function is_above(one, other)
  for place = 1, #one do
    local its, others = byte(one, place), byte(other, place)
    if its ~= others then
      return its > others
    end
  end
  return false
end

-- Expiring fields would cost more than a kilobyte per text. Instead, each new bucket checks two others of its hash, so
-- that at most half of them belong to deleted texts. Servers before Redis 6.2 keep them until a purge.
local function sweep(bucket)
  local some = redis.pcall('HRANDFIELD', bucket, 2, 'WITHVALUES')
  for place = 1, some.err and 0 or #some, 2 do
    if run('EXISTS', prefix .. 's' .. some[place + 1]) == 0 then
      run('HDEL', bucket, some[place])
    end
  end
end

local bucket_prefix = prefix .. 'b'
local buckets, fields = {}, {}
local answers = {}
for item = 5, #ARGV, 10 do
  local digest, url_key, url, ms = ARGV[item], ARGV[item + 1], ARGV[item + 2], tonumber(ARGV[item + 3])
  local min_equal, min_rare = tonumber(ARGV[item + 4]), tonumber(ARGV[item + 5])
  local rows, rare_rows, bands = ARGV[item + 6], ARGV[item + 7], ARGV[item + 8]
  local all_bands = bands .. ARGV[item + 9]
  local width = #rows
  local seen = {[digest] = true}
  local best, best_equal, best_first, best_place, best_url
  local answer = 0

  for place = 1, #all_bands, BAND do
    local bucket, field = bucket_prefix .. sub(all_bands, place, place + 1), sub(all_bands, place + 2, place + 7)
    buckets[place], fields[place] = bucket, field
    local candidate = run('HGET', bucket, field)
    if candidate and not seen[candidate] then
      seen[candidate] = true
      local other = run('GET', prefix .. 's' .. candidate)
      -- A signature of another length shares the bucket by accident.
      if other and (#other == width or #other == 2 * width) then
        local other_rows = sub(other, 1, width)
        local equal = equal_bytes(rows, other_rows)
        if equal >= min_equal then
          if not rests_are_near(rows, rare_rows, other_rows, sub(other, width + 1), min_rare) then
            answer = 1
          elseif not best or equal > best_equal or (equal == best_equal and is_above(candidate, best)) then
            local first = run('GET', prefix .. 't' .. candidate)
            if first then
              local state, first_ms, crawl, first_url = match(first, '^(%a) (%S+) (%d+) (.*)$')
              -- A pending text of this URL is this page, in an attempt that failed or is being repeated.
              local is_own = state == 'p' and first_url == url
              if not is_forgotten(first_ms, ms) and not is_own then
                best, best_equal, best_first, best_place, best_url = candidate, equal, first, crawl, first_url
              end
            end
          end
        end
      end
    end
  end

  if best then
    local had_this_url = best_url == url or had(url_key, best, ms)
    answer = {best_first, run('LINDEX', prefix .. 'n', best_place), had_this_url and 1 or 0, best_equal, best}
  elseif is_claim then
    local key = prefix .. 's' .. digest
    if lifetime > 0 then
      run('SET', key, rows .. rare_rows, 'PX', lifetime)
    else
      run('SET', key, rows .. rare_rows)
    end
    for place = 1, #bands, BAND do
      if run('HSET', buckets[place], fields[place], digest) == 1 and lifetime > 0 then
        sweep(buckets[place])
      end
    end
  end
  answers[#answers + 1] = answer
end
return answers
