-- Tests whether texts are new and stores the new ones; then, for the signatures of new texts, finds the most similar
-- kept text or keeps the text. All in one step. content_common.lua comes before this script.
--
-- KEYS: i
-- ARGV: 1 if this call may be a repetition; prefix; lifetime in milliseconds (0: unlimited); "claim", "sure" (a claim
-- that is not pending), "find", "recall" (like "find", by the source instead of the digest), or "look" (like "find",
-- without regard to time and pending texts); the number of texts; for each text its digest, URL key, URL, time (6 bytes),
-- crawl id and source (empty: none); then for each signature the number of its text, counted from 1, the smallest numbers
-- of equal rows (see Signature in stores/base.py: of the whole texts, rare, named), its identity, row bytes, packed rare
-- rows, its bands in one string, and the bands that are only searched
-- Answer: for each known text {first capture, its crawl id, 1 if this URL had the text before}, and for "recall" its digest;
-- for a new text without a signature nil; for a new text with a signature 0 if there is no near text (1: if only another
-- page was similar), else {first capture of the near text, its crawl id, 1 if this URL had that text before, number of
-- equal row bytes, digest of the near text, number of equal rows of the rests, number of compared rows (0: none), identity
-- of the near text}

local operation, texts = ARGV[4], tonumber(ARGV[5])
local is_claim = operation == 'claim' or operation == 'sure'
local state = operation == 'sure' and 'c' or 'p'
local BAND = 5
local TAIL = 16 - REF
local FEWEST_DECIDED = 8
local KEY = 3
local NOTHING = '\0\0\0'
local NO_REST = '\255\255\255'

-- Texts that earlier items of this call claimed: an equal later item does not mean that the call is a repetition.
local claimed = {}
local answers = {}
for item = 6, 5 + 6 * texts, 6 do
  local digest, url_key, url, moment = ARGV[item], ARGV[item + 1], ARGV[item + 2], ARGV[item + 3]
  local source = ARGV[item + 5]
  local ms = number_in(moment, 1, 6)
  now = math.max(now, ms)
  if operation == 'recall' then
    digest = source ~= '' and get('m', source)
  end
  local first = digest and get('t', digest)
  local answer, value = nil, nil
  if is_claim then
    value = state .. moment .. place_of(ARGV[item + 4]) .. url
  end
  local is_repeated = ARGV[1] == '1' and first == value and not claimed[digest]
  if first and not is_repeated then
    answer = answer_of(digest, first, url_key, url, ms, operation == 'look')
    if answer and operation == 'recall' then
      answer[4] = digest
    end
  end
  if not answer and value then
    put('t', digest, value)
    if source ~= '' then
      put('m', source, digest)
    end
    claimed[digest] = true
  end
  answers[#answers + 1] = answer or false
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

-- The rare rows, '' if there are none, nil if the rows have another length: see packed_rows() in stores/content_values.py.
local function unpacked(rows, packed)
  if packed == '' then
    return ''
  end
  local rare, last = {}, math.ceil(#rows / 8)
  for place = 1, #rows do
    local bits = byte(packed, math.ceil(place / 8)) or 0
    if math.floor(bits / 2 ^ (-place % 8)) % 2 == 1 then
      last = last + 1
      rare[place] = sub(packed, last, last)
    else
      rare[place] = sub(rows, place, place)
    end
  end
  return last == #packed and table.concat(rare) or nil
end

-- Whether a key of two identities is equal; nil if at least one of the two pages says nothing.
local function same_key(number, own, kept)
  local one, other = sub(own, number * KEY - 2, number * KEY), sub(kept, number * KEY - 2, number * KEY)
  if one == NOTHING or other == NOTHING or one == NO_REST or other == NO_REST or one == '' then
    return nil
  end
  return one == other
end

-- See SameKeys in stores/content_values.py.
local function same_words(own, kept)
  local words = same_key(5, own, kept)
  if words == false and same_key(4, own, kept) then
    return sub(own, 10, 12) == sub(own, 13, 15) or sub(kept, 10, 12) == sub(kept, 13, 15)
  end
  return words
end

-- Whether the titles are equal, and whether the beginnings are: see SameKeys in stores/content_values.py.
local function same_names(own, kept)
  local same = same_key(3, own, kept)
  if same ~= nil and (byte(own, 3 * KEY) % 2 == 1 or byte(kept, 3 * KEY) % 2 == 1) then
    return nil, same
  end
  return same, nil
end

-- How many rows of the rests must be equal: see _least_rest() in stores/content_values.py.
local function least_rest(own, kept, min_rare, min_named)
  local tail, words = same_key(2, own, kept), same_words(own, kept)
  local title, beginning = same_names(own, kept)
  if same_key(1, own, kept) or (tail and title ~= false) then
    return 0
  end
  if tail then
    return min_rare
  end
  if title == false or words == false then
    return nil
  end
  if title or words then
    return min_named
  end
  return beginning ~= false and min_rare or nil
end

-- The number of equal rows of the rests, and of the compared ones: 0 if these are too few, or a page has no rest.
local function equal_rest(own, rows, rare, kept_identity, kept, kept_rare)
  if sub(own, -KEY) == NO_REST or sub(kept_identity, -KEY) == NO_REST then
    return 0, 0
  end
  if (rare == '') == (kept_rare == '') then
    return equal_bytes(rare ~= '' and rare or rows, kept_rare ~= '' and kept_rare or kept), #rows
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
  if decided < FEWEST_DECIDED then
    return 0, 0
  end
  return equal, decided
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

local function is_better(one, other)
  if one.wanted ~= other.wanted then
    return one.wanted < other.wanted
  end
  if one.equal ~= other.equal then
    return one.equal > other.equal
  end
  return is_above(one.digest, other.digest)
end

-- Finds the most similar near text of a new text, or keeps the text.
local function near_answer(first_of_text, least, own, rows, packed, bands, more_bands)
  local digest, url_key, url = ARGV[first_of_text], ARGV[first_of_text + 1], ARGV[first_of_text + 2]
  local ms = number_in(ARGV[first_of_text + 3], 1, 6)
  local all_bands = bands .. more_bands
  local start, width = #own, #rows
  local ref = sub(digest, 1, REF)
  local seen = {[ref] = true}
  local keys, hashes = {}, numbers.b
  local rare_rows, best, best_answer
  local answer = 0

  for place = 1, #all_bands, BAND do
    local band = sub(all_bands, place, place + BAND - 1)
    keys[place] = key_of('b', band)
    local candidate = run('HGET', keys[place], band)
    if candidate and not seen[candidate] then
      seen[candidate] = true
      local other = get('s', candidate)
      local length = other and #other - TAIL or 0
      local other_rows = other and sub(other, start + 1, start + width)
      local equal = length >= start + width and equal_bytes(rows, other_rows) or 0
      if equal >= least[1] and length >= start + width then
        local other_rare = unpacked(other_rows, sub(other, start + width + 1, length))
        -- A signature of another length shares the bucket by accident.
        if other_rare then
          local its_digest = candidate .. sub(other, length + 1)
          rare_rows = rare_rows or unpacked(rows, packed)
          local identity = sub(other, 1, start)
          local rest, compared = equal_rest(own, rows, rare_rows, identity, other_rows, other_rare)
          local wanted = least_rest(own, identity, least[2], least[3])
          local it = {wanted = wanted, equal = equal, digest = its_digest}
          if not wanted or (wanted > 0 and (compared == 0 or rest * width < wanted * compared)) then
            answer = 1
          elseif not best or is_better(it, best) then
            local first = get('t', its_digest)
            local found = first and answer_of(its_digest, first, url_key, url, ms)
            if found then
              best, best_answer = it, found
              found[4], found[5], found[6], found[7], found[8] = equal, its_digest, rest, compared, identity
            end
          end
        end
      end
    end
  end

  if best then
    answer = best_answer
  elseif is_claim then
    put('s', ref, own .. rows .. packed .. sub(digest, REF + 1))
    for place = 1, #bands, BAND do
      local band = sub(bands, place, place + BAND - 1)
      -- A new hash may have taken over the bucket.
      local key = numbers.b == hashes and keys[place] or key_of('b', band)
      run('HSET', key, band, ref)
      -- A few of them show soon enough that there is little room.
      if place % (4 * BAND) == 1 then
        make_room('b', key)
      end
    end
  end
  return answer
end

for item = 6 + 6 * texts, #ARGV, 9 do
  local number, least = tonumber(ARGV[item]), {}
  for place = 1, 3 do
    least[place] = tonumber(ARGV[item + place])
  end
  if not answers[number] then
    answers[number] = near_answer(6 * number, least, unpack(ARGV, item + 4, item + 8))
  end
end
return answers
