-- Tests whether texts are new and stores the new ones, in one step. The keys are described in
-- stores/redis_content.py; all have the hash tag of the key that is passed.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; "claim", "sure" (a claim that is not pending) or "find"; lifetime
-- in milliseconds (0: unlimited); then for each text its digest, URL key, URL, crawl id and time in milliseconds
-- Answer for each text: nil if it is new, else {first capture, its crawl id, 1 if this URL had the text before}

local run, match = redis.call, string.match
local prefix, operation, lifetime = ARGV[2], ARGV[3], tonumber(ARGV[4])
local state = operation == 'sure' and 'c' or 'p'

local places = {}
local function place_of(crawl)
  if not places[crawl] then
    local place = run('HGET', KEYS[1], crawl)
    if not place then
      place = run('RPUSH', prefix .. 'n', crawl) - 1
      run('HSET', KEYS[1], crawl, place)
    end
    places[crawl] = place
  end
  return places[crawl]
end

local function is_forgotten(then_ms, ms)
  return lifetime > 0 and tonumber(then_ms) + lifetime <= tonumber(ms)
end

local function had(url_key, digest, ms)
  local note = run('HGET', prefix .. 'c' .. url_key, digest)
  return note and not is_forgotten(match(note, '^%S+ (%S+)'), ms)
end

-- Texts that earlier items of this call claimed: an equal later item does not mean that the call is a repetition.
local claimed = {}
local answers = {}
for item = 5, #ARGV, 5 do
  local digest, url_key, url, crawl, ms = ARGV[item], ARGV[item + 1], ARGV[item + 2], ARGV[item + 3], ARGV[item + 4]
  local key = prefix .. 't' .. digest
  local first = run('GET', key)
  local answer, value = false, nil
  if operation ~= 'find' then
    value = state .. ' ' .. ms .. ' ' .. place_of(crawl) .. ' ' .. url
  end
  if first then
    local first_state, first_ms, place, first_url = match(first, '^(%a) (%S+) (%d+) (.*)$')
    local is_repeated = ARGV[1] == '1' and first == value and not claimed[digest]
    local is_own = first_state == 'p' and first_url == url or is_repeated
    if not is_forgotten(first_ms, ms) and not is_own then
      local had_this_url = first_url == url or had(url_key, digest, ms)
      answer = {first, run('LINDEX', prefix .. 'n', place), had_this_url and 1 or 0}
    end
  end
  if not answer and value then
    if lifetime > 0 then
      run('SET', key, value, 'PX', lifetime)
    else
      run('SET', key, value)
    end
    claimed[digest] = true
  end
  answers[#answers + 1] = answer
end
return answers
