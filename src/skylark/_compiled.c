/* The optional compiled module. Without it a broker does the same in Python; property tests hold the two equal.

   `lay_out_sends` handles plain sends, many at a time: frames of request 310 become records and replies. It takes
   only what is common: JSON headers in ASCII as clients write them, known queues, one unique key, at most one tag,
   no delay, no transaction. It stops before any other frame, which Python then handles, errors included. It changes
   nothing but the next offsets of queues, and reads nothing outside of the buffer, whose frames are complete. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#define _GNU_SOURCE
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    PREFIX_BYTES = 8,
    HEAD_BYTES = 88,
    HOST_BYTES = 8,
    TEXT_BYTES_MAX = 32767,
    SYS_FLAGS = 0x701, /* compression: other flags change what is done with a message */
    QUEUES_MAX = 64,   /* of one call */
    REPLY_PARTS = 6,
    REPLY_NUMBERS_BYTES = 128, /* all numbers of a reply and its prefix */
    FIELD_COUNT = 26
};

struct text {
    const char *at;
    Py_ssize_t bytes;
};

struct send {
    struct text fields[FIELD_COUNT]; /* of the header, by letter; `at` is NULL without one */
    struct text body;
    long long sys_flag, flag, born, opaque;
    char properties[TEXT_BYTES_MAX + 1];
    Py_ssize_t properties_bytes;
    struct text unique_key;
    long long tags_code;
};

struct queue {
    PyObject *object;
    PyObject *topic_part; /* a new reference */
    struct text topic;
    uint32_t magic;
    int32_t queue_id;
    long long next_offset;
};

struct growing {
    PyObject *bytes; /* a bytearray */
    Py_ssize_t used, size;
};

/* --- Numbers and texts --- */

static uint32_t read_u32(const char *at)
{
    const unsigned char *p = (const unsigned char *)at;
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static char *put_u32(char *to, uint32_t number)
{
    for (int shift = 24; shift >= 0; shift -= 8)
        *to++ = (char)(number >> shift);
    return to;
}

static char *put_i64(char *to, long long number)
{
    return put_u32(put_u32(to, (uint32_t)((uint64_t)number >> 32)), (uint32_t)number);
}

static char *put_text(char *to, const char *from, Py_ssize_t bytes)
{
    memcpy(to, from, (size_t)bytes);
    return to + bytes;
}

static char *put_number(char *to, long long number)
{
    char digits[20];
    int count = 0;
    do
        digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    while (count)
        *to++ = digits[--count];
    return to;
}

/* A number of at most `digits_max` digits, without sign or leading zeros. */
static bool to_number(struct text text, int digits_max, long long limit, long long *number)
{
    if (!text.at || text.bytes < 1 || text.bytes > digits_max || (text.bytes > 1 && *text.at == '0'))
        return false;
    *number = 0;
    for (Py_ssize_t i = 0; i < text.bytes; i++) {
        if (text.at[i] < '0' || text.at[i] > '9')
            return false;
        *number = *number * 10 + (text.at[i] - '0');
    }
    return *number <= limit;
}

static bool equals(struct text text, const char *literal)
{
    return text.at && (size_t)text.bytes == strlen(literal) && !memcmp(text.at, literal, (size_t)text.bytes);
}

static bool skip(const char **at, const char *end, const char *literal)
{
    size_t bytes = strlen(literal);
    if ((size_t)(end - *at) < bytes || memcmp(*at, literal, bytes))
        return false;
    *at += bytes;
    return true;
}

/* --- Headers --- */

/* A quoted text of printable ASCII. With `escapes`, it may contain \u0001 and \u0002. */
static bool read_quoted(const char **at, const char *end, bool escapes, struct text *text)
{
    const char *p = *at;
    if (p >= end || *p != '"')
        return false;
    text->at = ++p;
    for (; p < end && *p != '"'; p++) {
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7F)
            return false;
        if (*p == '\\') {
            if (!escapes || end - p < 6 || memcmp(p, "\\u000", 5) || (p[5] != '1' && p[5] != '2'))
                return false;
            p += 5;
        }
    }
    if (p >= end)
        return false;
    text->bytes = p - text->at;
    *at = p + 1;
    return true;
}

static bool read_digits(const char **at, const char *end, struct text *text)
{
    text->at = *at;
    while (*at < end && **at >= '0' && **at <= '9')
        ++*at;
    text->bytes = *at - text->at;
    return text->bytes > 0;
}

/* The ext fields, behind their opening brace: names of one letter, each once. */
static bool read_fields(const char **at, const char *end, struct send *send)
{
    for (;;) {
        if (end - *at < 4 || (*at)[0] != '"' || (*at)[1] < 'a' || (*at)[1] > 'z' || (*at)[2] != '"' || (*at)[3] != ':')
            return false;
        char name = (*at)[1];
        struct text *field = &send->fields[name - 'a'];
        *at += 4;
        if (field->at || !read_quoted(at, end, name == 'i', field))
            return false;
        if (skip(at, end, "},"))
            return true;
        if (!skip(at, end, ","))
            return false;
    }
}

/* The members behind the ext fields, in the order of Java, up to the end of the header. */
static bool read_rest(const char *at, const char *end, struct send *send)
{
    struct text language, opaque, version;
    long long number;
    return skip(&at, end, "\"flag\":0,\"language\":") && read_quoted(&at, end, false, &language) &&
           skip(&at, end, ",\"opaque\":") && read_digits(&at, end, &opaque) &&
           skip(&at, end, ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":") && read_digits(&at, end, &version) &&
           skip(&at, end, "}") && at == end && to_number(version, 10, INT32_MAX, &number) &&
           to_number(opaque, 10, INT32_MAX, &send->opaque);
}

static bool read_header(const char *at, const char *end, struct send *send)
{
    struct text *fields = send->fields;
    long long number;
    memset(fields, 0, sizeof send->fields);
    if (!skip(&at, end, "{\"code\":310,\"extFields\":{") || !read_fields(&at, end, send) || !read_rest(at, end, send))
        return false;
    for (char name = 'o'; name <= 'z'; name++)
        if (fields[name - 'a'].at)
            return false;
#define FIELD(letter) fields[letter - 'a']
    return FIELD('a').at && FIELD('b').at && FIELD('c').at && FIELD('e').at && FIELD('i').at && !FIELD('l').at &&
           to_number(FIELD('d'), 10, INT32_MAX, &number) && to_number(FIELD('f'), 10, INT32_MAX, &send->sys_flag) &&
           !(send->sys_flag & ~SYS_FLAGS) && to_number(FIELD('g'), 18, INT64_MAX, &send->born) &&
           to_number(FIELD('h'), 10, INT32_MAX, &send->flag) && (!FIELD('j').at || equals(FIELD('j'), "0")) &&
           (!FIELD('k').at || equals(FIELD('k'), "false")) && (!FIELD('m').at || equals(FIELD('m'), "false"));
}

/* --- Properties --- */

/* Java's hash of an ASCII text behind a prefix of known hash. */
static int32_t hash_of(uint32_t hash, struct text text)
{
    for (Py_ssize_t i = 0; i < text.bytes; i++)
        hash = hash * 31 + (unsigned char)text.at[i];
    return (int32_t)hash;
}

static const char *find(const char *at, Py_ssize_t bytes, const char *word)
{
    return memmem(at, (size_t)bytes, word, strlen(word));
}

/* The value of a property that occurs at most once; false if it occurs twice, is empty, or inside of another. */
static bool read_property(const char *properties, Py_ssize_t bytes, const char *name, struct text *value)
{
    const char *end = properties + bytes, *at = find(properties, bytes, name);
    *value = (struct text){0};
    if (!at)
        return true;
    const char *start = at + strlen(name), *stop = memchr(start, 2, (size_t)(end - start));
    if ((at > properties && at[-1] != 2) || !stop || stop == start || find(start, end - start, name))
        return false;
    *value = (struct text){start, stop - start};
    return true;
}

/* Decode the properties; they end with a separator. False for messages that need more than to be stored. */
static bool read_properties(struct send *send)
{
    struct text raw = send->fields['i' - 'a'], tags;
    char *to = send->properties;
    if (!raw.bytes || raw.bytes > TEXT_BYTES_MAX - 1)
        return false;
    for (const char *p = raw.at, *end = raw.at + raw.bytes; p < end; p++) {
        if (*p == '\\') {
            p += 5;
            *to++ = (char)(*p - '0');
        } else
            *to++ = *p;
    }
    if (to[-1] != 2)
        *to++ = 2;
    send->properties_bytes = to - send->properties;
    static const char *const special[] = {"DELAY", "TIMER_DEL", "TRAN_MSG", "POP_CK", "WAIT\1false"};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (find(send->properties, send->properties_bytes, special[i]))
            return false;
    if (!read_property(send->properties, send->properties_bytes, "UNIQ_KEY\1", &send->unique_key) ||
        !read_property(send->properties, send->properties_bytes, "TAGS\1", &tags) || !send->unique_key.at)
        return false;
    for (Py_ssize_t i = 0; i < send->unique_key.bytes; i++) {
        char c = send->unique_key.at[i];
        if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')))
            return false;
    }
    send->tags_code = hash_of(0, tags);
    return true;
}

/* --- Queues --- */

static bool get_number(PyObject *object, const char *name, long long *number)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    if (!value)
        return false;
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *number != -1 || !PyErr_Occurred();
}

static bool load_queue(PyObject *object, struct queue *queue)
{
    long long magic, queue_id;
    char *topic;
    *queue = (struct queue){.object = object, .topic_part = PyObject_GetAttrString(object, "topic_part")};
    if (!queue->topic_part)
        return false;
    if (PyBytes_AsStringAndSize(queue->topic_part, &topic, &queue->topic.bytes) < 0 ||
        !get_number(object, "magic", &magic) || !get_number(object, "queue_id", &queue_id) ||
        !get_number(object, "next_offset", &queue->next_offset)) {
        Py_DECREF(queue->topic_part);
        return false;
    }
    queue->topic.at = topic;
    queue->magic = (uint32_t)magic;
    queue->queue_id = (int32_t)queue_id;
    return true;
}

/* The queue of a send; NULL without an error if it is not known, or there are too many. */
static struct queue *find_queue(const struct send *send, PyObject *places, struct queue *queues, int *count)
{
    struct text topic = send->fields['b' - 'a'], number = send->fields['e' - 'a'];
    char key[512];
    if (topic.bytes + number.bytes + 1 > (Py_ssize_t)sizeof key)
        return NULL;
    char *end = put_text(put_text(key, topic.at, topic.bytes), "/", 1);
    end = put_text(end, number.at, number.bytes);
    PyObject *name = PyBytes_FromStringAndSize(key, end - key);
    if (!name)
        return NULL;
    PyObject *object = PyDict_GetItemWithError(places, name);
    Py_DECREF(name);
    if (!object)
        return NULL;
    for (int i = 0; i < *count; i++)
        if (queues[i].object == object)
            return &queues[i];
    if (*count == QUEUES_MAX || !load_queue(object, &queues[*count]))
        return NULL;
    return &queues[(*count)++];
}

/* --- Output --- */

static bool grow(struct growing *out, Py_ssize_t more)
{
    if (out->used + more <= out->size)
        return true;
    Py_ssize_t size = 2 * out->size + more + 4096;
    if (PyByteArray_Resize(out->bytes, size) < 0)
        return false;
    out->size = size;
    return true;
}

struct constants {
    struct text born_host, store_host, added;
    struct text reply[REPLY_PARTS];
    PyObject *record, *crc32;
};

static bool body_crc(struct text body, PyObject *function, uint32_t *crc)
{
    PyObject *view = PyMemoryView_FromMemory((char *)body.at, body.bytes, PyBUF_READ);
    PyObject *number = view ? PyObject_CallFunctionObjArgs(function, view, NULL) : NULL;
    Py_XDECREF(view);
    if (!number)
        return false;
    *crc = (uint32_t)PyLong_AsUnsignedLong(number);
    Py_DECREF(number);
    return !PyErr_Occurred();
}

static bool put_record(struct growing *out, const struct send *send, const struct queue *queue, long long position,
                       long long timestamp, Py_ssize_t size, const struct constants *constants)
{
    uint32_t crc;
    if (!body_crc(send->body, constants->crc32, &crc) || !grow(out, size))
        return false;
    char *to = PyByteArray_AsString(out->bytes) + out->used;
    to = put_u32(to, (uint32_t)size);
    to = put_u32(to, queue->magic);
    to = put_u32(to, crc & 0x7FFFFFFFu);
    to = put_u32(to, (uint32_t)queue->queue_id);
    to = put_u32(to, (uint32_t)send->flag);
    to = put_i64(to, queue->next_offset);
    to = put_i64(to, position);
    to = put_u32(to, (uint32_t)send->sys_flag);
    to = put_i64(to, send->born);
    to = put_text(to, constants->born_host.at, HOST_BYTES);
    to = put_i64(to, timestamp);
    to = put_text(to, constants->store_host.at, HOST_BYTES);
    to = put_u32(to, 0);
    to = put_i64(to, 0);
    to = put_u32(to, (uint32_t)send->body.bytes);
    to = put_text(to, send->body.at, send->body.bytes);
    to = put_text(to, queue->topic.at, queue->topic.bytes);
    Py_ssize_t properties_bytes = send->properties_bytes + constants->added.bytes;
    *to++ = (char)(properties_bytes >> 8);
    *to++ = (char)properties_bytes;
    to = put_text(to, send->properties, send->properties_bytes);
    put_text(to, constants->added.at, constants->added.bytes);
    out->used += size;
    return true;
}

static bool put_reply(struct growing *out, const struct send *send, const struct queue *queue, long long position,
                      const struct constants *constants)
{
    static const char HEX[] = "0123456789ABCDEF";
    Py_ssize_t bytes = REPLY_NUMBERS_BYTES + send->unique_key.bytes;
    for (int i = 0; i < REPLY_PARTS; i++)
        bytes += constants->reply[i].bytes;
    if (!grow(out, bytes))
        return false;
    char *start = PyByteArray_AsString(out->bytes) + out->used, *to = start + PREFIX_BYTES;
#define PUT_PART(number) to = put_text(to, constants->reply[number].at, constants->reply[number].bytes)
    PUT_PART(0);
    to = put_number(to, queue->queue_id);
    PUT_PART(1);
    to = put_text(to, send->unique_key.at, send->unique_key.bytes);
    PUT_PART(2);
    for (int i = 0; i < HOST_BYTES; i++) {
        unsigned char byte = (unsigned char)constants->store_host.at[i];
        *to++ = HEX[byte >> 4];
        *to++ = HEX[byte & 15];
    }
    for (int shift = 60; shift >= 0; shift -= 4)
        *to++ = HEX[position >> shift & 15];
    PUT_PART(3);
    to = put_number(to, queue->next_offset);
    PUT_PART(4);
    to = put_number(to, send->opaque);
    PUT_PART(5);
    put_u32(put_u32(start, (uint32_t)(to - start - 4)), (uint32_t)(to - start - PREFIX_BYTES));
    out->used += to - start;
    return true;
}

/* Append the result of one append, as `AppendedRecord`. */
static bool put_result(PyObject *results, const struct send *send, const struct queue *queue, long long position,
                       PyObject *timestamp, Py_ssize_t size, const struct constants *constants)
{
    PyObject *values[6] = {
        PyLong_FromLongLong(queue->next_offset),
        PyLong_FromLongLong(position),
        PyLong_FromSsize_t(size),
        PyLong_FromLongLong(send->tags_code),
        PyLong_FromLongLong(send->sys_flag),
        PyBytes_FromStringAndSize(NULL, send->properties_bytes + constants->added.bytes),
    };
    PyObject *result = NULL;
    bool made = true;
    for (int i = 0; i < 6; i++)
        made = made && values[i];
    if (made) {
        char *text = PyBytes_AsString(values[5]);
        put_text(put_text(text, send->properties, send->properties_bytes), constants->added.at, constants->added.bytes);
        result = PyObject_CallFunctionObjArgs(constants->record, queue->object, values[0], values[1], values[2],
                                              values[3], timestamp, values[4], values[5], NULL);
    }
    for (int i = 0; i < 6; i++)
        Py_XDECREF(values[i]);
    bool added = result && PyList_Append(results, result) == 0;
    Py_XDECREF(result);
    return added;
}

/* --- The function --- */

struct burst {
    const char *data, *end;
    PyObject *places, *timestamp, *results;
    long long position, limit, store_time;
    Py_ssize_t header_bytes_max, body_bytes_max;
    struct growing records, replies;
    struct queue queues[QUEUES_MAX];
    int queue_count;
    struct constants constants;
};

/* Take the frame at `data`. 1: taken; 0: not a plain send, or it does not fit; -1: a Python error. */
static int take_frame(struct burst *burst, struct send *send)
{
    Py_ssize_t left = burst->end - burst->data;
    if (left < PREFIX_BYTES)
        return 0;
    Py_ssize_t frame_bytes = read_u32(burst->data), header_bytes = read_u32(burst->data + 4);
    if (header_bytes > burst->header_bytes_max || frame_bytes > left - 4 || frame_bytes < header_bytes + 4)
        return 0;
    const char *header = burst->data + PREFIX_BYTES;
    send->body = (struct text){header + header_bytes, frame_bytes - 4 - header_bytes};
    if (!send->body.bytes || send->body.bytes > burst->body_bytes_max ||
        !read_header(header, header + header_bytes, send) || !read_properties(send))
        return 0;
    struct queue *queue = find_queue(send, burst->places, burst->queues, &burst->queue_count);
    if (!queue)
        return PyErr_Occurred() ? -1 : 0;
    const struct constants *constants = &burst->constants;
    Py_ssize_t text_bytes = send->properties_bytes + constants->added.bytes;
    Py_ssize_t size = HEAD_BYTES + send->body.bytes + queue->topic.bytes + 2 + text_bytes;
    if (text_bytes > TEXT_BYTES_MAX || burst->position + size > burst->limit)
        return 0;
    if (!put_record(&burst->records, send, queue, burst->position, burst->store_time, size, constants) ||
        !put_reply(&burst->replies, send, queue, burst->position, constants) ||
        !put_result(burst->results, send, queue, burst->position, burst->timestamp, size, constants))
        return -1;
    queue->next_offset++;
    burst->position += size;
    burst->data += 4 + frame_bytes;
    return 1;
}

/* Store the next offsets of the queues; release what `load_queue` holds. */
static bool end_queues(struct burst *burst, bool good)
{
    for (int i = 0; i < burst->queue_count; i++) {
        PyObject *next = good ? PyLong_FromLongLong(burst->queues[i].next_offset) : NULL;
        good = good && next && PyObject_SetAttrString(burst->queues[i].object, "next_offset", next) == 0;
        Py_XDECREF(next);
        Py_DECREF(burst->queues[i].topic_part);
    }
    return good;
}

static PyObject *lay_out_sends(PyObject *module, PyObject *arguments)
{
    (void)module;
    struct burst *burst = PyMem_Calloc(1, sizeof *burst);
    struct send *send = PyMem_Malloc(sizeof *send); /* of this call: others may run while Python code is called */
    struct constants *constants = &burst->constants;
    struct text *reply = burst ? constants->reply : NULL;
    Py_buffer buffer;
    PyObject *answer = NULL;
    if (!burst || !send) {
        PyMem_Free(burst);
        PyMem_Free(send);
        return PyErr_NoMemory();
    }
    if (!PyArg_ParseTuple(arguments, "y*OLLOnny#y#y#OO(y#y#y#y#y#y#)", &buffer, &burst->places, &burst->position,
                          &burst->limit, &burst->timestamp, &burst->header_bytes_max, &burst->body_bytes_max,
                          &constants->born_host.at, &constants->born_host.bytes, &constants->store_host.at,
                          &constants->store_host.bytes, &constants->added.at, &constants->added.bytes,
                          &constants->record, &constants->crc32, &reply[0].at, &reply[0].bytes, &reply[1].at,
                          &reply[1].bytes, &reply[2].at, &reply[2].bytes, &reply[3].at, &reply[3].bytes, &reply[4].at,
                          &reply[4].bytes, &reply[5].at, &reply[5].bytes)) {
        PyMem_Free(burst);
        PyMem_Free(send);
        return NULL;
    }
    burst->store_time = PyLong_AsLongLong(burst->timestamp);
    if (constants->born_host.bytes != HOST_BYTES || constants->store_host.bytes != HOST_BYTES ||
        !PyDict_Check(burst->places))
        PyErr_SetString(PyExc_ValueError, "hosts must be IPv4 addresses, and places a dict");
    burst->data = buffer.buf;
    burst->end = (const char *)buffer.buf + buffer.len;
    burst->records.bytes = PyByteArray_FromStringAndSize(NULL, 0);
    burst->replies.bytes = PyByteArray_FromStringAndSize(NULL, 0);
    burst->results = PyList_New(0);
    int taken = PyErr_Occurred() ? -1 : 1;
    while (taken > 0)
        taken = take_frame(burst, send);
    if (end_queues(burst, taken == 0) && PyByteArray_Resize(burst->records.bytes, burst->records.used) == 0)
        answer = Py_BuildValue("nLOy#O", (Py_ssize_t)(burst->data - (const char *)buffer.buf), burst->position,
                               burst->records.bytes, PyByteArray_AsString(burst->replies.bytes), burst->replies.used,
                               burst->results);
    Py_XDECREF(burst->records.bytes);
    Py_XDECREF(burst->replies.bytes);
    Py_XDECREF(burst->results);
    PyBuffer_Release(&buffer);
    PyMem_Free(burst);
    PyMem_Free(send);
    return answer;
}

/* The index hashes of messages whose only key is their unique key; None if there are others among them. */
static PyObject *unique_key_hashes(PyObject *module, PyObject *arguments)
{
    PyObject *prefixes, *texts, *hashes = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!", &PyList_Type, &prefixes, &PyList_Type, &texts) ||
        !(hashes = PyList_New(PyList_Size(texts))))
        return NULL;
    for (Py_ssize_t i = 0; i < PyList_Size(texts); i++) {
        struct text key;
        char *text;
        Py_ssize_t bytes;
        PyObject *prefix = PyList_GetItem(prefixes, i), *number = NULL;
        if (!prefix || PyBytes_AsStringAndSize(PyList_GetItem(texts, i), &text, &bytes) < 0)
            goto none;
        bool good = read_property(text, bytes, "UNIQ_KEY\1", &key) && key.at && !find(text, bytes, "KEYS");
        for (Py_ssize_t k = 0; good && k < key.bytes; k++)
            good = (unsigned char)key.at[k] < 0x80;
        long long hash = good ? hash_of((uint32_t)PyLong_AsLongLong(prefix), key) : 0;
        if (!good || PyErr_Occurred() || !(number = PyLong_FromLongLong((hash < 0 ? -hash : hash) & INT32_MAX)))
            goto none;
        PyList_SetItem(hashes, i, number);
    }
    return hashes;
none:
    Py_DECREF(hashes);
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"unique_key_hashes", unique_key_hashes, METH_VARARGS, "Hash unique keys for the index; see _compiled.pyi."},
    {"lay_out_sends", lay_out_sends, METH_VARARGS,
     "Lay out the plain sends at the beginning of a buffer; see _compiled.pyi."},
    {0},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_compiled", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit__compiled(void)
{
    return PyModule_Create(&definition);
}
