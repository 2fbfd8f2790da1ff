/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/comm/gloo/mesh.h"

#include <stdio.h>
#include <string.h>

#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* Limits of strangers, as at a rendezvous: how many may be connected that have not proved anything, and how long one is
 * kept when others wait. */
enum { STRANGERS = 64, PATIENCE_NS = 250000000, LOOK_MS = 50 };
/* A connection often ends because the other process has ended. The channel gets this long to say so. */
#define REASON_NS 2000000000

typedef struct line {
    int fd;
    bool connecting, open;
    int64_t since_ns;
    trek_seal seal;
    size_t used;
    char in[sizeof(trek_handshake_note)];
} line;

typedef struct mesh {
    trek_control *control;
    trek_identity own;
    const trek_mesh_card *cards;
    int rank, world, listening;
    line *lines; /* ordered by rank, followed by strangers */
    struct pollfd *polled;
    bool crowded;
    char why[TREK_WHERE + 256]; /* why it cannot be reached; "": it can be reached */
} mesh;

trek_status trek_mesh_check(const trek_mesh_card *cards, int world)
{
    for (int r = 0; r < world; r++) {
        const trek_mesh_card *card = &cards[r];
        if (card->status != TREK_OK) {
            bool known = card->status > TREK_OK && strcmp(trek_status_name((trek_status)card->status), "unknown") != 0;
            trek_status status = known ? (trek_status)card->status : TREK_ERR_COMM;
            return trek_fail(status, "comm_init: process %d cannot use Gloo: %s", r, trek_status_description(status));
        }
        if (card->port < 1 || card->port > 65535 || !card->address[0] || !memchr(card->address, 0, sizeof card->address))
            return trek_fail(TREK_ERR_COMM, "comm_init: process %d gives no address at which it can be reached", r);
    }
    return TREK_OK;
}

static void close_line(line *l)
{
    trek_socket_close(l->fd);
    *l = (line){ .fd = -1 };
}

/* --- connections to processes that this process calls ------------------------------------------------------------- */

static void fail_line(mesh *m, int r, const char *what)
{
    char where[TREK_WHERE];
    const trek_mesh_card *card = &m->cards[r < m->rank ? r : m->rank]; /* the card of the process that listens */
    if (!m->why[0])
        snprintf(m->why, sizeof m->why, "process %d has no connection for data with process %d, at %s: %s", m->rank, r,
                 trek_socket_where(card->address, card->port, where, sizeof where), what);
}

static void begin_calls(mesh *m)
{
    for (int r = 0; r < m->rank; r++) {
        m->lines[r] = (line){ .fd = trek_socket_begin(m->cards[r].address, m->cards[r].port), .connecting = true };
        if (m->lines[r].fd < 0)
            fail_line(m, r, "it cannot be made");
    }
}

/* Returns 1 if the connection is open, 0 if not yet, and -1 if it has ended or is not one of this job. */
static int read_line(mesh *m, line *l, trek_shake *how)
{
    *how = TREK_SHAKE_MORE;
    while (!l->open) {
        size_t taken;
        int64_t got = trek_socket_receive(l->fd, l->in + l->used, sizeof l->in - l->used);
        if (got <= 0)
            return (int)got;
        l->used += (size_t)got;
        *how = trek_seal_shake(&l->seal, &m->own, l->fd, l->in, l->used, &taken);
        l->used -= taken; /* all or nothing: no byte after the handshake is read */
        if (*how != TREK_SHAKE_DONE && *how != TREK_SHAKE_MORE)
            return -1;
        l->open = *how == TREK_SHAKE_DONE;
    }
    const trek_handshake_note *other = &l->seal.other;
    return other->role == TREK_ROLE_DATA && other->generation == m->own.generation ? 1 : -1;
}

static void serve_call(mesh *m, int r)
{
    line *l = &m->lines[r];
    char text[TREK_WHERE + 128];
    trek_shake how;
    if (l->connecting) {
        l->connecting = false;
        if (!trek_socket_begun(l->fd) || !trek_seal_call(&l->seal, &m->own, l->fd))
            fail_line(m, r, "it is refused");
        return;
    }
    int got = read_line(m, l, &how);
    if (got < 0 && how != TREK_SHAKE_MORE)
        fail_line(m, r, trek_seal_why(&l->seal, how, "that address", text, sizeof text));
    else if (got < 0 || (got > 0 && l->seal.other.process != r))
        fail_line(m, r, got < 0 ? "it has ended" : "another process of the job listens there");
}

/* --- those who call ------------------------------------------------------------------------------------------------ */

static void serve_stranger(mesh *m, line *l)
{
    trek_shake how;
    int got = read_line(m, l, &how), r = l->seal.other.process;
    if (got == 0)
        return;
    if (got > 0 && r > m->rank && r < m->world && m->lines[r].fd < 0) {
        m->lines[r] = *l;
        *l = (line){ .fd = -1 };
        return;
    }
    trek_log_message(TREK_LOG_LEVEL_INFO, "gloo: process %d has rejected a connection to the port of its data", m->rank);
    close_line(l);
}

/* Returns a free line for a stranger, or NULL if none is free at the moment. */
static line *place_of_stranger(mesh *m)
{
    line *oldest = &m->lines[m->world];
    for (line *l = oldest; l < m->lines + m->world + STRANGERS; l++) {
        if (l->fd < 0)
            return l;
        oldest = l->since_ns < oldest->since_ns ? l : oldest;
    }
    if (trek_now_ns() - oldest->since_ns < PATIENCE_NS)
        return NULL;
    close_line(oldest);
    return oldest;
}

static void accept_strangers(mesh *m)
{
    line *l;
    m->crowded = false;
    while ((l = place_of_stranger(m))) {
        int fd = trek_socket_accept(m->listening, NULL, &m->crowded);
        if (fd < 0)
            return;
        *l = (line){ .fd = fd, .since_ns = trek_now_ns() };
        serve_stranger(m, l);
    }
    m->crowded = true;
}

/* --- all ------------------------------------------------------------------------------------------------------------- */

/* Returns the first process that is missing, or -1. */
static int missing(const mesh *m)
{
    for (int r = 0; r < m->world; r++)
        if (r != m->rank && !m->lines[r].open)
            return r;
    return -1;
}

static void wait_for_some(mesh *m)
{
    int n = m->world + STRANGERS;
    for (int k = 0; k < n; k++) {
        const line *l = &m->lines[k];
        m->polled[k] = (struct pollfd){ .fd = l->open ? -1 : l->fd, .events = l->connecting ? POLLOUT : POLLIN };
    }
    m->polled[n] = (struct pollfd){ .fd = m->crowded ? -1 : m->listening, .events = POLLIN };
    trek_socket_poll(m->polled, n + 1, LOOK_MS);
    for (int k = 0; k < n && !m->why[0]; k++) {
        if (!m->polled[k].revents || m->lines[k].fd != m->polled[k].fd)
            continue;
        if (k < m->world)
            serve_call(m, k);
        else
            serve_stranger(m, &m->lines[k]);
    }
    if (m->polled[n].revents || m->crowded)
        accept_strangers(m);
}

static trek_status fail_by_channel(mesh *m, trek_status status)
{
    int64_t until = trek_now_ns() + (status == TREK_ERR_TIMEOUT ? 0 : REASON_NS);
    while (!trek_control_ended(m->control) && trek_now_ns() < until)
        trek_sleep_ns(1000000);
    trek_control_end(m->control, status, m->why);
    return trek_control_fail(m->control);
}

static trek_status connect_all(mesh *m, int64_t deadline_ns)
{
    int64_t until = trek_now_ns() + deadline_ns;
    begin_calls(m);
    for (int r; (r = missing(m)) >= 0;) {
        if (trek_control_ended(m->control))
            return trek_control_fail(m->control);
        if (m->why[0])
            return fail_by_channel(m, TREK_ERR_PEER);
        if (trek_now_ns() >= until) {
            fail_line(m, r, "the time for it is over");
            return fail_by_channel(m, TREK_ERR_TIMEOUT);
        }
        wait_for_some(m);
    }
    return TREK_OK;
}

trek_status trek_mesh_connect(trek_control *control, int listening, const trek_mesh_card *cards, int64_t deadline_ns,
                              int *sockets)
{
    mesh m = { .control = control, .own = trek_control_identity(control, TREK_ROLE_DATA), .cards = cards, .listening = listening,
               .rank = trek_control_process(control), .world = trek_control_processes(control) };
    size_t n = (size_t)m.world + STRANGERS;
    m.lines = trek_calloc(n, sizeof *m.lines);
    m.polled = trek_calloc(n + 1, sizeof *m.polled);
    trek_status status = m.lines && m.polled ? TREK_OK : TREK_ERR_MEMORY;
    for (size_t k = 0; m.lines && k < n; k++)
        m.lines[k].fd = -1;
    if (status == TREK_OK)
        status = connect_all(&m, deadline_ns);
    for (int k = 0; m.lines && k < m.world + STRANGERS; k++)
        if (k >= m.world || status != TREK_OK)
            close_line(&m.lines[k]);
    for (int r = 0; r < m.world; r++)
        sockets[r] = m.lines ? m.lines[r].fd : -1;
    trek_free(m.lines);
    trek_free(m.polled);
    return status;
}
