/* A thin pipelined client: keeps frames in flight on one connection, checks and times the answers.

     load run HOST PORT FRAMES IN_FLIGHT RATE WARM_UP_S SECONDS FRAMES_MAX [TEXTS [TRUSTED NAME [CERTIFICATE KEY]]]
     load answer SECONDS        prints its port and answers one connection with "stored", no more

   FRAMES is a file of whole frames, sent in turn. Eight bytes in them are places to fill: "@OPAQUE@" the
   opaque, "@NUMBER@" a number that never comes again in hexadecimal, "@OFFSET@" a queue offset. Frames with
   the last are pulls: each is one queue's, sent again from where its answer ended, from the queue's begin after
   its end; one is in flight per queue. A queue whose begin has moved is followed there. Frames whose header
   says "flag":2 get no answer. "@DUE_NS@" becomes eight bytes: when the frame was due, in nanoseconds of the
   monotonic clock. A last frame with "@PLACED@" and "@QUEUED@" ends a transaction: it follows every stored
   message, with the offsets that the answer named, and its own answer is the one that counts.

   TEXTS (compiled with -DSECURE; "" for none) makes the frames signed. It is a file of texts behind their length
   in four bytes: the secret, then for each frame what is signed of its header, with the same places; "@SIGNED@" in
   a frame becomes the HMAC-SHA1 of its text and its body. Signed sends of a closed loop are made before the run, and
   come again, with their numbers. With TRUSTED, a file of CAs, the connection is TLS, and the server's certificate
   must have the NAME, an address or a host ("": any certificate, TRUSTED may be "", too).

   With a RATE of frames a second (open loop), frame k is due at k / RATE and timed from then, however late
   it is sent: what was due before the end is sent after it. With 0 (closed loop) a frame is sent as soon as an answer makes room for it.

   Prints "begin" when the warm-up is over, "tick SECONDS ANSWERS" once a second, "end" when no more is sent,
   and, when all is answered (or 15 s later), one line of JSON. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifdef SECURE
#define OPENSSL_SUPPRESS_DEPRECATED /* SHA_CTX can be copied, which saves half of a signature */
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>
#endif

enum {
    MARKER_BYTES = 8,
    NUMBER_BYTES_MAX = 20,
    WAY_OUT_BYTES_MAX = 1 << 18, /* of frames that nobody answers: more would only wait here */
    RING = 1 << 16, /* opaques in use lie closer together than this, whatever the order of the answers */
    BUFFER_BYTES = 16 << 20,
    TURN_MS = 100,
    DRAIN_S = 15,
    RECORD_QUEUE_OFFSET = 20,
    PULL_OFFSET_MOVED = 21, /* an answer's code: go on where it says */
    SIGNATURE_BYTES = 28,
    STOCK_MAX = 2048, /* signed frames that are sent in turn */
    OPAQUE_FIRST = 1000000000,
};

enum slot { OPAQUE, NUMBER, OFFSET, DUE, PLACED, QUEUED, SIGNED };
static const char *const MARKERS[] = {
    "@OPAQUE@", "@NUMBER@", "@OFFSET@", "@DUE_NS@", "@PLACED@", "@QUEUED@", "@SIGNED@"};

struct template {
    const char *frame;
    size_t bytes;
    int slots;
    struct { enum slot kind; size_t at; } *slot;
    long long queue_offset; /* of the next pull */
};

struct sent {
    int opaque; /* 0 when nothing waits here */
    int template;
    uint64_t at_ns;
};

static struct template *templates, *texts; /* texts: NULL if frames are not signed */
static int template_count;
static bool pulling, oneway, stamped, ending; /* ending: the last frame ends a transaction */
static long long placed, queued;     /* offsets of the message that it ends */
static int *idle, idle_count; /* queues without a pull in flight */
static struct sent ring[RING];
static int last_opaque = OPAQUE_FIRST, in_flight;
static uint32_t last_number;
static char *in, *out;
static size_t in_bytes, out_from, out_to;
static uint64_t began, ended; /* of the window; 0: not yet */
static long long sent_count, acknowledged, refused, unexpected, unsent, measured, measured_records, refusal_code;

static void die(const char *what)
{
    fprintf(stderr, "load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double cpu_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 + used.ru_utime.tv_usec + used.ru_stime.tv_usec;
}

static uint32_t read_u32(const char *from)
{
    uint32_t value;
    memcpy(&value, from, 4);
    return ntohl(value);
}

static void write_u32(char *to, uint32_t value)
{
    value = htonl(value);
    memcpy(to, &value, 4);
}

static bool is_measuring(void)
{
    return began && !ended;
}

/* --- Latencies: 1,024 bins for every doubling, the same as an HdrHistogram of three digits --- */

static uint64_t bins[1024 * 56];

static void count_latency(uint64_t ns)
{
    int shift = ns < 1024 ? 0 : 63 - __builtin_clzll(ns) - 10;
    bins[shift * 1024 + (ns >> shift)]++;
}

static void print_bins(void)
{
    const char *between = "";
    for (size_t bin = 0; bin < sizeof bins / sizeof *bins; bin++)
        if (bins[bin]) {
            int shift = bin < 2048 ? 0 : (int)(bin / 1024) - 1;
            uint64_t lowest = (uint64_t)(bin - shift * 1024ull) << shift;
            printf("%s[%llu, %llu]", between, (unsigned long long)(lowest + (1ull << shift) / 2),
                   (unsigned long long)bins[bin]);
            between = ", ";
        }
}

/* --- Frames out --- */

static char *read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        die("cannot read the frames");
    long bytes = ftell(file);
    char *data = malloc(bytes);
    rewind(file);
    *length = fread(data, 1, bytes, file);
    fclose(file);
    return data;
}

/* Where the template's places are. */
static void find_slots(struct template *t)
{
    const char *at = t->frame, *end = t->frame + t->bytes;
    while ((at = memchr(at, '@', end - at))) {
        int kind = SIGNED;
        while (kind >= 0 && (end - at < MARKER_BYTES || memcmp(at, MARKERS[kind], MARKER_BYTES)))
            kind--;
        if (kind < 0) {
            at++;
            continue;
        }
        t->slot = realloc(t->slot, (t->slots + 1) * sizeof *t->slot);
        t->slot[t->slots].kind = kind;
        t->slot[t->slots++].at = at - t->frame;
        pulling |= kind == OFFSET;
        stamped |= kind == DUE;
        ending |= kind == PLACED;
        at += MARKER_BYTES;
    }
}

static void read_templates(const char *path)
{
    size_t length;
    char *data = read_file(path, &length);
    for (size_t from = 0; from + 8 <= length;) {
        templates = realloc(templates, (template_count + 1) * sizeof *templates);
        struct template *t = &templates[template_count++];
        *t = (struct template){.frame = data + from, .bytes = 4 + read_u32(data + from)};
        from += t->bytes;
        if (from > length)
            die("the last frame is cut short");
        find_slots(t);
        oneway |= memmem(t->frame + 8, read_u32(t->frame + 4), "\"flag\":2,", 9) != NULL;
    }
    if (!template_count)
        die("there are no frames");
    idle = malloc(template_count * sizeof *idle);
    for (idle_count = 0; idle_count < template_count; idle_count++)
        idle[idle_count] = idle_count;
}

static size_t write_decimal(char *to, long long value)
{
    char digits[20];
    size_t count = 0;
    do
        digits[count++] = '0' + value % 10;
    while (value /= 10);
    for (size_t i = 0; i < count; i++)
        to[i] = digits[count - 1 - i];
    return count;
}

static size_t write_hexadecimal(char *to, uint32_t value)
{
    for (int i = MARKER_BYTES - 1; i >= 0; i--, value >>= 4)
        to[i] = "0123456789ABCDEF"[value & 15];
    return MARKER_BYTES;
}

static size_t write_u64(char *to, uint64_t value)
{
    write_u32(to, value >> 32);
    write_u32(to + 4, (uint32_t)value);
    return 8;
}

/* Copies what the template has, with its places filled; returns the end. Numbers are counted up from `number`. */
static char *fill(const struct template *t, char *to, int opaque, uint64_t due, uint32_t *number, char **signature)
{
    size_t copied = 0;
    for (int i = 0; i < t->slots; i++) {
        size_t at = t->slot[i].at;
        memcpy(to, t->frame + copied, at - copied);
        to += at - copied;
        copied = at + MARKER_BYTES;
        switch (t->slot[i].kind) {
        case OPAQUE: to += write_decimal(to, opaque); break;
        case NUMBER: to += write_hexadecimal(to, ++*number); break;
        case OFFSET: to += write_decimal(to, t->queue_offset); break;
        case DUE: to += write_u64(to, due); break;
        case PLACED: to += write_decimal(to, placed); break;
        case QUEUED: to += write_decimal(to, queued); break;
        case SIGNED: *signature = to; to += SIGNATURE_BYTES; break;
        }
    }
    memcpy(to, t->frame + copied, t->bytes - copied);
    return to + t->bytes - copied;
}

#ifdef SECURE
static SHA_CTX inner_key, outer_key;
static char *text_out;

static void start_hash(SHA_CTX *hash, const unsigned char *key, unsigned char pad)
{
    unsigned char block[SHA_CBLOCK];
    for (int i = 0; i < SHA_CBLOCK; i++)
        block[i] = key[i] ^ pad;
    SHA1_Init(hash);
    SHA1_Update(hash, block, sizeof block);
}

/* The secret, then a text for each frame. */
static void read_texts(const char *path)
{
    size_t length, longest = 0;
    char *data = read_file(path, &length);
    size_t from = 4 + read_u32(data);
    unsigned char key[SHA_CBLOCK] = {0};
    if (from - 4 > SHA_CBLOCK)
        SHA1((unsigned char *)data + 4, from - 4, key);
    else
        memcpy(key, data + 4, from - 4);
    start_hash(&inner_key, key, 0x36);
    start_hash(&outer_key, key, 0x5c);
    texts = malloc(template_count * sizeof *texts);
    for (int i = 0; i < template_count; i++) {
        texts[i] = (struct template){.frame = data + from + 4, .bytes = read_u32(data + from)};
        find_slots(&texts[i]);
        size_t most = texts[i].bytes + texts[i].slots * NUMBER_BYTES_MAX;
        longest = most > longest ? most : longest;
        from += 4 + texts[i].bytes;
    }
    text_out = malloc(longest);
}

/* Numbers in the header come before those in the body, so they are the same in the text. */
static void sign(int template, char *signature, const char *body, size_t body_bytes, uint32_t number)
{
    struct template *t = &texts[template];
    unsigned char digest[SHA_DIGEST_LENGTH], base64[SIGNATURE_BYTES + 1];
    t->queue_offset = templates[template].queue_offset;
    SHA_CTX inner = inner_key, outer = outer_key;
    SHA1_Update(&inner, text_out, fill(t, text_out, 0, 0, &number, NULL) - text_out);
    SHA1_Update(&inner, body, body_bytes);
    SHA1_Final(digest, &inner);
    SHA1_Update(&outer, digest, sizeof digest);
    SHA1_Final(digest, &outer);
    EVP_EncodeBlock(base64, digest, sizeof digest);
    memcpy(signature, base64, SIGNATURE_BYTES);
}
#endif

/* Writes a frame and returns its length. */
static size_t put_frame(char *start, int template, int opaque, uint64_t due)
{
    struct template *t = &templates[template];
    char *signature = NULL;
    uint32_t number = last_number;
    size_t bytes = fill(t, start, opaque, due, &last_number, &signature) - start;
    /* What changes its length stands in the header. */
    uint32_t header_bytes = read_u32(t->frame + 4) + (uint32_t)(bytes - t->bytes);
    write_u32(start, (uint32_t)(bytes - 4));
    write_u32(start + 4, header_bytes);
#ifdef SECURE
    if (signature)
        sign(template, signature, start + 8 + header_bytes, bytes - 8 - header_bytes, number);
#else
    (void)number;
#endif
    return bytes;
}

static int next_opaque(void)
{
    do
        last_opaque = last_opaque == INT32_MAX ? OPAQUE_FIRST : last_opaque + 1;
    while (ring[last_opaque % RING].opaque);
    return last_opaque;
}

static void note_sent(int template, int opaque, size_t bytes, uint64_t due)
{
    out_to += bytes;
    if (oneway)
        return;
    ring[opaque % RING] = (struct sent){opaque, template, due};
    in_flight++;
}

static void ask(int template, uint64_t due)
{
    int opaque = next_opaque();
    note_sent(template, opaque, put_frame(out + out_to, template, opaque, due), due);
}

/* Signing takes longer than the rest of a frame, and the server would wait for it. So signed frames are made before the
   run and sent again and again, each time with another opaque: it is not signed, and always has ten digits. */
static struct stocked { int template; size_t bytes, opaque_at; char *frame; } stock[STOCK_MAX];
static int stock_count, stock_next;

static void fill_stock(size_t frame_bytes_max)
{
    static const char KEY[] = "\"opaque\":";
    for (; stock_count < STOCK_MAX; stock_count++) {
        struct stocked *place = &stock[stock_count];
        place->frame = malloc(frame_bytes_max);
        place->template = stock_count % template_count;
        place->bytes = put_frame(place->frame, place->template, OPAQUE_FIRST, 0);
        const char *at = memmem(place->frame, place->bytes, KEY, sizeof KEY - 1);
        if (!at)
            die("a frame without an opaque");
        place->opaque_at = (size_t)(at - place->frame) + sizeof KEY - 1;
    }
}

static void send_stocked(uint64_t due)
{
    struct stocked *place = &stock[stock_next];
    int opaque = next_opaque();
    memcpy(out + out_to, place->frame, place->bytes);
    write_decimal(out + out_to + place->opaque_at, opaque);
    note_sent(place->template, opaque, place->bytes, due);
    stock_next = (stock_next + 1) % stock_count;
}

static void send_next(uint64_t due)
{
    if (stock_count)
        send_stocked(due);
    else
        ask(pulling ? idle[--idle_count] : (int)(sent_count % (template_count - ending)), due);
    sent_count++;
    acknowledged += oneway;
    measured += oneway && is_measuring();
}

/* --- The connection: TLS, or plain text --- */

#ifdef SECURE
static SSL *tls; /* NULL: plain text */

/* As recv and send return it: how much, 0 at the end, -1 with EAGAIN if not now. */
static ssize_t tls_result(int count)
{
    if (count > 0)
        return count;
    int reason = SSL_get_error(tls, count);
    errno = reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE ? EAGAIN : 0;
    return errno ? -1 : 0;
}

/* All records that have arrived. */
static ssize_t receive_records(char *to, size_t room)
{
    size_t total = 0;
    do {
        ssize_t count = tls_result(SSL_read(tls, to + total, room - total));
        if (count <= 0)
            return total ? (ssize_t)total : count;
        total += count;
    } while (total < room && SSL_has_pending(tls));
    return total;
}

/* `arguments`: TRUSTED NAME, then CERTIFICATE KEY if there are `count` of 4. */
static void start_tls(int connection, char **arguments, int count)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, 1 << 18);
    if (*arguments[0] && !SSL_CTX_load_verify_locations(context, arguments[0], NULL))
        die("cannot read the CAs");
    if (count == 4 && (SSL_CTX_use_certificate_chain_file(context, arguments[2]) != 1 ||
                       SSL_CTX_use_PrivateKey_file(context, arguments[3], SSL_FILETYPE_PEM) != 1))
        die("cannot read the client's certificate and its key");
    tls = SSL_new(context);
    if (*arguments[1]) {
        SSL_set_verify(tls, SSL_VERIFY_PEER, NULL);
        if (!X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls), arguments[1]))
            SSL_set1_host(tls, arguments[1]);
    }
    SSL_set_fd(tls, connection);
    time_t end = time(NULL) + DRAIN_S;
    for (ssize_t done = -1; done < 1; done = tls_result(SSL_connect(tls))) {
        if (done == 0 || time(NULL) > end) {
            errno = 0;
            die("no TLS connection: the server refused it, or its certificate is not accepted");
        }
    }
    fcntl(connection, F_SETFL, O_NONBLOCK);
}
#endif

static ssize_t receive_some(int connection, char *to, size_t room)
{
#ifdef SECURE
    if (tls)
        return receive_records(to, room);
#endif
    return recv(connection, to, room, 0);
}

static ssize_t send_some(int connection, const char *from, size_t bytes)
{
#ifdef SECURE
    if (tls)
        return tls_result(SSL_write(tls, from, (int)bytes));
#endif
    return send(connection, from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool must_poll(void)
{
#ifdef SECURE
    if (tls)
        return true; /* its socket does not block */
#endif
    return false;
}

/* --- Answers in --- */

/* The number behind a key, in quotes or not; -1 if the key is not there. */
static long long number_of(const char *header, size_t length, const char *key)
{
    const char *at = memmem(header, length, key, strlen(key));
    return at ? strtoll(at + strlen(key) + (at[strlen(key)] == '"'), NULL, 10) : -1;
}

static int opaque_of(const char *header, size_t length)
{
    static const char KEY[] = "\"opaque\":";
    static size_t from_end = 1; /* where it was in the last answer */
    if (from_end > length || memcmp(header + length - from_end, KEY, sizeof KEY - 1)) {
        const char *at = memmem(header, length, KEY, sizeof KEY - 1);
        if (!at)
            return -1;
        from_end = header + length - at;
    }
    return atoi(header + length - from_end + sizeof KEY - 1);
}

static int code_of(const char *header, size_t length)
{
    static const char SUCCESS[] = "{\"code\":0,";
    if (length > sizeof SUCCESS && !memcmp(header, SUCCESS, sizeof SUCCESS - 1))
        return 0;
    return (int)number_of(header, length, "\"code\":");
}

/* Walk the records: they must be the queue's next ones, without a gap. */
static bool take_records(struct template *t, const char *header, size_t header_bytes, const char *body, size_t bytes)
{
    long long next = number_of(header, header_bytes, "\"nextBeginOffset\":");
    long long end = number_of(header, header_bytes, "\"maxOffset\":");
    long long expected = t->queue_offset;
    for (size_t at = 0; at < bytes;) {
        if (bytes - at < RECORD_QUEUE_OFFSET + 8)
            return false;
        uint32_t record_bytes = read_u32(body + at);
        const char *place = body + at + RECORD_QUEUE_OFFSET;
        long long queue_offset = (long long)read_u32(place) << 32 | read_u32(place + 4);
        if (queue_offset != expected || record_bytes > bytes - at || record_bytes < RECORD_QUEUE_OFFSET + 8)
            return false;
        expected++;
        at += record_bytes;
    }
    if (expected != next || expected == t->queue_offset || next > end)
        return false;
    if (is_measuring())
        measured_records += expected - t->queue_offset;
    t->queue_offset = next == end ? number_of(header, header_bytes, "\"minOffset\":") : next;
    return true;
}

/* What was to be read has expired: on to where the queue begins now. */
static bool follow(struct template *t, const char *header, size_t header_bytes)
{
    long long next = number_of(header, header_bytes, "\"nextBeginOffset\":");
    if (next <= t->queue_offset)
        return false;
    t->queue_offset = next;
    return true;
}

/* End the transaction of a stored message; its time goes on. */
static bool end_transaction(const char *header, size_t header_bytes, uint64_t since)
{
    static const char ID[] = "\"msgId\":\"";
    const char *at = memmem(header, header_bytes, ID, sizeof ID - 1);
    queued = number_of(header, header_bytes, "\"queueOffset\":");
    size_t bytes_max = templates[template_count - 1].bytes + 3 * NUMBER_BYTES_MAX;
    if (!at || header + header_bytes - at < 48 || queued < 0 || out_to + bytes_max > BUFFER_BYTES)
        return false;
    placed = strtoll(at + sizeof ID - 1 + 16, NULL, 16); /* behind eight bytes of address and port */
    ask(template_count - 1, since);
    return true;
}

static void take_answer(const char *frame, size_t bytes, uint64_t now)
{
    size_t header_bytes = read_u32(frame + 4);
    if (header_bytes + 8 > bytes) {
        errno = 0;
        die("an answer whose header is not JSON, or longer than it");
    }
    const char *header = frame + 8;
    int opaque = opaque_of(header, header_bytes);
    struct sent *question = &ring[opaque > 0 ? opaque % RING : 0];
    if (opaque <= 0 || question->opaque != opaque) {
        unexpected++;
        return;
    }
    int code = code_of(header, header_bytes);
    struct template *t = &templates[question->template];
    question->opaque = 0;
    in_flight--;
    if (pulling)
        idle[idle_count++] = question->template;
    if (pulling && code == PULL_OFFSET_MOVED && follow(t, header, header_bytes)) {
        acknowledged++;
        return;
    }
    if (code) {
        refused++;
        refusal_code = code;
        return;
    }
    if (pulling && !take_records(t, header, header_bytes, header + header_bytes, bytes - 8 - header_bytes)) {
        unexpected++;
        return;
    }
    if (ending && question->template != template_count - 1) {
        unexpected += !end_transaction(header, header_bytes, question->at_ns);
        return;
    }
    acknowledged++;
    measured += is_measuring();
    /* What was due within the window counts, also if the answer came after it: else a broker that
       stalls at the end would look fast. */
    if (began && question->at_ns >= began)
        count_latency(now > question->at_ns ? now - question->at_ns : 0);
}

static void receive(int connection)
{
    ssize_t count = receive_some(connection, in + in_bytes, BUFFER_BYTES - in_bytes);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (count <= 0) {
        errno = count ? errno : 0;
        die("the connection was lost");
    }
    in_bytes += count;
    uint64_t now = now_ns();
    size_t at = 0;
    while (in_bytes - at >= 8) {
        size_t bytes = 4 + (size_t)read_u32(in + at);
        if (bytes > BUFFER_BYTES || bytes < 8) {
            errno = 0;
            die("an answer of impossible length");
        }
        if (in_bytes - at < bytes)
            break;
        take_answer(in + at, bytes, now);
        at += bytes;
    }
    in_bytes -= at;
    memmove(in, in + at, in_bytes);
}

static void transmit(int connection)
{
    while (out_from < out_to) {
        ssize_t count = send_some(connection, out + out_from, out_to - out_from);
        if (count < 0 && errno == EAGAIN)
            return;
        if (count <= 0)
            die("the connection was lost");
        out_from += count;
    }
    out_from = out_to = 0;
}

/* Until there is something to read, room to write, or `until` has come (0: only a turn). */
static void wait_for_answers(int connection, uint64_t until)
{
    if (out_from < out_to || until || must_poll()) {
        uint64_t now = now_ns(), turn = TURN_MS * 1000000ull;
        uint64_t left = !until ? turn : until <= now ? 0 : until - now < turn ? until - now : turn;
        struct timespec time = {left / 1000000000u, left % 1000000000u};
        struct pollfd ready = {connection, POLLIN | (out_from < out_to ? POLLOUT : 0), 0};
        ppoll(&ready, 1, &time, NULL);
        if (!(ready.revents & ~POLLOUT))
            return;
    }
    receive(connection);
}

static int connect_to(const char *host, const char *port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(host, port, &hints, &found))
        die("unknown host");
    int connection = socket(found->ai_family, SOCK_STREAM, 0), on = 1;
    if (connect(connection, found->ai_addr, found->ai_addrlen))
        die("cannot connect");
    struct timeval turn = {0, TURN_MS * 1000};
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &turn, sizeof turn);
    freeaddrinfo(found);
    return connection;
}

static void say(const char *word)
{
    puts(word);
    fflush(stdout);
}

static size_t find_frame_bytes_max(void)
{
    size_t most = 0;
    for (int i = 0; i < template_count; i++) {
        size_t bytes = templates[i].bytes + templates[i].slots * NUMBER_BYTES_MAX;
        most = bytes > most ? bytes : most;
    }
    if (most > BUFFER_BYTES) {
        errno = 0;
        die("a frame is larger than 16 MiB");
    }
    return most;
}

static void print_result(double cpu)
{
    printf("{\"seconds\": %.6f, \"sent\": %lld, \"acknowledged\": %lld, \"refused\": %lld, \"refusal_code\": %lld, "
           "\"unexpected\": %lld, \"unsent\": %lld, \"answers\": %lld, \"records\": %lld, \"client_cpu_us\": %.0f, "
           "\"bins\": [",
           began ? (ended - began) / 1e9 : 0.0, sent_count, acknowledged, refused, refusal_code, unexpected, unsent,
           measured, measured_records, cpu);
    print_bins();
    puts("]}");
}

/* When frame number `count` is due; 0 if whenever there is room for it. */
static uint64_t due_at(uint64_t start, double rate, long long count)
{
    return rate > 0 ? start + (uint64_t)(count * 1e9 / rate) : 0;
}

/* Shall another frame be sent, now or when it is due? */
static bool is_wanted(uint64_t start, double rate, long long frames_max)
{
    if (frames_max && sent_count >= frames_max)
        return false;
    return !ended || (rate > 0 && due_at(start, rate, sent_count) < ended);
}

static void run(char **arguments, int count)
{
    prctl(PR_SET_TIMERSLACK, 1000); /* 1 µs instead of 50: when frames are due matters */
    read_templates(arguments[2]);
    int connection = connect_to(arguments[0], arguments[1]);
#ifdef SECURE
    if (count > 8 && *arguments[8])
        read_texts(arguments[8]);
    if (count > 9)
        start_tls(connection, arguments + 9, count - 9);
#else
    if (count > 8)
        die("compiled without signatures and TLS");
#endif
    int window = pulling ? template_count : atoi(arguments[3]);
    double rate = atof(arguments[4]), cpu = 0;
    uint64_t start = now_ns(), begin = start + (uint64_t)(atof(arguments[5]) * 1e9);
    uint64_t length = (uint64_t)(atof(arguments[6]) * 1e9), tick = 0;
    long long frames_max = atoll(arguments[7]);
    size_t frame_bytes_max = find_frame_bytes_max();
    if (texts && !(pulling || oneway || stamped || ending || rate > 0))
        fill_stock(frame_bytes_max);
    for (;;) {
        uint64_t now = now_ns();
        if (!began && !ended && now >= begin) {
            began = now;
            tick = now + 1000000000u;
            cpu = cpu_us();
            say("begin");
        }
        if (!ended && ((began && now >= began + length) || (frames_max && sent_count >= frames_max))) {
            ended = now;
            cpu = cpu_us() - cpu;
            say("end");
        }
        if (is_measuring() && now >= tick) {
            printf("tick %.3f %lld\n", (now - began) / 1e9, pulling ? measured_records : measured);
            fflush(stdout);
            tick += 1000000000u;
        }
        size_t room = oneway && frame_bytes_max < WAY_OUT_BYTES_MAX ? WAY_OUT_BYTES_MAX : BUFFER_BYTES;
        while (is_wanted(start, rate, frames_max) && in_flight < window && out_to + frame_bytes_max <= room &&
               due_at(start, rate, sent_count) <= now)
            send_next(rate > 0 ? due_at(start, rate, sent_count) : now);
        transmit(connection);
        bool is_written = out_from == out_to;
        bool is_more = is_wanted(start, rate, frames_max);
        if (ended && ((is_written && !in_flight && !is_more) || now > ended + DRAIN_S * 1000000000ull))
            break;
        if (oneway && is_written && !ended && !(rate > 0))
            continue;
        bool has_room = is_written && in_flight < window && is_more;
        wait_for_answers(connection, rate > 0 && has_room ? due_at(start, rate, sent_count) : 0);
    }
    for (; is_wanted(start, rate, frames_max); sent_count++)
        unsent++;
    sent_count -= unsent;
    print_result(cpu);
}

/* --- The other end, to see what the client can drive --- */

static void answer(int seconds)
{
    static const char ANSWER[] =
        "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"transactionId\":\"7F00000165C75FFD2B27492C00000000\",\"msgId\":"
        "\"7F000001000051AF0000000000000000\",\"TRACE_ON\":\"true\",\"MSG_REGION\":\"DefaultRegion\",\"queueOffset\":"
        "\"0\"},\"flag\":1,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}";
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    alarm(seconds);
    if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&address, &length))
        die("cannot listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int connection = accept(listener, NULL, NULL);
    setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (ssize_t count; (count = recv(connection, in + in_bytes, BUFFER_BYTES - in_bytes, 0)) > 0;) {
        in_bytes += count;
        size_t at = 0, bytes;
        while (in_bytes - at >= 8 && in_bytes - at >= (bytes = 4 + (size_t)read_u32(in + at))) {
            int opaque = opaque_of(in + at + 8, read_u32(in + at + 4));
            int header_bytes = sprintf(out + out_to + 8, ANSWER, opaque);
            write_u32(out + out_to, 4 + header_bytes);
            write_u32(out + out_to + 4, header_bytes);
            out_to += 8 + header_bytes;
            at += bytes;
        }
        in_bytes -= at;
        memmove(in, in + at, in_bytes);
        for (ssize_t written; out_from < out_to; out_from += written)
            if ((written = send(connection, out + out_from, out_to - out_from, MSG_NOSIGNAL)) < 0)
                return;
        out_from = out_to = 0;
    }
}

int main(int count, char **arguments)
{
    in = malloc(BUFFER_BYTES);
    out = malloc(BUFFER_BYTES);
    if (count >= 10 && !strcmp(arguments[1], "run"))
        run(arguments + 2, count - 2);
    else if (count == 3 && !strcmp(arguments[1], "answer"))
        answer(atoi(arguments[2]));
    else
        die("usage: load run HOST PORT FRAMES IN_FLIGHT RATE WARM_UP_S SECONDS FRAMES_MAX | load answer SECONDS");
    return 0;
}
