/* The optional compiled module. Without it the same is done in Python; property tests hold the two equal.

   `lay_out_sends` handles plain sends, many at a time: frames of requests 310 and 320 become records and replies. It
   takes only what is common: JSON headers in ASCII as clients write them, known queues, a unique key (that of a batch
   may be missing if its messages are stored one by one), at most one tag, no timer, and, if senders are checked,
   signatures of known ones. It stops before any other frame, which Python then handles, errors included. It
   changes nothing but the next offsets of queues. `split_records` reads records back from the log, on a replica: what is
   common, as above. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ELEMENT: of a message in a batch, before its body. NOTE: of properties that are added to those of a client and of the
   broker, with a unique key of up to KEY_BYTES_MAX. BATCH_BYTES_EXTRA: of records, beyond the limit of a message.
   SYS_FLAGS: other ones change what is done with a message. QUEUES_MAX: of one call. REPLY_NUMBERS: all numbers of a
   reply, its prefix, and the name of the key of a batch. ID: of a message in a reply, with a comma. */
enum {
    PREFIX_BYTES = 8, HEAD_BYTES = 88, ENTRY_BYTES = 20, DIGEST_BYTES = 20, SIGNATURE_BYTES = 28, ELEMENT_BYTES = 20,
    TEXT_BYTES_MAX = 32767, KEY_BYTES_MAX = 255, NOTE_BYTES_MAX = 900, BATCH_BYTES_EXTRA = 64 << 10,
    COMPRESSED = 1, PREPARED = 4, SYS_FLAGS = 0x701, INNER_BATCH_FLAGS = 0xC0,
    QUEUES_MAX = 64, REPLY_NUMBERS_BYTES = 160, ID_BYTES = 33
};

/* Fields of a header: `a` to `n`, then those about the user. */
enum { ACCESS_KEY = 'n' - 'a' + 1, SECURITY_TOKEN, SIGNATURE, FIELD_COUNT };
static const char *const USER_FIELDS[] = {"AccessKey", "SecurityToken", "Signature"};

/* What is the same for all sends of a call. */
enum { ADDED, FUNCTIONS, REPLY, CONSTANT_COUNT = REPLY + 6 };

typedef uint32_t (*crc_function)(uint32_t, const char *, uint32_t);
struct text { const char *at; Py_ssize_t bytes; };
#define TEXT(literal) ((struct text){literal, sizeof literal - 1})
#define END TEXT("\2") /* of a property */
#define HALF TEXT("\n") /* the level of half messages; no client can name it */
struct sha1 { uint32_t words[24]; }; /* SHA_CTX of libcrypto */
struct growing { PyObject *bytes; Py_ssize_t used; }; /* bytes: a bytearray */
enum { RECORDS, REPLIES, ENTRIES, OUTPUT_COUNT };      /* entries: those of the current frame */

struct queue {
    PyObject *place, *object; /* place: a new reference */
    struct text topic;
    unsigned magic;
    int queue_id, is_batched; /* batched: a batch is one record */
    long long delay_ms, next_offset; /* delay: of a queue in which messages wait */
};

struct send {
    struct text fields[FIELD_COUNT], level; /* `at` is NULL without one; level: of a delay, or HALF */
    struct text body, unique_key, properties; /* properties: with a last separator and the broker's own */
    bool is_batch;
    long long sys_flag, flag, born, opaque, tags_code;
    char text[TEXT_BYTES_MAX + NOTE_BYTES_MAX];
};

/* One call of `lay_out_sends`: others may run while Python code is called. */
struct burst {
    const char *data, *end;
    PyObject *places, *senders, *timestamp, *record, *batch, *inner_batch;
    long long position, limit, store_time;
    unsigned long long born_host, store_host;
    Py_ssize_t header_bytes_max, body_bytes_max, frames;
    struct text constants[CONSTANT_COUNT];
    struct {
        crc_function crc32;
        int (*sha1_update)(struct sha1 *, const void *, size_t);
        int (*sha1_final)(unsigned char *, struct sha1 *);
    } functions;
    struct growing out[OUTPUT_COUNT];
    PyObject *results, *singles; /* singles: the last of the results, if it is of single messages */
    int queue_count;
    struct queue queues[QUEUES_MAX];
    struct send send; /* the current one; not cleared */
};

static uint32_t read_u32(const char *at) {
    const unsigned char *p = (const unsigned char *)at;
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

#define READ_U64(at) ((uint64_t)read_u32(at) << 32 | read_u32((at) + 4))
#define TWO_WORDS(number) (uint32_t)((uint64_t)(number) >> 32), (uint32_t)(number)

static char *put_words(char *to, const uint32_t *words, size_t bytes) {
    for (size_t i = 0; i < bytes / sizeof *words; i++)
        for (int shift = 24; shift >= 0; shift -= 8)
            *to++ = (char)(words[i] >> shift);
    return to;
}

static char *put_text(char *to, struct text text) {
    memcpy(to, text.at, (size_t)text.bytes);
    return to + text.bytes;
}

static char *put_number(char *to, long long number) {
    if (number > 9)
        to = put_number(to, number / 10);
    *to++ = (char)('0' + number % 10);
    return to;
}

static bool equals(struct text text, const char *literal) {
    return text.at && (size_t)text.bytes == strlen(literal) && !memcmp(text.at, literal, (size_t)text.bytes);
}

static const char *find(struct text text, const char *word) {
    return memmem(text.at, (size_t)text.bytes, word, strlen(word));
}

/* Java's hash of a text behind a prefix of known hash; false if it is not ASCII. */
static bool read_hash(uint32_t prefix, struct text text, long long *hash) {
    unsigned char seen = 0;
    for (Py_ssize_t i = 0; i < text.bytes; seen |= (unsigned char)text.at[i++])
        prefix = prefix * 31 + (unsigned char)text.at[i];
    *hash = (int32_t)prefix;
    return seen < 0x80;
}

static bool skip(const char **at, const char *end, const char *literal) {
    size_t bytes = strlen(literal);
    bool is_there = (size_t)(end - *at) >= bytes && !memcmp(*at, literal, bytes);
    *at += is_there ? bytes : 0;
    return is_there;
}

/* A number without sign or leading zeros, up to a limit below 10^18. */
static bool read_number(const char **at, const char *end, long long limit, long long *number) {
    const char *start = *at;
    for (*number = 0; *at < end && **at >= '0' && **at <= '9' && *number <= limit / 10; ++*at)
        *number = *number * 10 + (**at - '0');
    return *at > start && (*start != '0' || *at == start + 1) && *number <= limit;
}

static bool to_number(struct text text, long long limit, long long *number) {
    const char *at = text.at, *end = text.at + text.bytes;
    return at && read_number(&at, end, limit, number) && at == end;
}

/* A quoted text of printable ASCII, \u0001 and \u0002. */
static bool read_quoted(const char **at, const char *end, struct text *text) {
    const char *p = *at;
    if (p >= end || *p != '"')
        return false;
    for (text->at = ++p; p < end && *p != '"'; p++)
        if (*p == '\\' && end - p > 5 && !memcmp(p, "\\u000", 5) && (p[5] == '1' || p[5] == '2'))
            p += 5;
        else if (*p == '\\' || (unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7F)
            return false;
    text->bytes = p - text->at;
    *at = p + 1;
    return p < end;
}

static struct text *find_field(struct send *send, struct text name) {
    if (name.bytes == 1 && *name.at >= 'a' && *name.at <= 'n')
        return &send->fields[*name.at - 'a'];
    for (int i = ACCESS_KEY; i < FIELD_COUNT; i++)
        if (equals(name, USER_FIELDS[i - ACCESS_KEY]))
            return &send->fields[i];
    return NULL;
}

/* The ext fields, behind their opening brace, each once. */
static bool read_fields(const char **at, const char *end, struct send *send) {
    struct text name, *field;
    do
        if (!read_quoted(at, end, &name) || !skip(at, end, ":") || !(field = find_field(send, name)) ||
            field->at || !read_quoted(at, end, field))
            return false;
    while (skip(at, end, ","));
    return skip(at, end, "},");
}

#define FIELD(letter) send->fields[letter - 'a']
#define IS_ABSENT_OR(letter, literal) (!FIELD(letter).at || equals(FIELD(letter), literal))

/* A header with its members in the order of Java. */
static bool read_header(const char *at, const char *end, struct send *send) {
    struct text language;
    long long number; /* only checked */
    memset(send->fields, 0, sizeof send->fields);
    send->is_batch = skip(&at, end, "{\"code\":320,");
    return (send->is_batch || skip(&at, end, "{\"code\":310,")) && skip(&at, end, "\"extFields\":{") &&
           read_fields(&at, end, send) && skip(&at, end, "\"flag\":0,\"language\":") &&
           read_quoted(&at, end, &language) && skip(&at, end, ",\"opaque\":") &&
           read_number(&at, end, INT32_MAX, &send->opaque) &&
           skip(&at, end, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":") &&
           read_number(&at, end, INT32_MAX, &number) && skip(&at, end, "}") && at == end && FIELD('a').at &&
           FIELD('b').at && FIELD('c').at && to_number(FIELD('d'), INT32_MAX, &number) && FIELD('e').at &&
           to_number(FIELD('f'), INT32_MAX, &send->sys_flag) && to_number(FIELD('h'), INT32_MAX, &send->flag) &&
           to_number(FIELD('g'), 999999999999999999LL, &send->born) && FIELD('i').at && IS_ABSENT_OR('j', "0") &&
           IS_ABSENT_OR('k', "false") && !FIELD('l').at &&
           (IS_ABSENT_OR('m', "false") || (send->is_batch && equals(FIELD('m'), "true")));
}

/* The value of a property that occurs at most once; false if it occurs twice, is empty, or inside of another. */
static bool read_property(struct text properties, const char *name, struct text *value) {
    const char *end = properties.at + properties.bytes, *at = find(properties, name);
    *value = (struct text){0};
    if (!at)
        return true;
    const char *start = at + strlen(name), *stop = memchr(start, 2, (size_t)(end - start));
    if ((at > properties.at && at[-1] != 2) || !stop || stop == start || find((struct text){start, end - start}, name))
        return false;
    *value = (struct text){start, stop - start};
    return true;
}

/* The code of the only tag, which is ASCII; 0 without one. */
static bool read_tags(struct text properties, long long *code) {
    struct text tags;
    return read_property(properties, "TAGS\1", &tags) && read_hash(0, tags, code);
}

/* Decode the properties. False for messages that need more than to be stored. */
static bool read_properties(struct send *send, struct text added) {
    static const char *const special[] = {"TIMER_", "REAL_", "__transactionId__", "POP_CK", "INNER_", "WAIT\1false"};
    struct text raw = FIELD('i'), text = {send->text, 0}, *key = &send->unique_key, half;
    char *to = send->text;
    if (raw.bytes + 1 + added.bytes > TEXT_BYTES_MAX)
        return false;
    for (const char *p = raw.at, *end = raw.at + raw.bytes; p < end; p++)
        *to++ = *p == '\\' ? (char)(*(p += 5) - '0') : *p;
    FIELD('i') = (struct text){send->text, to - send->text}; /* as it is signed */
    if (raw.bytes && to[-1] != 2)
        *to++ = 2;
    text.bytes = to - send->text;
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (find(text, special[i]))
            return false;
    send->properties = (struct text){send->text, put_text(to, added) - send->text};
    if (!read_property(text, "UNIQ_KEY\1", key) || !read_property(text, "TRAN_MSG\1", &half) ||
        !read_tags(text, &send->tags_code) || !read_property(text, "DELAY\1", &send->level) ||
        (!send->level.at && find(text, "DELAY")) || (!half.at && find(text, "TRAN_MSG")) ||
        (half.at && (!equals(half, "true") || send->level.at || key->bytes > KEY_BYTES_MAX)))
        return false;
    send->level = half.at ? HALF : send->level;
    send->sys_flag &= half.at ? ~PREPARED : -1;
    return !(send->sys_flag & ~SYS_FLAGS) && (key->at ? !memchr(key->at, 1, (size_t)key->bytes) : send->is_batch) &&
           !(send->is_batch && (send->level.at || find(text, "TAGS")));
}

/* A borrowed value of a dict whose keys are two texts and a separator; NULL without an error if there is none. */
static PyObject *look_up(PyObject *table, struct text first, const char *separator, struct text second) {
    char key[512];
    if (first.bytes + second.bytes + 1 > (Py_ssize_t)sizeof key)
        return NULL;
    char *end = put_text(put_text(put_text(key, first), (struct text){separator, 1}), second);
    PyObject *name = PyBytes_FromStringAndSize(key, end - key);
    PyObject *found = name ? PyDict_GetItemWithError(table, name) : NULL;
    Py_XDECREF(name);
    return found;
}

/* A known queue; NULL without an error if it is not known, or there are too many. */
static struct queue *find_queue(struct burst *burst, struct text topic, const char *separator, struct text queue_id) {
    PyObject *place = look_up(burst->places, topic, separator, queue_id);
    if (!place)
        return NULL;
    for (int i = 0; i < burst->queue_count; i++)
        if (burst->queues[i].place == place)
            return &burst->queues[i];
    struct queue *queue = &burst->queues[burst->queue_count];
    if (burst->queue_count == QUEUES_MAX ||
        !PyArg_ParseTuple(place, "Oy#IipL", &queue->object, &queue->topic.at, &queue->topic.bytes, &queue->magic,
                          &queue->queue_id, &queue->is_batched, &queue->delay_ms))
        return NULL;
    PyObject *next = PyObject_GetAttrString(queue->object, "next_offset");
    queue->next_offset = next ? PyLong_AsLongLong(next) : -1;
    Py_XDECREF(next);
    queue->place = Py_NewRef(place);
    burst->queue_count++;
    return PyErr_Occurred() ? NULL : queue;
}

/* Store the next offsets of the queues; release what `find_queue` holds. */
static bool end_queues(struct burst *burst, bool good) {
    for (int i = 0; i < burst->queue_count; i++) {
        PyObject *next = good ? PyLong_FromLongLong(burst->queues[i].next_offset) : NULL;
        good = next && PyObject_SetAttrString(burst->queues[i].object, "next_offset", next) == 0;
        Py_XDECREF(next);
        Py_DECREF(burst->queues[i].place);
    }
    return good;
}

/* Whether a sender with the right to its topic signed the request: HMAC-SHA1 of the values in the order of their names,
   and of the body, in Base64. A sender is known by the two states of its secret. */
static bool is_signed(const struct burst *burst, const struct send *send) {
    static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct text signature = send->fields[SIGNATURE];
    struct sha1 states[2];
    unsigned char digest[DIGEST_BYTES + 1] = {0};
    if (!send->fields[ACCESS_KEY].at || !signature.at || signature.bytes != SIGNATURE_BYTES)
        return false;
    PyObject *known = look_up(burst->senders, send->fields[ACCESS_KEY], "\n", FIELD('b'));
    if (!known || !PyBytes_Check(known) || PyBytes_Size(known) != sizeof states)
        return false;
    memcpy(states, PyBytes_AsString(known), sizeof states);
    for (int i = 0; i < SIGNATURE; i++) {
        int number = i < 2 ? ACCESS_KEY + i : i - 2; /* capital letters come first */
        if (send->fields[number].at)
            burst->functions.sha1_update(&states[0], send->fields[number].at, (size_t)send->fields[number].bytes);
    }
    burst->functions.sha1_update(&states[0], send->body.at, (size_t)send->body.bytes);
    burst->functions.sha1_final(digest, &states[0]);
    burst->functions.sha1_update(&states[1], digest, DIGEST_BYTES);
    burst->functions.sha1_final(digest, &states[1]);
    int different = signature.at[SIGNATURE_BYTES - 1] ^ '='; /* compared in constant time */
    for (int i = 0; i < SIGNATURE_BYTES - 1; i++) {
        int bit = 6 * i, pair = digest[bit / 8] << 8 | digest[bit / 8 + 1];
        different |= ALPHABET[pair >> (10 - bit % 8) & 63] ^ signature.at[i];
    }
    return !different;
}

/* Where to write so many bytes; NULL with a Python error. */
static char *grow(struct growing *out, Py_ssize_t more) {
    Py_ssize_t size = PyByteArray_Size(out->bytes);
    if (out->used + more > size && PyByteArray_Resize(out->bytes, 2 * size + more + 4096) < 0)
        return NULL;
    return PyByteArray_AsString(out->bytes) + out->used;
}

/* Append a record and its entry. 1: done; 0: it does not fit; -1: a Python error. */
static int put_record(struct burst *burst, struct queue *queue, struct text body, struct text own, uint32_t flag,
                      long long tags_code) {
    const struct send *send = &burst->send;
    Py_ssize_t text_bytes = own.bytes + send->properties.bytes;
    Py_ssize_t size = HEAD_BYTES + body.bytes + queue->topic.bytes + 2 + text_bytes;
    if (text_bytes > TEXT_BYTES_MAX || burst->position + size > burst->limit)
        return 0;
    char *to = grow(&burst->out[RECORDS], size), *entry = grow(&burst->out[ENTRIES], ENTRY_BYTES);
    if (!to || !entry)
        return -1;
    uint32_t crc = burst->functions.crc32(0, body.at, (uint32_t)body.bytes) & 0x7FFFFFFFu;
    const uint32_t head[] = {
        (uint32_t)size, queue->magic, crc, (uint32_t)queue->queue_id, flag, TWO_WORDS(queue->next_offset),
        TWO_WORDS(burst->position), (uint32_t)send->sys_flag, TWO_WORDS(send->born), TWO_WORDS(burst->born_host),
        TWO_WORDS(burst->store_time), TWO_WORDS(burst->store_host), 0, 0, 0, (uint32_t)body.bytes,
    };
    const uint32_t place[] = {TWO_WORDS(burst->position), (uint32_t)size, TWO_WORDS(tags_code)};
    to = put_text(put_text(put_words(to, head, sizeof head), body), queue->topic);
    *to++ = (char)(text_bytes >> 8);
    *to++ = (char)text_bytes;
    put_text(put_text(to, own), send->properties);
    put_words(entry, place, sizeof place);
    burst->out[RECORDS].used += size;
    burst->out[ENTRIES].used += ENTRY_BYTES;
    burst->position += size;
    queue->next_offset++;
    return 1;
}

static char *put_hex(char *to, unsigned long long number) {
    for (int shift = 60; shift >= 0; shift -= 4)
        *to++ = "0123456789ABCDEF"[number >> shift & 15];
    return to;
}

static bool put_reply(struct burst *burst, int queue_id, long long queue_offset) {
    const struct text *parts = &burst->constants[REPLY], key = burst->send.unique_key;
    Py_ssize_t bytes = REPLY_NUMBERS_BYTES + 2 * key.bytes + burst->out[ENTRIES].used / ENTRY_BYTES * ID_BYTES;
    for (int i = 0; i < CONSTANT_COUNT - REPLY; i++)
        bytes += parts[i].bytes;
    char *start = grow(&burst->out[REPLIES], bytes), *to = start + PREFIX_BYTES;
    if (!start)
        return false;
    to = put_number(put_text(to, parts[0]), queue_id);
    if (key.at)
        to = put_text(put_text(to, parts[1]), key);
    if (burst->send.sys_flag & INNER_BATCH_FLAGS)
        to = put_text(put_text(to, TEXT("\",\"batchUniqId\":\"")), key);
    to = put_text(to, parts[2]);
    const char *entry = PyByteArray_AsString(burst->out[ENTRIES].bytes), *end = entry + burst->out[ENTRIES].used;
    for (; entry < end; entry += ENTRY_BYTES, *to++ = ',')
        to = put_hex(put_hex(to, burst->store_host), READ_U64(entry));
    to = put_text(put_number(put_text(to - 1, parts[3]), queue_offset), parts[4]);
    to = put_text(put_number(to, burst->send.opaque), parts[5]);
    const uint32_t prefix[] = {(uint32_t)(to - start - 4), (uint32_t)(to - start - PREFIX_BYTES)};
    put_words(start, prefix, sizeof prefix);
    burst->out[REPLIES].used += to - start;
    return true;
}

/* Append what was made to a list, and release it. */
static bool append(PyObject *list, PyObject *made) {
    bool is_added = made && PyList_Append(list, made) == 0;
    Py_XDECREF(made);
    return is_added;
}

/* One message, whose result is an `AppendedRecord`. */
static int put_single(struct burst *burst, struct queue *queue) {
    const struct send *send = &burst->send;
    long long position = burst->position, offset = queue->next_offset;
    int done = put_record(burst, queue, send->body, TEXT(""), (uint32_t)send->flag, send->tags_code);
    if (done <= 0)
        return done;
    if (!burst->singles && !append(burst->results, burst->singles = PyList_New(0))) /* the results hold it */
        return -1;
    PyObject *result = PyObject_CallFunction(burst->record, "OLLLLOLy#", queue->object, offset, position,
                                             burst->position - position, send->tags_code, burst->timestamp,
                                             send->sys_flag, send->properties.at, send->properties.bytes);
    return append(burst->singles, result) ? 1 : -1;
}

/* The messages of a batch, or all as one record; their own properties are appended to a list. */
static int put_elements(struct burst *burst, struct queue *queue, PyObject *texts) {
    struct send *send = &burst->send;
    const char *at = send->body.at, *end = at + send->body.bytes;
    long long start = burst->position, count = 0, tags_code;
    for (long long size; at < end; at += size, count++) {
        if (end - at < ELEMENT_BYTES + 2)
            return 0;
        long long body_bytes = read_u32(at + 16);
        size = read_u32(at);
        if (size > end - at || body_bytes > size - ELEMENT_BYTES - 2)
            return 0;
        struct text body = {at + ELEMENT_BYTES, body_bytes}, own = {body.at + body_bytes + 2, 0};
        own.bytes = (unsigned char)own.at[-2] << 8 | (unsigned char)own.at[-1];
        if (ELEMENT_BYTES + body_bytes + 2 + own.bytes != size)
            return 0;
        if (queue->is_batched)
            continue;
        if ((own.bytes && own.at[own.bytes - 1] != 2) || memchr(own.at, 0, (size_t)own.bytes) ||
            !read_tags(own, &tags_code))
            return 0;
        if (!append(texts, PyBytes_FromStringAndSize(own.at, own.bytes)))
            return -1;
        int done = put_record(burst, queue, body, own, read_u32(at + 12), tags_code);
        if (done <= 0)
            return done;
    }
    if (!queue->is_batched || send->sys_flag & COMPRESSED || count > INT16_MAX)
        return !queue->is_batched && burst->position - start <= burst->body_bytes_max + BATCH_BYTES_EXTRA;
    char base[64], *to = put_number(put_text(base, TEXT("INNER_BASE\1")), queue->next_offset);
    struct text own = {base, put_text(to, END) - base};
    to = put_number(put_text(send->text + send->properties.bytes, TEXT("INNER_NUM\1")), count);
    send->properties.bytes = put_text(to, END) - send->text;
    send->sys_flag |= INNER_BATCH_FLAGS;
    int done = put_record(burst, queue, send->body, own, (uint32_t)send->flag, 0);
    queue->next_offset += count - 1;
    return done > 0 && !append(texts, PyBytes_FromStringAndSize(own.at, own.bytes)) ? -1 : done;
}

/* A batch, whose result is an `AppendedBatch`, or an `AppendedInnerBatch`. */
static int put_batch(struct burst *burst, struct queue *queue) {
    const struct send *send = &burst->send;
    long long offset = queue->next_offset;
    PyObject *texts = PyList_New(0);
    int done = texts ? put_elements(burst, queue, texts) : -1;
    if (done > 0) {
        PyObject *result = PyObject_CallFunction(
            queue->is_batched ? burst->inner_batch : burst->batch, "OOLOy#Ly#LL", queue->object, burst->timestamp,
            send->sys_flag, texts, send->properties.at, send->properties.bytes, offset,
            PyByteArray_AsString(burst->out[ENTRIES].bytes), burst->out[ENTRIES].used, burst->position,
            queue->next_offset - offset);
        done = append(burst->results, result) ? 1 : -1;
        burst->singles = NULL;
    }
    Py_XDECREF(texts);
    return done;
}

/* Take the frame at `data`; 0 if it is not of a plain send, or does not fit. */
static int take_frame(struct burst *burst) {
    struct send *send = &burst->send;
    long long left = burst->end - burst->data, frame_bytes = left < PREFIX_BYTES ? left : read_u32(burst->data);
    long long header_bytes = left < PREFIX_BYTES ? left : read_u32(burst->data + 4);
    if (header_bytes > burst->header_bytes_max || frame_bytes > left - 4 || frame_bytes < header_bytes + 4)
        return 0;
    const char *header = burst->data + PREFIX_BYTES;
    send->body = (struct text){header + header_bytes, frame_bytes - 4 - header_bytes};
    if (!send->body.bytes || send->body.bytes > burst->body_bytes_max ||
        !read_header(header, header + header_bytes, send) || !read_properties(send, burst->constants[ADDED]))
        return 0;
    bool is_allowed = burst->senders == Py_None || is_signed(burst, send);
    struct queue *queue = is_allowed ? find_queue(burst, FIELD('b'), "/", FIELD('e')) : NULL;
    int queue_id = queue ? queue->queue_id : 0;
    if (queue && send->level.at && (queue = find_queue(burst, TEXT(""), "\n", send->level))) { /* it waits there */
        char *to = send->text + send->properties.bytes;
        if (equals(send->level, HALF.at))
            to = put_text(put_text(put_text(to, TEXT("__transactionId__\1")), send->unique_key), END);
        else
            send->tags_code = burst->store_time + queue->delay_ms;
        to = put_text(put_text(put_text(to, TEXT("REAL_TOPIC\1")), FIELD('b')), TEXT("\2REAL_QID\1"));
        send->properties.bytes = put_text(put_text(to, FIELD('e')), END) - send->text;
    }
    if (!queue || (queue->is_batched && !(send->is_batch && send->unique_key.at)))
        return PyErr_Occurred() ? -1 : 0;
    long long offset = queue->next_offset, position = burst->position, used = burst->out[RECORDS].used;
    burst->out[ENTRIES].used = 0;
    int done = (send->is_batch ? put_batch : put_single)(burst, queue);
    if (done <= 0) { /* nothing of it is stored */
        queue->next_offset = offset;
        burst->position = position;
        burst->out[RECORDS].used = used;
        return done;
    }
    burst->data += 4 + frame_bytes;
    burst->frames++;
    return put_reply(burst, queue_id, offset) ? 1 : -1;
}

static bool begin(struct burst *burst, PyObject *constants) {
    for (int i = 0; i < CONSTANT_COUNT; i++) {
        PyObject *value = PyTuple_GetItem(constants, i);
        if (!value || PyBytes_AsStringAndSize(value, (char **)&burst->constants[i].at, &burst->constants[i].bytes) < 0)
            return false;
    }
    if (burst->constants[FUNCTIONS].bytes != sizeof burst->functions)
        return PyErr_SetString(PyExc_ValueError, "three addresses of functions are needed"), false;
    memcpy(&burst->functions, burst->constants[FUNCTIONS].at, sizeof burst->functions);
    burst->store_time = PyLong_AsLongLong(burst->timestamp);
    for (int i = 0; i < OUTPUT_COUNT; i++)
        burst->out[i].bytes = PyByteArray_FromStringAndSize(NULL, 0);
    burst->results = PyList_New(0);
    return !PyErr_Occurred();
}

static PyObject *lay_out_sends(PyObject *Py_UNUSED(module), PyObject *arguments) {
    struct burst own, *burst = &own;
    Py_buffer buffer;
    PyObject *answer = NULL, *constants;
    memset(burst, 0, offsetof(struct burst, send));
    if (PyArg_ParseTuple(arguments, "y*OOLLOnnKKO!OOO", &buffer, &burst->places, &burst->senders, &burst->position,
                         &burst->limit, &burst->timestamp, &burst->header_bytes_max, &burst->body_bytes_max,
                         &burst->born_host, &burst->store_host, &PyTuple_Type, &constants, &burst->record,
                         &burst->batch, &burst->inner_batch)) {
        burst->data = buffer.buf;
        burst->end = burst->data + buffer.len;
        int taken = begin(burst, constants) ? 1 : -1;
        while (taken > 0)
            taken = take_frame(burst);
        struct growing records = burst->out[RECORDS], replies = burst->out[REPLIES];
        if (end_queues(burst, taken == 0) && PyByteArray_Resize(records.bytes, records.used) == 0)
            answer = Py_BuildValue("nnLOy#O", burst->data - (const char *)buffer.buf, burst->frames, burst->position,
                                   records.bytes, PyByteArray_AsString(replies.bytes), replies.used, burst->results);
        for (int i = 0; i < OUTPUT_COUNT; i++)
            Py_XDECREF(burst->out[i].bytes);
        Py_XDECREF(burst->results);
        PyBuffer_Release(&buffer);
    }
    return answer;
}

/* The index hashes of messages whose only key is their unique key; None if there are others among them. */
static PyObject *unique_key_hashes(PyObject *Py_UNUSED(module), PyObject *arguments) {
    PyObject *prefixes, *texts, *hashes;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &prefixes, &PyList_Type, &texts))
        return NULL;
    hashes = PyList_New(0);
    for (Py_ssize_t i = 0; hashes && i < PyList_Size(texts); i++) {
        struct text text, key;
        long long hash;
        PyObject *prefix = PyList_GetItem(prefixes, i), *bytes = PyList_GetItem(texts, i);
        bool is_plain = prefix && PyBytes_AsStringAndSize(bytes, (char **)&text.at, &text.bytes) == 0 &&
                        read_property(text, "UNIQ_KEY\1", &key) && key.at && !find(text, "KEYS") &&
                        read_hash((uint32_t)PyLong_AsLongLong(prefix), key, &hash) && !PyErr_Occurred();
        if (!is_plain || !append(hashes, PyLong_FromLongLong((hash < 0 ? -hash : hash) & INT32_MAX)))
            Py_CLEAR(hashes);
    }
    return hashes || PyErr_Occurred() ? hashes : Py_NewRef(Py_None);
}

/* The fields of the plain records at the beginning of a range of the log. */
static PyObject *split_records(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer data;
    long long position, crc32, size, tags_code;
    struct text text;
    if (!PyArg_ParseTuple(arguments, "y*LL", &data, &position, &crc32))
        return NULL;
    PyObject *found = PyList_New(0);
    const char *at = data.buf, *end = at + data.len;
    for (; found && end - at >= HEAD_BYTES + 3; at += size, position += size) {
        const char *body = at + HEAD_BYTES, *topic = body + read_u32(at + 84);
        if ((size = read_u32(at)) > end - at || topic - at + 3 > size || read_u32(at + 4) != 0xDAA320A7u ||
            (text.at = topic + 3 + (unsigned char)*topic) > at + size || read_u32(at + 36) & ~SYS_FLAGS ||
            (text.bytes = (unsigned char)text.at[-2] << 8 | (unsigned char)text.at[-1]) != at + size - text.at ||
            (long long)READ_U64(at + 28) != position || !read_tags(text, &tags_code) ||
            (((crc_function)(uintptr_t)crc32)(0, body, (uint32_t)(topic - body)) & 0x7FFFFFFFu) != read_u32(at + 8))
            break;
        if (!append(found, Py_BuildValue("y#iLLLLLIy#", topic + 1, text.at - topic - 3, (int)read_u32(at + 12),
                                         (long long)READ_U64(at + 20), position, size, tags_code,
                                         (long long)READ_U64(at + 56), read_u32(at + 36), text.at, text.bytes)))
            Py_CLEAR(found);
    }
    PyBuffer_Release(&data);
    return found;
}

/* The records of queue entries, of a file that starts at an offset; None if they do not ascend, or are not in it. */
static PyObject *join_records(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer file, entries;
    unsigned long long start, total = 0, behind = 0;
    if (!PyArg_ParseTuple(arguments, "y*Ky*", &file, &start, &entries))
        return NULL;
    const char *first = entries.buf, *end = first + entries.len - entries.len % ENTRY_BYTES;
    for (const char *at = first; at < end; at += ENTRY_BYTES) {
        uint64_t place = READ_U64(at) - start, size = read_u32(at + 8);
        if (place < behind || place > (uint64_t)file.len || size > (uint64_t)file.len - place)
            end = first;
        behind = place + size;
        total += size;
    }
    PyObject *joined = end > first ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)total) : NULL;
    char *to = joined ? PyBytes_AsString(joined) : NULL;
    for (const char *at = first; to && at < end; at += ENTRY_BYTES)
        to = put_text(to, (struct text){(const char *)file.buf + (READ_U64(at) - start), read_u32(at + 8)});
    PyBuffer_Release(&file);
    PyBuffer_Release(&entries);
    return joined || PyErr_Occurred() ? joined : Py_NewRef(Py_None);
}

/* The last value of a property that is not empty, in a property text; empty without one. */
static struct text find_value(struct text text, struct text name) {
    struct text value = {text.at, 0};
    for (const char *at = text.at, *end = at + text.bytes, *stop; at < end; at = stop + 1) {
        stop = memchr(at, 2, (size_t)(end - at));
        stop = stop ? stop : end;
        if (stop - at > name.bytes + 1 && at[name.bytes] == 1 && !memcmp(at, name.at, (size_t)name.bytes))
            value = (struct text){at + name.bytes + 1, stop - at - name.bytes - 1};
    }
    return value;
}

/* Stretches of a buffer in one piece, or the value of a property in each, and 32-bit offsets of each, as in Arrow. */
static PyObject *join_column(PyObject *Py_UNUSED(module), PyObject *arguments) {
    Py_buffer buffer, starts, ends;
    struct text name;
    PyObject *offsets = NULL, *joined = NULL, *answer = NULL;
    long long total = 0;
    if (!PyArg_ParseTuple(arguments, "y*y*y*z#", &buffer, &starts, &ends, &name.at, &name.bytes))
        return NULL;
    const int64_t *start = starts.buf, *end = ends.buf;
    Py_ssize_t count = starts.len / (Py_ssize_t)sizeof *start;
    bool is_sound = starts.len == ends.len && starts.len % (Py_ssize_t)sizeof *start == 0;
    for (Py_ssize_t i = 0; is_sound && i < count; i++) {
        is_sound = start[i] >= 0 && start[i] <= end[i] && end[i] <= buffer.len;
        total += is_sound && total <= INT32_MAX ? end[i] - start[i] : 0;
    }
    if (!is_sound || total > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a stretch is not in the buffer, or all have more than 2 GiB");
    } else {
        offsets = PyBytes_FromStringAndSize(NULL, (count + 1) * (Py_ssize_t)sizeof(int32_t));
        joined = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)total);
    }
    if (offsets && joined) {
        char *first = PyByteArray_AsString(joined), *to = first;
        int32_t *offset = (int32_t *)(void *)PyBytes_AsString(offsets);
        for (Py_ssize_t i = 0; i <= count; i++) {
            *offset++ = (int32_t)(to - first);
            struct text part = {"", 0};
            if (i < count)
                part = (struct text){(const char *)buffer.buf + start[i], end[i] - start[i]};
            to = put_text(to, name.at ? find_value(part, name) : part);
        }
        answer = PyByteArray_Resize(joined, to - first) == 0 ? PyTuple_Pack(2, offsets, joined) : NULL;
    }
    PyBuffer_Release(&buffer);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&ends);
    Py_XDECREF(offsets);
    Py_XDECREF(joined);
    return answer;
}

static PyMethodDef functions[] = {
    {"lay_out_sends", lay_out_sends, METH_VARARGS, "Lay out the first sends of a buffer; see _compiled.pyi."},
    {"unique_key_hashes", unique_key_hashes, METH_VARARGS, "Hash unique keys for the index; see _compiled.pyi."},
    {"split_records", split_records, METH_VARARGS, "Read plain records back from the log; see _compiled.pyi."},
    {"join_records", join_records, METH_VARARGS, "Join the records of queue entries; see _compiled.pyi."},
    {"join_column", join_column, METH_VARARGS, "Join parts of a buffer; see _compiled.pyi."},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_doc = "Edition 5", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__compiled(void) {
    return PyModule_Create(&definition);
}
