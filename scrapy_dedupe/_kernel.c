/* The hot loops of scrapy_dedupe.content and of the URL filter. Optional: each function does the same as Python code there.

The Python code is the reference: results are identical, bit by bit, and tests/test_kernel.py compares each
function. kernel.py decides which code is used. Large tables are arguments, so that each exists once.

Memory is allocated and Python objects are created with the GIL held; long loops run without it. Only the limited API of
Python 3.11 is used, so one binary serves all later versions.
*/

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Sync with kernel.py. Increase both with every change of what a function takes or returns. */
#define KERNEL_VERSION 5

#if defined(_MSC_VER)
#define INLINE static __forceinline
#define RESTRICT __restrict
#else
#define INLINE static inline __attribute__((always_inline))
#define RESTRICT restrict
#endif

/* Functions with long loops over numbers are compiled twice on x86: for every processor, and for those with AVX2. */
#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#define FOR_AVX2 __attribute__((target("avx2")))
static int has_avx2;
#endif

/* The GIL is released only for more than about 0.1 ms of work. A thread that releases it may have to wait for 5 ms until
it has the GIL again. */
#define MUCH 100000
#define BEGIN_LOOPS(steps) \
    {                      \
        PyThreadState *thread = (steps) > MUCH ? PyEval_SaveThread() : NULL;
#define END_LOOPS                         \
        if (thread != NULL)               \
            PyEval_RestoreThread(thread); \
    }

typedef const unsigned char *Bytes;

static void
release(Py_buffer *buffers, int count)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&buffers[i]);
}

/* Shingle hashes and rows: content/signature.py */

#define LEFT 0x9E3779B1u
#define RIGHT 0x85EBCA77u
#define LONGER 0xC2B2AE3Du
#define WHOLE 0x27D4EB2Fu
#define FINAL_1 0x85EBCA6Bu
#define FINAL_2 0xC2B2AE35u

#define MOST_CODES 64 /* of a shingle */
#define CHUNK 4096    /* shingles, or hashes, that are processed together: they fit into the first-level cache */

INLINE uint32_t
mix(uint32_t hash, int bits)
{
    return hash ^ (hash >> bits);
}

INLINE uint32_t
finalised(uint32_t hash)
{
    hash = mix(hash, 16) * FINAL_1;
    hash = mix(hash, 13) * FINAL_2;
    return mix(hash, 16);
}

INLINE void
hash_pairs(const uint32_t *RESTRICT codes, uint32_t *RESTRICT runs, size_t count)
{
    for (size_t i = 0; i < count; i++)
        runs[i] = mix(codes[i] * LEFT + codes[i + 1] * RIGHT, 15);
}

INLINE void
hash_longer(const uint32_t *RESTRICT runs, uint32_t *RESTRICT longer, size_t width, size_t count)
{
    for (size_t i = 0; i < count; i++)
        longer[i] = mix(runs[i] * LONGER + runs[i + width], 13);
}

INLINE void
hash_whole(const uint32_t *RESTRICT runs, uint32_t *RESTRICT hashes, size_t rest, size_t count)
{
    if (rest)
        for (size_t i = 0; i < count; i++)
            hashes[i] = finalised(runs[i] * WHOLE + runs[i + rest]);
    else
        for (size_t i = 0; i < count; i++)
            hashes[i] = finalised(runs[i]);
}

/* The hashes of `count` shingles, at most CHUNK, of `size` code points. */
INLINE void
hash_chunk(const uint32_t *codes, uint32_t *hashes, size_t size, size_t count)
{
    uint32_t buffers[2][CHUNK + MOST_CODES];
    int current = 0;
    size_t width = 2;
    hash_pairs(codes, buffers[0], count + size - width);
    for (; 2 * width <= size; width *= 2, current = !current)
        hash_longer(buffers[current], buffers[!current], width, count + size - 2 * width);
    hash_whole(buffers[current], hashes, size - width, count);
}

INLINE uint32_t
lower_of(uint32_t one, uint32_t other)
{
    return one < other ? one : other;
}

/* Lower the rows to the minima over all hashes. The inner loop over rows is one that every compiler makes use SIMD. */
INLINE void
lower_rows(uint32_t *RESTRICT rows, const uint32_t *RESTRICT factors, const uint32_t *RESTRICT summands,
           size_t row_count, const uint32_t *RESTRICT hashes, size_t count)
{
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        uint32_t h0 = hashes[i], h1 = hashes[i + 1], h2 = hashes[i + 2], h3 = hashes[i + 3];
        uint32_t h4 = hashes[i + 4], h5 = hashes[i + 5], h6 = hashes[i + 6], h7 = hashes[i + 7];
        for (size_t row = 0; row < row_count; row++) {
            uint32_t a = factors[row], b = summands[row];
            uint32_t m0 = lower_of(h0 * a + b, h1 * a + b), m1 = lower_of(h2 * a + b, h3 * a + b);
            uint32_t m2 = lower_of(h4 * a + b, h5 * a + b), m3 = lower_of(h6 * a + b, h7 * a + b);
            rows[row] = lower_of(rows[row], lower_of(lower_of(m0, m1), lower_of(m2, m3)));
        }
    }
    for (; i < count; i++)
        for (size_t row = 0; row < row_count; row++)
            rows[row] = lower_of(rows[row], hashes[i] * factors[row] + summands[row]);
}

static void
hash_chunk_anywhere(const uint32_t *codes, uint32_t *hashes, size_t size, size_t count)
{
    hash_chunk(codes, hashes, size, count);
}

static void
lower_rows_anywhere(uint32_t *rows, const uint32_t *factors, const uint32_t *summands, size_t row_count,
                    const uint32_t *hashes, size_t count)
{
    lower_rows(rows, factors, summands, row_count, hashes, count);
}

#ifdef FOR_AVX2
FOR_AVX2 static void
hash_chunk_avx2(const uint32_t *codes, uint32_t *hashes, size_t size, size_t count)
{
    hash_chunk(codes, hashes, size, count);
}

FOR_AVX2 static void
lower_rows_avx2(uint32_t *rows, const uint32_t *factors, const uint32_t *summands, size_t row_count,
                const uint32_t *hashes, size_t count)
{
    lower_rows(rows, factors, summands, row_count, hashes, count);
}

#define hash_chunk_here (has_avx2 ? hash_chunk_avx2 : hash_chunk_anywhere)
#define lower_rows_here (has_avx2 ? lower_rows_avx2 : lower_rows_anywhere)
#else
#define hash_chunk_here hash_chunk_anywhere
#define lower_rows_here lower_rows_anywhere
#endif

#define RECENT 4096
#define DIGIT 2048 /* three digits are a hash */

/* Remove most repeated hashes: those that were the last in their slot. Returns how many are left. */
static size_t
without_recent(uint32_t *hashes, size_t count)
{
    uint32_t last[RECENT];
    size_t kept = 0;
    for (uint32_t slot = 0; slot < RECENT; slot++)
        last[slot] = ~slot; /* belongs to another slot, so no hash is equal */
    for (size_t i = 0; i < count; i++) {
        uint32_t hash = hashes[i], slot = hash % RECENT;
        hashes[kept] = hash;
        kept += last[slot] != hash;
        last[slot] = hash;
    }
    return kept;
}

/* Sort the hashes, keep one of each, and return how many are left. `spare` has room for as many. Sorting by one digit
after another takes the same time for all values, also for those of hostile text. */
static size_t
distinct(uint32_t *hashes, uint32_t *spare, size_t count)
{
    size_t starts[3][DIGIT] = {{0}}, totals[3] = {0}, kept = 0;
    uint32_t *from = hashes, *to = spare;
    count = without_recent(hashes, count);
    for (size_t i = 0; i < count; i++)
        for (int digit = 0; digit < 3; digit++)
            starts[digit][hashes[i] >> 11 * digit & (DIGIT - 1)]++;
    for (int i = 0; i < DIGIT; i++)
        for (int digit = 0; digit < 3; digit++) {
            size_t length = starts[digit][i];
            starts[digit][i] = totals[digit];
            totals[digit] += length;
        }
    for (int digit = 0; digit < 3; digit++) {
        for (size_t i = 0; i < count; i++)
            to[starts[digit][from[i] >> 11 * digit & (DIGIT - 1)]++] = from[i];
        uint32_t *sorted = to;
        to = from;
        from = sorted;
    }
    for (size_t i = 0; i < count; i++)
        if (!i || spare[i] != spare[i - 1])
            hashes[kept++] = spare[i];
    return kept;
}

/* distinct_hashes(text, size, hashes): fills hashes, and returns how many of them are used. */
static PyObject *
distinct_hashes(PyObject *module, PyObject *args)
{
    PyObject *text;
    Py_ssize_t size;
    Py_buffer out;
    if (!PyArg_ParseTuple(args, "Unw*", &text, &size, &out))
        return NULL;
    PyObject *result = NULL;
    uint32_t *codes = NULL;
    Py_ssize_t length = PyUnicode_GetLength(text);
    Py_ssize_t padded = length < size ? size : length;
    if (length < 0)
        goto end;
    Py_ssize_t count = length ? padded - size + 1 : 0;
    if (size < 2 || size > MOST_CODES || out.len / 4 < count) {
        PyErr_SetString(PyExc_ValueError, "distinct_hashes: the size is not allowed, or the array is too short");
        goto end;
    }
    codes = padded <= PY_SSIZE_T_MAX / 4 ? PyMem_Malloc(4 * (size_t)padded) : NULL;
    if (codes == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    memset(codes + length, 0, 4 * (size_t)(padded - length));
    if (PyUnicode_AsUCS4(text, codes, padded, 0) == NULL)
        goto end;
    BEGIN_LOOPS(4 * count)
    for (Py_ssize_t start = 0; start < count; start += CHUNK)
        hash_chunk_here(codes + start, (uint32_t *)out.buf + start, (size_t)size,
                        (size_t)(count - start < CHUNK ? count - start : CHUNK));
    count = (Py_ssize_t)distinct(out.buf, codes, (size_t)count);
    END_LOOPS
    result = PyLong_FromSsize_t(count);
end:
    PyMem_Free(codes);
    PyBuffer_Release(&out);
    return result;
}

/* lower(rows, hashes, factors, summands) */
static PyObject *
lower(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    if (!PyArg_ParseTuple(args, "w*y*y*y*", &b[0], &b[1], &b[2], &b[3]))
        return NULL;
    if (b[2].len != b[0].len || b[3].len != b[0].len) {
        release(b, 4);
        PyErr_SetString(PyExc_ValueError, "lower: the numbers of rows differ");
        return NULL;
    }
    BEGIN_LOOPS(b[0].len / 4 * (b[1].len / 4) / 32)
    lower_rows_here(b[0].buf, b[2].buf, b[3].buf, (size_t)b[0].len / 4, b[1].buf, (size_t)b[1].len / 4);
    END_LOOPS
    release(b, 4);
    Py_RETURN_NONE;
}

/* Templates: content/template.py */

/* classify(counters, hashes, needed, needed_common, is_template, is_common): fills the last two. */
static PyObject *
classify(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    int needed, needed_common;
    if (!PyArg_ParseTuple(args, "y*y*iiw*w*", &b[0], &b[1], &needed, &needed_common, &b[2], &b[3]))
        return NULL;
    Py_ssize_t count = b[1].len / 4;
    if (b[0].len != 0x10000 || b[2].len != count || b[3].len != count) {
        release(b, 4);
        PyErr_SetString(PyExc_ValueError, "classify: the arrays do not have the right lengths");
        return NULL;
    }
    BEGIN_LOOPS(4 * count)
    Bytes counters = b[0].buf;
    const uint32_t *hashes = b[1].buf;
    unsigned char *is_template = b[2].buf, *is_common = b[3].buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        int counter = counters[hashes[i] >> 16];
        is_template[i] = counter >= needed;
        is_common[i] = counter >= needed_common;
    }
    END_LOOPS
    release(b, 4);
    Py_RETURN_NONE;
}

/* add_page(counters, hashes): adds 1 to each counter that a hash selects, and returns their number. */
static PyObject *
add_page(PyObject *module, PyObject *args)
{
    Py_buffer b[2];
    if (!PyArg_ParseTuple(args, "w*y*", &b[0], &b[1]))
        return NULL;
    if (b[0].len != 0x10000) {
        release(b, 2);
        PyErr_SetString(PyExc_ValueError, "add_page: there have to be 65,536 counters");
        return NULL;
    }
    long touched = 0;
    BEGIN_LOOPS(4 * (b[1].len / 4))
    unsigned char *counters = b[0].buf, is_touched[0x10000 / 8] = {0};
    const uint32_t *hashes = b[1].buf;
    Py_ssize_t count = b[1].len / 4;
    for (Py_ssize_t i = 0; i < count; i++) {
        uint32_t slot = hashes[i] >> 16;
        int bit = 1 << (slot & 7);
        if (!(is_touched[slot >> 3] & bit)) {
            is_touched[slot >> 3] |= (unsigned char)bit;
            counters[slot]++;
            touched++;
        }
    }
    END_LOOPS
    release(b, 2);
    return PyLong_FromLong(touched);
}

/* lower_parts(rare, whole, hashes, is_template, factors, summands): lowers `rare` to the minima over the hashes that
are not template, then `whole` to those and the minima over the others. */
static PyObject *
lower_parts(PyObject *module, PyObject *args)
{
    Py_buffer b[6];
    if (!PyArg_ParseTuple(args, "w*w*y*y*y*y*", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5]))
        return NULL;
    uint32_t *parted = NULL;
    size_t rows = (size_t)b[0].len / 4, count = (size_t)b[2].len / 4, rare = 0;
    if (b[1].len != b[0].len || b[4].len != b[0].len || b[5].len != b[0].len || (size_t)b[3].len != count) {
        PyErr_SetString(PyExc_ValueError, "lower_parts: the arrays do not have the right lengths");
        goto end;
    }
    parted = PyMem_Malloc(4 * (count ? count : 1));
    if (parted == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    BEGIN_LOOPS(rows * count / 32)
    const uint32_t *hashes = b[2].buf;
    Bytes is_template = b[3].buf;
    uint32_t *rare_rows = b[0].buf, *whole = b[1].buf;
    size_t last = count;
    for (size_t i = 0; i < count; i++)
        if (is_template[i])
            parted[--last] = hashes[i];
        else
            parted[rare++] = hashes[i];
    lower_rows_here(rare_rows, b[4].buf, b[5].buf, rows, parted, rare);
    lower_rows_here(whole, b[4].buf, b[5].buf, rows, parted + rare, count - rare);
    for (size_t i = 0; i < rows; i++)
        whole[i] = rare_rows[i] < whole[i] ? rare_rows[i] : whole[i];
    END_LOOPS
end:
    PyMem_Free(parted);
    release(b, 6);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

/* The screen: content/markup.py */

/* Positions of tags */
typedef struct {
    Py_ssize_t *items, count, room;
} Positions;

/* Append a position. `thread` is that of BEGIN_LOOPS. False if there is no memory. */
static int
append(Positions *positions, Py_ssize_t position, PyThreadState **thread)
{
    if (positions->count == positions->room) {
        Py_ssize_t room = positions->room ? 2 * positions->room : 64;
        if (*thread != NULL)
            PyEval_RestoreThread(*thread);
        Py_ssize_t *items = PyMem_Realloc(positions->items, (size_t)room * sizeof *items);
        if (*thread != NULL)
            *thread = PyEval_SaveThread();
        if (items == NULL)
            return 0;
        positions->items = items;
        positions->room = room;
    }
    positions->items[positions->count++] = position;
    return 1;
}

static PyObject *
list_of(const Positions *positions)
{
    PyObject *list = PyList_New(positions->count);
    for (Py_ssize_t i = 0; list != NULL && i < positions->count; i++) {
        PyObject *item = PyLong_FromSsize_t(positions->items[i]);
        if (item == NULL || PyList_SetItem(list, i, item) < 0)
            Py_CLEAR(list);
    }
    return list;
}

/* count_tags(source, keys, levels, lengths, long): see `_count_tags` in content/markup.py. */
static PyObject *
count_tags(PyObject *module, PyObject *args)
{
    Py_buffer b[4];
    Py_ssize_t longest;
    if (!PyArg_ParseTuple(args, "y*y*y*y*n", &b[0], &b[1], &b[2], &b[3], &longest))
        return NULL;
    PyObject *result = NULL, *formats_list = NULL, *long_list = NULL;
    Positions formats = {0}, long_tags = {0};
    size_t number = (size_t)b[2].len / 4, half = number / 2; /* keys of start tags, then those of end tags */
    long long *counts = NULL, steps = 0;
    char *is_bare = NULL;
    Py_ssize_t tags = 0, kinds = 0, length = b[0].len;
    int failed = 0;
    if (b[1].len != 2 * 0x10000 || (size_t)b[3].len != 8 * number || number < 2 || number % 2) {
        PyErr_SetString(PyExc_ValueError, "count_tags: the tables do not have the right lengths");
        goto end;
    }
    counts = PyMem_Calloc(number, sizeof *counts);
    is_bare = PyMem_Calloc(number, 1);
    if (counts == NULL || is_bare == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    BEGIN_LOOPS(length / 3)
    Bytes source = b[0].buf, end = source + length;
    const uint16_t *keys = b[1].buf;
    const int32_t *levels = b[2].buf;
    const int64_t *lengths = b[3].buf;
    long long level = 0, ground = 0;
    Bytes tag = length ? memchr(source, '<', (size_t)length) : NULL;
    while (tag != NULL) {
        Bytes name = tag + 1;
        int is_end = name < end && *name == '/';
        name += is_end;
        unsigned first = name < end ? name[0] : ' ', second = end - name > 1 ? name[1] : ' ';
        size_t key = keys[first << 8 | second];
        if (key >= half)
            key = half - 1;
        key += is_end ? half : 0;
        counts[key]++;
        level += levels[key];
        if (level < ground)
            ground = level;
        steps += level - ground;
        tags++;
        if (lengths[key]) {
            if (end - tag > lengths[key] + 1 && tag[lengths[key] + 1] == '>')
                is_bare[key] = 1;
            else
                failed |= !append(&formats, tag - source, &thread);
        }
        Bytes next = name < end ? memchr(name, '<', (size_t)(end - name)) : NULL;
        if ((next ? next : end) - tag > longest)
            failed |= !append(&long_tags, tag - source, &thread);
        tag = failed ? NULL : next;
    }
    long long unpaired = 0;
    for (size_t key = 0; key < half; key++) {
        long long difference = counts[key] - counts[key + half];
        unpaired += (difference < 0 ? -difference : difference) * levels[key];
    }
    unpaired += counts[half - 1] + counts[number - 1];
    steps += unpaired * tags;
    for (size_t key = 0; key < number; key++)
        kinds += is_bare[key];
    END_LOOPS
    if (failed) {
        PyErr_NoMemory();
        goto end;
    }
    formats_list = list_of(&formats);
    long_list = list_of(&long_tags);
    if (formats_list != NULL && long_list != NULL)
        result = Py_BuildValue("LnnOO", steps, tags, kinds, formats_list, long_list);
end:
    Py_XDECREF(formats_list);
    Py_XDECREF(long_list);
    PyMem_Free(formats.items);
    PyMem_Free(long_tags.items);
    PyMem_Free(counts);
    PyMem_Free(is_bare);
    release(b, 4);
    return result;
}

static int
is_space(unsigned char byte)
{
    return byte == ' ' || (byte >= 0x09 && byte <= 0x0D);
}

static int
is_word(unsigned char byte)
{
    return (byte >= '0' && byte <= '9') || ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') || byte == '_';
}

static int
is_one_of(unsigned char byte, const char *bytes)
{
    return byte && strchr(bytes, byte) != NULL;
}

static int
ends_name(Bytes at, Bytes end)
{
    return at < end && (is_space(*at) || *at == '/' || *at == '>');
}

/* The end of what `_ATTRIBUTES` matches, NULL if it does not match. */
static Bytes
after_attributes(Bytes at, Bytes end)
{
    for (int i = 0; i < 50; i++) {
        Bytes name = at;
        while (name < end && is_space(*name))
            name++;
        Bytes next = name;
        while (next < end && (is_word(*next) || is_one_of(*next, ".:-")))
            next++;
        if (name == at || next == name)
            break;
        if (end - next > 1 && *next == '=') {
            unsigned char quote = next[1];
            Bytes value = next + 1;
            if (quote == '"' || quote == '\'') {
                value++;
                while (value < end && *value != quote && *value != '<' && *value != '>')
                    value++;
                if (value < end && *value == quote)
                    next = value + 1;
            }
            else {
                while (value < end && (is_word(*value) || is_one_of(*value, "#%.,:;?&/+-")))
                    value++;
                if (value > next + 1)
                    next = value;
            }
        }
        if (!ends_name(next, end))
            break;
        at = next;
    }
    while (at < end && is_space(*at))
        at++;
    if (at < end && *at == '/')
        at++;
    return at < end && *at == '>' ? at + 1 : NULL;
}

/* The end of what `_SIMPLE_TAG` matches, NULL if it does not match. `at` is at a "<". */
static Bytes
after_simple_tag(Bytes at, Bytes end)
{
    at++;
    if (at < end && *at == '/')
        at++;
    if (at >= end || (*at | 0x20) < 'a' || (*at | 0x20) > 'z')
        return NULL;
    while (at < end && *at != '<' && !ends_name(at, end))
        at++;
    return after_attributes(at, end);
}

/* Whether these bytes are the names of an element in a list with spaces in between; `fold` is 0x20 to ignore the case. */
static int
is_listed(Bytes name, Bytes end, const char *list, int fold)
{
    size_t length = (size_t)(end - name);
    while (*list) {
        size_t size = strcspn(list, " "), i = 0;
        if (size == length) {
            while (i < size && (name[i] | fold) == list[i])
                i++;
            if (i == size)
                return 1;
        }
        list += size + (list[size] == ' ');
    }
    return 0;
}

static int
has(Bytes at, Bytes end, Bytes what, size_t length)
{
    return (size_t)(end - at) >= length && !memcmp(at, what, length);
}

/* Whether an element that starts with the name at `name` is closed by its own end tag; `at` is after its start tag. Only
text and simple elements may be in between. */
static int
is_closed(Bytes name, size_t length, Bytes at, Bytes end)
{
    for (;;) {
        at = at < end ? memchr(at, '<', (size_t)(end - at)) : NULL;
        if (at == NULL)
            return 0;
        Bytes child = at + 1, after = child;
        while (after < end && after - child < 7 && !ends_name(after, end))
            after++;
        size_t size = (size_t)(after - child);
        Bytes close = NULL;
        if (is_listed(child, after, "a b code em i span strong tt var", 0)
            && (after = after_attributes(after, end)) != NULL && after < end)
            close = memchr(after, '<', (size_t)(end - after));
        if (close == NULL || !has(close, end, (Bytes)"</", 2) || !has(close + 2, end, child, size)
            || !has(close + 2 + size, end, (Bytes)">", 1))
            break;
        at = close + size + 3;
    }
    return has(at, end, (Bytes)"</", 2) && has(at + 2, end, name, length) && has(at + 2 + length, end, (Bytes)">", 1);
}

#define REMEMBERED 1024

/* Tags that were found lately. Most tags are like one of them. */
typedef struct {
    Bytes starts[REMEMBERED];
    size_t lengths[REMEMBERED];
} Remembered;

/* Remember a tag. False if it is remembered already. */
static int
is_new(Remembered *tags, Bytes start, size_t length)
{
    uint32_t hash = 0;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ start[i]) * 0x01000193u;
    hash = mix(hash, 15) % REMEMBERED;
    if (tags->lengths[hash] == length && !memcmp(tags->starts[hash], start, length))
        return 0;
    tags->starts[hash] = start;
    tags->lengths[hash] = length;
    return 1;
}

/* Add bytes to a Python set; -1 if that fails. */
static int
add_bytes(PyObject *set, Bytes start, Py_ssize_t length)
{
    PyObject *bytes = PyBytes_FromStringAndSize((const char *)start, length);
    int result = bytes == NULL ? -1 : PySet_Add(set, bytes);
    Py_XDECREF(bytes);
    return result;
}

/* simple_tags(source, positions): see `_simple_tags` in content/markup.py. */
static PyObject *
simple_tags(PyObject *module, PyObject *args)
{
    Py_buffer source;
    PyObject *positions;
    if (!PyArg_ParseTuple(args, "y*O!", &source, &PyList_Type, &positions))
        return NULL;
    PyObject *set = PySet_New(NULL);
    Remembered *remembered = PyMem_Calloc(1, sizeof *remembered);
    if (set == NULL || remembered == NULL)
        PyErr_NoMemory();
    Bytes start = source.buf, end = start + source.len;
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < PyList_Size(positions); i++) {
        Py_ssize_t position = PyLong_AsSsize_t(PyList_GetItem(positions, i));
        if (position < 0 || position >= source.len) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_ValueError, "simple_tags: a position is not in the page");
            break;
        }
        Bytes tag = start + position, after = after_simple_tag(tag, end);
        if (after == NULL) {
            Py_DECREF(set);
            set = Py_NewRef(Py_None);
            break;
        }
        if (is_new(remembered, tag, (size_t)(after - tag)))
            add_bytes(set, tag, after - tag);
    }
    PyMem_Free(remembered);
    PyBuffer_Release(&source);
    if (PyErr_Occurred())
        Py_CLEAR(set);
    return set;
}

/* left_open(source): see `_left_open` in content/markup.py. */
static PyObject *
left_open(PyObject *module, PyObject *argument)
{
    Py_buffer source;
    if (PyObject_GetBuffer(argument, &source, PyBUF_SIMPLE) < 0)
        return NULL;
    PyObject *result = NULL, *set = PySet_New(NULL);
    Remembered *remembered = PyMem_Calloc(1, sizeof *remembered);
    Positions found = {0}; /* of the start and the end of each */
    Py_ssize_t unread = 0;
    int failed = set == NULL || remembered == NULL;
    Bytes start = source.buf, end = start + source.len;
    BEGIN_LOOPS(source.len)
    Bytes at = start;
    while (!failed && at < end && (at = memchr(at, '<', (size_t)(end - at))) != NULL) {
        Bytes tag = at++, after = at;
        while (after < end && after - at < 7 && !ends_name(after, end))
            after++;
        if (!ends_name(after, end) || !is_one_of(*at, "bceifstuBCEIFSTU")
            || !(after - at == 1 || is_listed(at + 1, after, "ig ode m ont mall trike trong t", 0x20)))
            continue;
        size_t length = (size_t)(after - at);
        Bytes read = after_attributes(after, end);
        if (read != NULL && is_closed(at, length, read, end))
            continue;
        unread += read == NULL;
        after = read == NULL ? after : read;
        if (is_new(remembered, tag, (size_t)(after - tag)))
            failed = !append(&found, tag - start, &thread) || !append(&found, after - start, &thread);
        at = after;
    }
    END_LOOPS
    for (Py_ssize_t i = 0; !failed && i < found.count; i += 2)
        failed = add_bytes(set, start + found.items[i], found.items[i + 1] - found.items[i]) < 0;
    if (!failed)
        result = Py_BuildValue("On", set, unread);
    else if (!PyErr_Occurred())
        PyErr_NoMemory();
    Py_XDECREF(set);
    PyMem_Free(remembered);
    PyMem_Free(found.items);
    PyBuffer_Release(&source);
    return result;
}

/* Canonical text: content/canonical.py */

enum { PLAIN, SPACE, DROPPED, WIDE };

static unsigned char CLASSES[256];

static void
fill_classes(void)
{
    for (int byte = 0; byte < 256; byte++)
        CLASSES[byte] = byte >= 0x80                                    ? WIDE
                        : byte == ' ' || (byte >= 0x09 && byte <= 0x0D) ? SPACE
                        : byte < 0x20 || byte == 0x7F                   ? DROPPED
                                                                        : PLAIN;
}

/* Blocks of characters that NFC leaves as they are and that do not combine with others, in order. Other characters are
checked by Python. */
static const uint32_t STABLE[][2] = {
    {0x0388, 0x03FF}, {0x0400, 0x0482}, {0x048A, 0x052F}, {0x05D0, 0x05EA}, {0x0620, 0x064A}, {0x0E01, 0x0E30},
    {0x1E00, 0x1EFF}, {0x2010, 0x2027}, {0x2030, 0x205E}, {0x20A0, 0x20BF}, {0x2190, 0x22FF}, {0x2500, 0x27BF},
    {0x3001, 0x3029}, {0x3031, 0x3098}, {0x309D, 0x30FF}, {0x3400, 0x4DBF}, {0x4E00, 0x9FFF}, {0xAC00, 0xD7A3},
    {0xFF01, 0xFF9D}, {0x1F300, 0x1F64F}, {0x1F680, 0x1F6C5}, {0x1F900, 0x1F9FF},
};

static int
is_stable(uint32_t code)
{
    size_t low = 0, high = sizeof STABLE / sizeof *STABLE;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code > STABLE[middle][1])
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof STABLE / sizeof *STABLE && code >= STABLE[low][0];
}

#define EACH_BYTE(byte) ((uint64_t)0x0101010101010101u * (byte))

/* Whether eight bytes are printable ASCII, of which no two in a row are spaces. */
INLINE int
is_plain(uint64_t bytes)
{
    const uint64_t highest = EACH_BYTE(0x80);
    uint64_t others = bytes ^ EACH_BYTE(' ');
    uint64_t spaces = ~((others & ~highest) + ~highest) & ~others & highest;
    return !((bytes | ~(bytes + EACH_BYTE(0x60)) | (bytes + EACH_BYTE(0x01))) & highest) && !(spaces & spaces << 8);
}

/* Write UTF-8 without dropped characters, and with white space collapsed and trimmed. Returns its length. */
static Py_ssize_t
collapse_bytes(Bytes from, Bytes end, unsigned char *to, int *may_change)
{
    unsigned char *at = to;
    int has_space = 1; /* nothing was written, or a space at the end */
    while (from < end) {
        uint64_t bytes;
        while (end - from >= 8 && (memcpy(&bytes, from, 8), is_plain(bytes)) && !(has_space && *from == ' ')) {
            memcpy(at, &bytes, 8);
            at += 8;
            from += 8;
            has_space = from[-1] == ' ';
        }
        if (from == end)
            break;
        int class = CLASSES[*from], length = 1;
        if (class == WIDE) {
            length = *from < 0xE0 ? 2 : *from < 0xF0 ? 3 : 4;
            uint32_t code = *from & (0xFFu >> (length + 1));
            for (int i = 1; i < length; i++)
                code = code << 6 | (from[i] & 0x3F);
            if (code == 0x85 || code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A)
                || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000)
                class = SPACE;
            else if (code < 0xA0 || code == 0xAD || code == 0xFEFF || (code >= 0x200B && code <= 0x200D))
                class = DROPPED;
            else if (code >= 0x300 && !*may_change)
                *may_change = !is_stable(code);
        }
        if (class == SPACE) {
            if (!has_space)
                *at++ = ' ';
            has_space = 1;
        }
        else if (class != DROPPED) {
            for (int i = 0; i < length; i++)
                *at++ = from[i];
            has_space = 0;
        }
        from += length;
    }
    return at - to - (has_space && at > to);
}

/* collapse(text): the text without dropped characters and with collapsed white space, and whether NFC may change it. */
static PyObject *
collapse(PyObject *module, PyObject *text)
{
    PyObject *source = PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"), *string = NULL, *result = NULL;
    char *bytes;
    Py_ssize_t length;
    int may_change = 0;
    if (source == NULL || PyBytes_AsStringAndSize(source, &bytes, &length) < 0)
        return NULL;
    char *collapsed = PyMem_Malloc(length ? (size_t)length : 1);
    if (collapsed == NULL) {
        Py_DECREF(source);
        return PyErr_NoMemory();
    }
    BEGIN_LOOPS(length)
    length = collapse_bytes((Bytes)bytes, (Bytes)bytes + length, (unsigned char *)collapsed, &may_change);
    END_LOOPS
    Py_DECREF(source);
    string = PyUnicode_DecodeUTF8(collapsed, length, "surrogatepass");
    PyMem_Free(collapsed);
    if (string != NULL)
        result = Py_BuildValue("NO", string, may_change ? Py_True : Py_False);
    return result;
}

/* BLAKE2b (RFC 7693) with a digest of 64 bytes and without a key. */

#define ROTATE(x, by) ((x) >> (by) | (x) << (64 - (by)))
#define MIX(a, b, c, d, x, y)           \
    a += b + (x), d = ROTATE(d ^ a, 32); \
    c += d, b = ROTATE(b ^ c, 24);       \
    a += b + (y), d = ROTATE(d ^ a, 16); \
    c += d, b = ROTATE(b ^ c, 63);
#define ROUND(s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, s10, s11, s12, s13, s14, s15) \
    MIX(v[0], v[4], v[8], v[12], m[s0], m[s1])                                      \
    MIX(v[1], v[5], v[9], v[13], m[s2], m[s3])                                      \
    MIX(v[2], v[6], v[10], v[14], m[s4], m[s5])                                     \
    MIX(v[3], v[7], v[11], v[15], m[s6], m[s7])                                     \
    MIX(v[0], v[5], v[10], v[15], m[s8], m[s9])                                     \
    MIX(v[1], v[6], v[11], v[12], m[s10], m[s11])                                   \
    MIX(v[2], v[7], v[8], v[13], m[s12], m[s13])                                    \
    MIX(v[3], v[4], v[9], v[14], m[s14], m[s15])

static const uint64_t BLAKE2B_START[8] = {
    0x6A09E667F3BCC908u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u,
};

/* One block of 128 bytes; `count` is the number of bytes up to its end. */
static void
compress_block(uint64_t *state, Bytes block, uint64_t count, int is_last)
{
    uint64_t m[16], v[16];
    for (int i = 0; i < 16; i++, block += 8) {
        m[i] = 0;
        for (int j = 0; j < 8; j++)
            m[i] |= (uint64_t)block[j] << (8 * j);
    }
    for (int i = 0; i < 8; i++) {
        v[i] = state[i];
        v[i + 8] = BLAKE2B_START[i];
    }
    v[12] ^= count;
    if (is_last)
        v[14] = ~v[14];
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
    ROUND(11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4)
    ROUND(7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8)
    ROUND(9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13)
    ROUND(2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9)
    ROUND(12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11)
    ROUND(13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10)
    ROUND(6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5)
    ROUND(10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0)
    ROUND(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
    ROUND(14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3)
    for (int i = 0; i < 8; i++)
        state[i] ^= v[i] ^ v[i + 8];
}

/* The digest as eight words, of which the first byte is the lowest one. */
static void
blake2b(uint64_t *digest, Bytes data, Py_ssize_t length)
{
    unsigned char last[128] = {0};
    uint64_t count = 0;
    memcpy(digest, BLAKE2B_START, sizeof(BLAKE2B_START));
    digest[0] ^= 0x01010000 ^ 64;
    for (; length > 128; length -= 128, data += 128) {
        count += 128;
        compress_block(digest, data, count, 0);
    }
    if (length)
        memcpy(last, data, length);
    compress_block(digest, last, count + length, 1);
}

/* Bands of signatures: content/signature.py */

#define DIGEST_BYTES 8
#define MOST_BANDS 0x10000

/* hash_bands(rows, width, bands, namespace, key, first): see `_hash_bands`. */
static PyObject *
hash_bands(PyObject *module, PyObject *args)
{
    Py_buffer b[3];
    Py_ssize_t width, bands, first;
    if (!PyArg_ParseTuple(args, "y*nny*y*n", &b[0], &width, &bands, &b[1], &b[2], &first))
        return NULL;
    uint64_t person[2] = {0};
    unsigned char *message = NULL;
    PyObject *list = NULL;
    if (width < 1 || bands < 0 || (bands && b[0].len / bands < width) || b[1].len > (Py_ssize_t)sizeof(person)
        || first < 0 || first > MOST_BANDS - bands) {
        PyErr_SetString(PyExc_ValueError, "hash_bands: the rows are too few, or a number is not allowed");
        goto end;
    }
    for (Py_ssize_t i = 0; i < b[1].len; i++)
        person[i / 8] |= (uint64_t)((Bytes)b[1].buf)[i] << (8 * (i % 8));
    Py_ssize_t length = width + b[2].len;
    message = PyMem_Calloc((size_t)length / 128 + 1, 128);
    if (message == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    if (b[2].len)
        memcpy(message + width, b[2].buf, (size_t)b[2].len);
    list = PyList_New(bands);
    for (Py_ssize_t band = 0; list != NULL && band < bands; band++) {
        uint64_t state[8];
        char digest[DIGEST_BYTES];
        Py_ssize_t at = 0;
        memcpy(message, (Bytes)b[0].buf + band * width, (size_t)width);
        memcpy(state, BLAKE2B_START, sizeof(BLAKE2B_START));
        state[0] ^= 0x01010000 ^ DIGEST_BYTES;
        state[4] ^= (uint64_t)(first + band); /* the salt */
        state[6] ^= person[0];
        state[7] ^= person[1];
        for (; length - at > 128; at += 128)
            compress_block(state, message + at, (uint64_t)at + 128, 0);
        compress_block(state, message + at, (uint64_t)length, 1);
        for (int i = 0; i < DIGEST_BYTES; i++)
            digest[i] = (char)(state[0] >> (8 * i));
        PyObject *bytes = PyBytes_FromStringAndSize(digest, DIGEST_BYTES);
        if (bytes == NULL || PyList_SetItem(list, band, bytes) < 0)
            Py_CLEAR(list);
    }
end:
    PyMem_Free(message);
    release(b, 3);
    return list;
}

/* Layers of the URL filter: urls/bloom.py */

#define MOST_HASHES 16 /* of 32 bits in a digest */

typedef struct {
    Py_buffer buffer;
    uint32_t hashes, width;
} Layer;

/* The layer of the arguments bits, hashes and slice_bits; -1 with an exception if they do not match. */
static int
open_layer(Layer *layer, PyObject *const *args, int flags)
{
    unsigned long hashes = PyLong_AsUnsignedLong(args[1]), width = PyLong_AsUnsignedLong(args[2]);
    if (PyErr_Occurred() || PyObject_GetBuffer(args[0], &layer->buffer, flags) < 0)
        return -1;
    if (hashes < 1 || hashes > MOST_HASHES || width < 1 || width > UINT32_MAX
        || (uint64_t)layer->buffer.len * 8 < (uint64_t)hashes * width) {
        PyBuffer_Release(&layer->buffer);
        PyErr_SetString(PyExc_ValueError, "a layer of the URL filter does not have the right lengths");
        return -1;
    }
    layer->hashes = (uint32_t)hashes;
    layer->width = (uint32_t)width;
    return 0;
}

/* The digest of a key, as 32-bit words; -1 with an exception if it has no bytes. */
static int
find_words(PyObject *key, uint32_t *words)
{
    Py_buffer buffer;
    uint64_t digest[8];
    if (PyObject_GetBuffer(key, &buffer, PyBUF_SIMPLE) < 0)
        return -1;
    blake2b(digest, buffer.buf, buffer.len);
    PyBuffer_Release(&buffer);
    for (int i = 0; i < MOST_HASHES; i++)
        words[i] = (uint32_t)(digest[i / 2] >> 32 * (i % 2));
    return 0;
}

/* Whether all bits of a key are set; -1 with an exception. */
static int
has_bits(const Layer *layer, PyObject *key)
{
    uint32_t words[MOST_HASHES];
    Bytes bits = layer->buffer.buf;
    if (find_words(key, words) < 0)
        return -1;
    for (uint32_t i = 0; i < layer->hashes; i++) {
        uint64_t place = (uint64_t)i * layer->width + words[i] % layer->width;
        if (!(bits[place >> 3] >> (place & 7) & 1))
            return 0;
    }
    return 1;
}

/* Set the bits of a key. Whether any was clear; -1 with an exception. */
static int
set_bits(const Layer *layer, PyObject *key)
{
    uint32_t words[MOST_HASHES];
    unsigned char *bits = layer->buffer.buf;
    int is_new = 0;
    if (find_words(key, words) < 0)
        return -1;
    for (uint32_t i = 0; i < layer->hashes; i++) {
        uint64_t place = (uint64_t)i * layer->width + words[i] % layer->width;
        unsigned char bit = 1 << (place & 7);
        is_new |= !(bits[place >> 3] & bit);
        bits[place >> 3] |= bit;
    }
    return is_new;
}

static int
has_arguments(Py_ssize_t count, Py_ssize_t wanted)
{
    if (count != wanted)
        PyErr_Format(PyExc_TypeError, "%zd arguments instead of %zd", count, wanted);
    return count == wanted;
}

/* add_key(bits, hashes, slice_bits, key): sets a bit in each slice, and returns whether any was clear. */
static PyObject *
add_key(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Layer layer;
    if (!has_arguments(count, 4) || open_layer(&layer, args, PyBUF_WRITABLE) < 0)
        return NULL;
    int is_new = set_bits(&layer, args[3]);
    PyBuffer_Release(&layer.buffer);
    return is_new < 0 ? NULL : PyBool_FromLong(is_new);
}

/* has_key(bits, hashes, slice_bits, key): whether the bits of the key are set. */
static PyObject *
has_key(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Layer layer;
    if (!has_arguments(count, 4) || open_layer(&layer, args, PyBUF_SIMPLE) < 0)
        return NULL;
    int has_all = has_bits(&layer, args[3]);
    PyBuffer_Release(&layer.buffer);
    return has_all < 0 ? NULL : PyBool_FromLong(has_all);
}

/* add_keys(bits, hashes, slice_bits, keys, unless): the number of keys in the list `keys` that were new and have been added;
0 if the key `unless` or the first one was not new: then none is added. */
static PyObject *
add_keys(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    Layer layer;
    if (!has_arguments(count, 5))
        return NULL;
    if (!PyList_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "the keys are not a list");
        return NULL;
    }
    if (open_layer(&layer, args, PyBUF_WRITABLE) < 0)
        return NULL;
    Py_ssize_t added = 0, length = PyList_Size(args[3]);
    if (has_bits(&layer, args[4]) == 0)
        for (Py_ssize_t i = 0; i < length && (i == 0 || added); i++) {
            int is_new = set_bits(&layer, PyList_GetItem(args[3], i));
            if (is_new < 0)
                break;
            added += is_new;
        }
    PyBuffer_Release(&layer.buffer);
    return PyErr_Occurred() ? NULL : PyLong_FromSsize_t(added);
}

/* Fingerprints: live/urls/fingerprints.py */

typedef struct {
    Bytes start, end;
} Parameter;

/* The order by name, then by value: '=' is lower than all other characters. */
static int
compare_parameters(const void *left, const void *right)
{
    Bytes a = ((const Parameter *)left)->start, a_end = ((const Parameter *)left)->end;
    Bytes b = ((const Parameter *)right)->start, b_end = ((const Parameter *)right)->end;
    while (a < a_end && b < b_end && *a == *b)
        a++, b++;
    int a_rank = a == a_end ? -1 : *a == '=' ? 0 : *a, b_rank = b == b_end ? -1 : *b == '=' ? 0 : *b;
    return a_rank - b_rank;
}

/* sorted_query(query): the parameters of a query sorted by name, then by value. */
static PyObject *
sorted_query(PyObject *module, PyObject *query)
{
    Parameter few[32], *parameters = few;
    Py_ssize_t length, count = 1;
    Bytes at = (Bytes)PyUnicode_AsUTF8AndSize(query, &length);
    if (at == NULL)
        return NULL;
    Bytes end = at + length;
    for (Bytes byte = at; byte < end; byte++)
        count += *byte == '&';
    char *sorted = PyMem_Malloc(length + 1);
    if (count > 32)
        parameters = PyMem_Calloc(count, sizeof(Parameter));
    PyObject *result = NULL;
    if (sorted == NULL || parameters == NULL)
        PyErr_NoMemory();
    else {
        for (Py_ssize_t i = 0; i < count; i++, at++) {
            parameters[i].start = at;
            while (at < end && *at != '&')
                at++;
            parameters[i].end = at;
        }
        qsort(parameters, count, sizeof(Parameter), compare_parameters);
        char *to = sorted;
        for (Py_ssize_t i = 0; i < count; i++) {
            Py_ssize_t size = parameters[i].end - parameters[i].start;
            memcpy(to, parameters[i].start, size);
            to += size;
            *to++ = '&';
        }
        result = PyUnicode_DecodeUTF8(sorted, length, NULL);
    }
    if (parameters != few)
        PyMem_Free(parameters);
    PyMem_Free(sorted);
    return result;
}

static PyMethodDef METHODS[] = {
    {"add_key", (PyCFunction)(void (*)(void))add_key, METH_FASTCALL, NULL},
    {"add_keys", (PyCFunction)(void (*)(void))add_keys, METH_FASTCALL, NULL},
    {"add_page", add_page, METH_VARARGS, NULL},
    {"classify", classify, METH_VARARGS, NULL},
    {"collapse", collapse, METH_O, NULL},
    {"count_tags", count_tags, METH_VARARGS, NULL},
    {"distinct_hashes", distinct_hashes, METH_VARARGS, NULL},
    {"has_key", (PyCFunction)(void (*)(void))has_key, METH_FASTCALL, NULL},
    {"hash_bands", hash_bands, METH_VARARGS, NULL},
    {"left_open", left_open, METH_O, NULL},
    {"lower", lower, METH_VARARGS, NULL},
    {"lower_parts", lower_parts, METH_VARARGS, NULL},
    {"simple_tags", simple_tags, METH_VARARGS, NULL},
    {"sorted_query", sorted_query, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static int
execute(PyObject *module)
{
    fill_classes();
#ifdef FOR_AVX2
    __builtin_cpu_init();
    has_avx2 = __builtin_cpu_supports("avx2");
#endif
    return PyModule_AddIntConstant(module, "VERSION", KERNEL_VERSION);
}

static PyModuleDef_Slot MODULE_SLOTS[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "scrapy_dedupe._kernel", NULL, 0, METHODS, MODULE_SLOTS, NULL, NULL, NULL,
};

PyMODINIT_FUNC
PyInit__kernel(void)
{
    return PyModuleDef_Init(&MODULE);
}
