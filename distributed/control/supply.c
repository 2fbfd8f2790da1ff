/* SPDX-License-Identifier: Apache-2.0 */
/* The supplying side: a thread that answers whoever asks. */
#include "distributed/control/supply.h"

#include <errno.h>
#include <string.h>

#include "distributed/control/control.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/status_internal.h"

/* How many connections there may be, how long a stranger may take to prove that it belongs to the job, also if all places are
 * taken, and how many parts are sent at once. */
enum { MOST_LINES = 64, PARTS_AT_ONCE = 16 };
#define PATIENCE_NS 5000000000
#define PATIENCE_OF_MANY_NS 250000000
#define TURN_MS 100

typedef struct request {
    int64_t at, end;
} request;

typedef struct line {
    int fd;                  /* -1: free */
    trek_seal seal;
    bool counted;            /* among those of a visitor */
    int64_t since_ns;
    request asked[TREK_SUPPLY_AHEAD];
    int n_asked;
    size_t used;
    char in[sizeof(trek_handshake_note)];
} line;

_Static_assert(sizeof(trek_handshake_note) >= sizeof(trek_supply_request), "a line has room for either");

/* What is known of a process that has come. */
typedef struct visitor {
    int number, lines;       /* how many connections it has now */
    int64_t heard_ns;        /* when it last took something */
} visitor;

/* The lock guards what changes, besides the lines, which are the thread's. */
struct trek_supply {
    trek_hmac_key secret;
    trek_identity own;
    trek_lock lock;
    trek_condition changed;
    trek_thread thread;
    bool has_lock, has_condition, has_thread, stopping, full;
    int bell, listen_fd, port;
    int n_parts;
    struct iovec *parts;
    int64_t *ends;           /* [n_parts] where each part ends among all bytes */
    line lines[MOST_LINES];
    struct pollfd polled[MOST_LINES + 2];
    visitor *visitors;
    int n_visitors, cap_visitors;
};

/* --- visitors, with the lock held ---------------------------------------------------------------------- */

static visitor *find_visitor(trek_supply *supply, int number)
{
    for (int k = 0; k < supply->n_visitors; k++)
        if (supply->visitors[k].number == number)
            return &supply->visitors[k];
    return NULL;
}

static bool note_visitor(trek_supply *supply, int number)
{
    visitor *known = find_visitor(supply, number);
    int n = supply->n_visitors + 1;
    if (!known && trek_array_grow(&supply->visitors, &supply->cap_visitors, n, sizeof *supply->visitors) != TREK_OK) {
        trek_error_clear();
        return false;
    }
    if (!known) {
        known = &supply->visitors[supply->n_visitors++];
        *known = (visitor){ .number = number };
    }
    known->lines++;
    known->heard_ns = trek_now_ns();
    return true;
}

static void drop(trek_supply *supply, line *l)
{
    visitor *known = l->counted ? find_visitor(supply, l->seal.other.process) : NULL;
    if (known)
        known->lines--;
    trek_socket_close(l->fd);
    l->fd = -1;
}

/* --- a connection, with the lock held -------------------------------------------------------------------- */

static int64_t size_of(const trek_supply *supply) { return supply->n_parts > 0 ? supply->ends[supply->n_parts - 1] : 0; }

/* Returns the part in which a byte lies. */
static int part_at(const trek_supply *supply, int64_t at)
{
    int low = 0, high = supply->n_parts - 1;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (supply->ends[middle] > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* Sends what the connection takes of what was asked for. Returns false if the connection has ended. */
static bool send_some(trek_supply *supply, line *l)
{
    while (l->n_asked > 0) {
        struct iovec parts[PARTS_AT_ONCE];
        request *asked = &l->asked[0];
        int n = 0;
        int64_t at = asked->at;
        for (int k = part_at(supply, at); n < PARTS_AT_ONCE && at < asked->end; k++) {
            int64_t begin = supply->ends[k] - (int64_t)supply->parts[k].iov_len;
            int64_t end = supply->ends[k] < asked->end ? supply->ends[k] : asked->end;
            parts[n++] = (struct iovec){ (char *)supply->parts[k].iov_base + (at - begin), (size_t)(end - at) };
            at = end;
        }
        int64_t sent = trek_socket_send(l->fd, parts, n), wanted = at - asked->at;
        if (sent < 0)
            return false;
        visitor *known = find_visitor(supply, l->seal.other.process);
        if (known && sent > 0)
            known->heard_ns = trek_now_ns();
        asked->at += sent;
        if (sent < wanted)
            return true;
        if (asked->at == asked->end)
            memmove(l->asked, l->asked + 1, (size_t)--l->n_asked * sizeof *l->asked);
    }
    return true;
}

static bool take_request(const trek_supply *supply, line *l)
{
    trek_supply_request note;
    memcpy(&note, l->in, sizeof note);
    bool good = trek_seal_check(&l->seal, l->in, offsetof(trek_supply_request, code), note.code) && note.bytes > 0 &&
        note.begin >= 0 && note.bytes <= size_of(supply) && note.begin <= size_of(supply) - note.bytes &&
        l->n_asked < TREK_SUPPLY_AHEAD;
    if (good)
        l->asked[l->n_asked++] = (request){ note.begin, note.begin + note.bytes };
    l->used = 0;
    return good;
}

/* Goes on with the handshake. Returns false if the other end is not one of the job's processes that fetch. */
static bool shake(trek_supply *supply, line *l)
{
    size_t taken;
    trek_shake how = trek_seal_shake(&l->seal, &supply->own, l->fd, l->in, l->used, &taken);
    l->used -= taken; /* one note is read at a time, all of it or nothing */
    if (how == TREK_SHAKE_MORE)
        return true;
    l->counted = how == TREK_SHAKE_DONE && l->seal.other.role == TREK_ROLE_SUPPLY &&
        note_visitor(supply, l->seal.other.process);
    return l->counted;
}

/* Reads what has come. Returns false if the connection has ended, or is no good. */
static bool read_some(trek_supply *supply, line *l)
{
    for (;;) {
        bool open = trek_seal_is_open(&l->seal);
        size_t wanted = open ? sizeof(trek_supply_request) : sizeof(trek_handshake_note);
        int64_t got = trek_socket_receive(l->fd, l->in + l->used, wanted - l->used);
        if (got <= 0)
            return got == 0;
        l->used += (size_t)got;
        if (!open && !shake(supply, l))
            return false;
        if (open && l->used == wanted && !take_request(supply, l))
            return false;
    }
}

static void accept_lines(trek_supply *supply)
{
    for (int k = 0; k < MOST_LINES; k++) {
        if (supply->lines[k].fd >= 0)
            continue;
        int fd = trek_socket_accept(supply->listen_fd, NULL, NULL);
        if (fd < 0)
            return;
        supply->lines[k] = (line){ .fd = fd, .since_ns = trek_now_ns() };
    }
}

/* --- the thread ------------------------------------------------------------------------------------------- */

static int watch(trek_supply *supply)
{
    supply->full = true;
    for (int k = 0; k < MOST_LINES; k++) {
        const line *l = &supply->lines[k];
        supply->full &= l->fd >= 0;
        supply->polled[2 + k] = (struct pollfd){ .fd = l->fd, .events = l->n_asked > 0 ? POLLIN | POLLOUT : POLLIN };
    }
    supply->polled[0] = (struct pollfd){ .fd = supply->bell, .events = POLLIN };
    supply->polled[1] = (struct pollfd){ .fd = supply->full ? -1 : supply->listen_fd, .events = POLLIN };
    return 2 + MOST_LINES;
}

static void serve_line(trek_supply *supply, line *l, bool ready)
{
    bool late = !l->counted && trek_now_ns() - l->since_ns > (supply->full ? PATIENCE_OF_MANY_NS : PATIENCE_NS);
    if (l->fd >= 0 && (late || (ready && !(read_some(supply, l) && send_some(supply, l)))))
        drop(supply, l);
}

static void *serve(void *arg)
{
    trek_supply *supply = arg;
    trek_lock_acquire(&supply->lock);
    while (!supply->stopping) {
        int n = watch(supply);
        trek_lock_release(&supply->lock);
        trek_socket_poll(supply->polled, n, TURN_MS);
        trek_lock_acquire(&supply->lock);
        for (int k = 0; k < MOST_LINES; k++)
            serve_line(supply, &supply->lines[k], supply->polled[2 + k].revents != 0);
        if (supply->polled[1].revents)
            accept_lines(supply);
        trek_condition_wake_all(&supply->changed);
    }
    trek_lock_release(&supply->lock);
    return NULL;
}

/* --- making ------------------------------------------------------------------------------------------------ */

static trek_status copy_parts(trek_supply *supply, const struct iovec *parts, int n)
{
    int64_t end = 0;
    supply->parts = trek_calloc((size_t)n + 1, sizeof *supply->parts);
    supply->ends = trek_calloc((size_t)n + 1, sizeof *supply->ends);
    if (!supply->parts || !supply->ends)
        return TREK_ERR_MEMORY;
    for (int k = 0; k < n; k++) {
        supply->parts[k] = parts[k];
        supply->ends[k] = end += (int64_t)parts[k].iov_len;
    }
    supply->n_parts = n;
    return TREK_OK;
}

static trek_status begin(trek_supply *supply, const char *address)
{
    char why[160];
    supply->has_lock = trek_lock_init(&supply->lock);
    supply->has_condition = trek_condition_init(&supply->changed);
    supply->bell = trek_bell_new();
    if (!supply->has_lock || !supply->has_condition || supply->bell < 0)
        return trek_fail(TREK_ERR_STATE, "trainer_setup: the socket at which the state can be fetched cannot be opened: %s",
                         trek_process_why(errno, why, sizeof why));
    trek_status status = trek_socket_listen(address, 0, &supply->listen_fd, &supply->port);
    if (status == TREK_OK && !(supply->has_thread = trek_thread_begin(&supply->thread, serve, supply) == 0))
        status = trek_fail(TREK_ERR_STATE, "trainer_setup: the thread that supplies the state cannot start");
    return status;
}

trek_supply *trek_supply_new(const char *address, const char *token, int number, const struct iovec *parts, int n)
{
    trek_supply *supply = trek_calloc(1, sizeof *supply);
    if (!supply)
        return NULL;
    supply->bell = supply->listen_fd = -1;
    for (int k = 0; k < MOST_LINES; k++)
        supply->lines[k].fd = -1;
    trek_hmac_key_of(token, strlen(token), &supply->secret);
    supply->own = (trek_identity){ .secret = &supply->secret, .role = TREK_ROLE_SUPPLY, .process = number };
    if (copy_parts(supply, parts, n) != TREK_OK || begin(supply, address) != TREK_OK)
        trek_supply_free(&supply);
    return supply;
}

static void stop(trek_supply *supply)
{
    trek_lock_acquire(&supply->lock);
    supply->stopping = true;
    trek_lock_release(&supply->lock);
    if (!trek_bell_ring(supply->bell))
        trek_log_message(TREK_LOG_LEVEL_DEBUG, "supply: %s", strerror(errno));
    trek_thread_join(supply->thread);
}

void trek_supply_free(trek_supply **place)
{
    trek_supply *supply = place ? *place : NULL;
    if (!supply)
        return;
    *place = NULL;
    if (supply->has_thread && !trek_forked)
        stop(supply);
    for (int k = 0; k < MOST_LINES; k++)
        trek_socket_close(supply->lines[k].fd);
    trek_socket_close(supply->listen_fd);
    trek_bell_free(supply->bell);
    if (supply->has_condition && !trek_forked)
        trek_condition_destroy(&supply->changed);
    if (supply->has_lock && !trek_forked)
        trek_lock_destroy(&supply->lock);
    trek_free(supply->visitors);
    trek_free(supply->parts);
    trek_free(supply->ends);
    trek_free(supply);
}

int trek_supply_port(const trek_supply *supply) { return supply->port; }

void trek_supply_await(trek_supply *supply, int number, int64_t quiet_ns, bool (*gone)(void *arg), void *arg)
{
    int64_t begun = trek_now_ns();
    for (bool done = false; !done;) {
        int64_t now = trek_now_ns();
        bool has_gone = gone(arg); /* asks others, so without the lock */
        trek_lock_acquire(&supply->lock);
        const visitor *known = find_visitor(supply, number);
        int64_t heard = known ? known->heard_ns : begun; /* a silence that was waited for counts when this is repeated */
        done = (known ? known->lines == 0 : has_gone) || (quiet_ns > 0 && now - heard > quiet_ns);
        if (!done)
            trek_condition_wait_until(&supply->changed, &supply->lock, now + (int64_t)TURN_MS * 1000000);
        trek_lock_release(&supply->lock);
    }
}
