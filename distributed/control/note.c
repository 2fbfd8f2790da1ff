/* SPDX-License-Identifier: Apache-2.0 */
/* What is said at a rendezvous: sealed notes of one size, after a handshake. */
#include <errno.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/status_internal.h"

#define MAGIC 0x34306f646b657274u /* "trekdo04" */
#define SEALED offsetof(trek_rendezvous_note, code)

_Static_assert(sizeof(trek_rendezvous_note) >= sizeof(trek_handshake_note), "a line has room for either");

trek_rendezvous_note trek_rendezvous_note_of(const trek_rendezvous *rendezvous, trek_rendezvous_kind kind)
{
    return (trek_rendezvous_note){ .magic = MAGIC, .kind = kind, .number = rendezvous->own.number,
                                   .generation = rendezvous->generation };
}

static bool send_sealed(trek_seal *seal, int fd, const trek_rendezvous_note *note)
{
    trek_rendezvous_note sealed = *note;
    struct iovec part = { &sealed, SEALED };
    trek_seal_sign(seal, &part, 1, sealed.code);
    part.iov_len = sizeof sealed;
    return trek_socket_send(fd, &part, 1) == (int64_t)sizeof sealed;
}

static trek_identity identity_of(const trek_rendezvous *rendezvous)
{
    return (trek_identity){ .secret = &rendezvous->secret, .role = TREK_ROLE_RENDEZVOUS, .process = rendezvous->own.number,
                            .generation = rendezvous->generation };
}

/* Begins as the caller, which sends nothing before the other end has proved itself. */
static bool call(const trek_rendezvous *rendezvous, trek_rendezvous_line *line, const trek_rendezvous_note *note)
{
    trek_identity own = identity_of(rendezvous);
    line->holds = true;
    line->held = *note;
    return trek_seal_call(&line->seal, &own, line->fd);
}

bool trek_rendezvous_send(const trek_rendezvous *rendezvous, trek_rendezvous_line *line, const trek_rendezvous_note *note)
{
    if (line->fd < 0 || line->fault)
        return false;
    if (trek_seal_is_open(&line->seal))
        return send_sealed(&line->seal, line->fd, note);
    return line->holds || call(rendezvous, line, note);
}

static bool is_whole(trek_seal *seal, const char *in, trek_rendezvous_note *note)
{
    memcpy(note, in, sizeof *note);
    if (note->magic != MAGIC || !trek_seal_check(seal, in, SEALED, note->code))
        return false;
    note->address[sizeof note->address - 1] = '\0';
    return true;
}

bool trek_rendezvous_answer_early(const char *in, int process, trek_seal *seal, int fd)
{
    const trek_rendezvous rendezvous = { .own.number = process };
    trek_rendezvous_note note;
    if (!is_whole(seal, in, &note) || note.kind != TREK_RENDEZVOUS_JOIN)
        return false;
    trek_rendezvous_note later = trek_rendezvous_note_of(&rendezvous, TREK_RENDEZVOUS_LATER);
    send_sealed(seal, fd, &later);
    return true;
}

void trek_rendezvous_put_off(trek_rendezvous_line *line)
{
    trek_control_head later = { .magic = TREK_CONTROL_MAGIC, .type = TREK_CONTROL_LATER };
    unsigned char code[TREK_SEAL_BYTES];
    struct iovec parts[2] = { { &later, sizeof later }, { code, sizeof code } };
    trek_seal_sign(&line->seal, parts, 1, code);
    trek_socket_send(line->fd, parts, 2);
    line->deaf = true;
}

/* Continues the handshake with what was read. Returns what trek_rendezvous_receive returns. */
static int shake(const trek_rendezvous *rendezvous, trek_rendezvous_line *line)
{
    trek_identity own = identity_of(rendezvous);
    size_t taken;
    trek_shake how = trek_seal_shake(&line->seal, &own, line->fd, line->in, line->used, &taken);
    line->used -= taken; /* one note is read at a time, all of it or nothing */
    if (how == TREK_SHAKE_MORE)
        return 0;
    if (how != TREK_SHAKE_DONE) {
        char why[160];
        line->fault = how;
        if (how != TREK_SHAKE_STRANGER)
            trek_log_message(TREK_LOG_LEVEL_INFO, "joiners: process %d and one that claims to be process %d cannot connect: %s",
                             rendezvous->own.number, line->seal.other.process,
                             trek_seal_why(&line->seal, how, "this rendezvous", why, sizeof why));
        return -1;
    }
    if (line->holds && !send_sealed(&line->seal, line->fd, &line->held))
        return -1;
    return line->seal.other.role == TREK_ROLE_CHANNEL && !line->holds ? 2 : 0;
}

/* Discards input: the other end may still send although it has its answer. */
static int throw_away(trek_rendezvous_line *line)
{
    int64_t got;
    while ((got = trek_socket_receive(line->fd, line->in, sizeof line->in)) > 0)
        ;
    return (int)got;
}

int trek_rendezvous_receive(const trek_rendezvous *rendezvous, trek_rendezvous_line *line, trek_rendezvous_note *note)
{
    if (line->deaf)
        return throw_away(line);
    for (;;) {
        bool open = trek_seal_is_open(&line->seal);
        int64_t got = trek_socket_receive(line->fd, line->in + line->used,
                                          (open ? sizeof *note : sizeof(trek_handshake_note)) - line->used);
        if (got <= 0 || line->fault)
            return line->fault ? -1 : (int)got;
        line->used += (size_t)got;
        int how = open ? 0 : shake(rendezvous, line);
        if (how)
            return how;
        if (!open || line->used < sizeof *note)
            continue;
        line->used = 0;
        return is_whole(&line->seal, line->in, note) ? 1 : -1;
    }
}

bool trek_rendezvous_stood_still(const trek_rendezvous *rendezvous)
{
    bool noticed = rendezvous->still_ns && rendezvous->still_ns > rendezvous->lost_ns - TREK_RENDEZVOUS_NOTICED_NS;
    return noticed || trek_now_ns() - rendezvous->loop_ns > TREK_RENDEZVOUS_STILL_NS; /* the thread has not run since */
}

bool trek_rendezvous_is_member(const trek_rendezvous *rendezvous, int number)
{
    for (int k = 0; k < rendezvous->n_members; k++)
        if (rendezvous->members[k].number == number)
            return true;
    return false;
}

void trek_rendezvous_drop(trek_rendezvous_visitor *visitor)
{
    trek_socket_close(visitor->line.fd);
    visitor->line.fd = -1;
}

void trek_rendezvous_wake(const trek_rendezvous *rendezvous)
{
    if (!trek_bell_ring(rendezvous->bell))
        trek_log_message(TREK_LOG_LEVEL_DEBUG, "joiners: %s", strerror(errno));
}
