/* SPDX-License-Identifier: Apache-2.0 */
/* Where joiners wait for the next meeting: at the job's address, in one of the processes that are at work. */
#include <string.h>

#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* Of one that has no number yet. */
enum { NEWCOMER = -1 };

/* --- with the lock held ------------------------------------------------------------------------------- */

static void tell(const trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor, trek_rendezvous_kind kind,
                 const trek_member *host)
{
    trek_rendezvous_note note = trek_rendezvous_note_of(rendezvous, kind);
    note.process = visitor->joiner.member.number;
    note.processes = rendezvous->world;
    note.version = TREK_RENDEZVOUS_VERSION;
    if (host) {
        note.port = host->port;
        memcpy(note.address, host->address, sizeof note.address);
    }
    trek_rendezvous_send(rendezvous, &visitor->line, &note);
    visitor->waits = visitor->invited = false;
    visitor->told = true; /* the visitor closes the connection, because closing it here would reset it if the visitor still
                           * sends */
}

static bool is_sound(const trek_rendezvous_note *note)
{
    bool known = note->number >= 0 && note->number < TREK_MAX_RANKS;
    return (known || note->number == NEWCOMER) && note->port > 0 && note->port < 65536 && note->address[0] && note->ranks > 0 &&
           note->ranks <= TREK_MAX_RANKS;
}

/* Returns why a process cannot be let in, or 0. */
static trek_rendezvous_kind refusal(const trek_rendezvous *rendezvous, const trek_rendezvous_note *note)
{
    bool known = note->number != NEWCOMER;
    if (known && (note->processes != rendezvous->world || note->number >= rendezvous->world))
        return TREK_RENDEZVOUS_OTHER_WORLD;
    if (note->version != TREK_RENDEZVOUS_VERSION)
        return TREK_RENDEZVOUS_OTHER_VERSION;
    if (rendezvous->program == 0)
        return TREK_RENDEZVOUS_LATER;
    return note->program != rendezvous->program ? TREK_RENDEZVOUS_DIFFERS : 0;
}

void trek_rendezvous_take_joiner(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor, const trek_rendezvous_note *note)
{
    if (!is_sound(note) || rendezvous->join_fd < 0) {
        trek_rendezvous_drop(visitor);
        return;
    }
    trek_rendezvous_kind no = refusal(rendezvous, note);
    if (no) {
        tell(rendezvous, visitor, no, NULL);
        return;
    }
    for (int k = 0; k < rendezvous->n_visitors; k++) /* it has come again */
        if (rendezvous->visitors[k].waits && rendezvous->visitors[k].joiner.member.number == note->number)
            tell(rendezvous, &rendezvous->visitors[k], TREK_RENDEZVOUS_TAKEN, NULL);
    int number = note->number == NEWCOMER ? rendezvous->unused++ : note->number;
    visitor->waits = true;
    visitor->joiner = (trek_joiner){ .member = { .number = number, .port = note->port }, .ranks = note->ranks,
                                     .engines = note->engines, .machine = note->machine };
    memcpy(visitor->joiner.member.address, note->address, sizeof visitor->joiner.member.address);
    trek_rendezvous_note beat = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_BEAT); /* it may stay */
    if (!trek_rendezvous_send(rendezvous, &visitor->line, &beat))
        trek_rendezvous_drop(visitor);
}

void trek_rendezvous_send_on(trek_rendezvous *rendezvous, const trek_member *host)
{
    for (int k = 0; k < rendezvous->n_visitors; k++)
        if (rendezvous->visitors[k].line.fd >= 0 && rendezvous->visitors[k].invited)
            tell(rendezvous, &rendezvous->visitors[k], TREK_RENDEZVOUS_GO, host);
}

void trek_rendezvous_send_visitor_on(const trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor)
{
    tell(rendezvous, visitor, TREK_RENDEZVOUS_GO, &rendezvous->host);
    visitor->number = -1; /* it does not wait here */
}

void trek_rendezvous_close_join_queue(trek_rendezvous *rendezvous)
{
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        if (visitor->line.fd < 0 || !visitor->waits)
            continue;
        tell(rendezvous, visitor, TREK_RENDEZVOUS_OVER, NULL);
        trek_socket_finish(visitor->line.fd);
    }
}

/* --- for the group ---------------------------------------------------------------------------------------- */

trek_status trek_rendezvous_admit(trek_rendezvous *rendezvous, const char *address, int port, int listening, uint64_t program,
                                  int world)
{
    int fd = listening - 1, bound = port;
    trek_status status = fd >= 0 ? TREK_OK : trek_socket_listen(address, port, &fd, &bound);
    if (status != TREK_OK)
        return status;
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->join_fd = fd;
    rendezvous->program = program;
    rendezvous->world = world;
    trek_rendezvous_raise_unused(rendezvous, world);
    trek_lock_release(&rendezvous->lock);
    trek_rendezvous_wake(rendezvous);
    return TREK_OK;
}

void trek_rendezvous_set_program(trek_rendezvous *rendezvous, uint64_t program)
{
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->program = program;
    trek_lock_release(&rendezvous->lock);
}

int trek_rendezvous_world(const trek_rendezvous *rendezvous) { return rendezvous->world; }

void trek_rendezvous_raise_unused(trek_rendezvous *rendezvous, int number)
{
    if (rendezvous->unused < number)
        rendezvous->unused = number;
}

int trek_rendezvous_first_unused(trek_rendezvous *rendezvous)
{
    trek_lock_acquire(&rendezvous->lock);
    int number = rendezvous->unused;
    trek_lock_release(&rendezvous->lock);
    return number;
}

void trek_rendezvous_note_unused(trek_rendezvous *rendezvous, int number)
{
    trek_lock_acquire(&rendezvous->lock);
    trek_rendezvous_raise_unused(rendezvous, number);
    trek_lock_release(&rendezvous->lock);
}

bool trek_rendezvous_admits(trek_rendezvous *rendezvous)
{
    trek_lock_acquire(&rendezvous->lock);
    bool admits = rendezvous->join_fd >= 0;
    trek_lock_release(&rendezvous->lock);
    return admits;
}

int trek_rendezvous_joiners(trek_rendezvous *rendezvous)
{
    int n = 0;
    trek_lock_acquire(&rendezvous->lock);
    int64_t now = rendezvous->n_visitors > 0 ? trek_now_ns() : 0;
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        const trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        if (visitor->line.fd >= 0 && visitor->waits)
            n += !trek_rendezvous_is_member(rendezvous, visitor->joiner.member.number) ||
                 now - visitor->since_ns > TREK_RENDEZVOUS_SILENCE_NS;
    }
    trek_lock_release(&rendezvous->lock);
    return n;
}

int trek_rendezvous_waiting(trek_rendezvous *rendezvous, trek_joiner *joiners, int most)
{
    int n = 0;
    trek_lock_acquire(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        if (visitor->line.fd < 0 || !visitor->waits)
            continue;
        if (trek_rendezvous_is_member(rendezvous, visitor->joiner.member.number)) {
            visitor->met++;
            continue;
        }
        int at = n < most ? n++ : n;
        for (; at > 0 && at < n && joiners[at - 1].member.number > visitor->joiner.member.number; at--)
            joiners[at] = joiners[at - 1];
        if (at < n)
            joiners[at] = visitor->joiner;
    }
    trek_lock_release(&rendezvous->lock);
    return n;
}

static bool is_same(const trek_member *a, const trek_member *b)
{
    return a->number == b->number && a->port == b->port && strcmp(a->address, b->address) == 0;
}

/* Answers the joiners that wait. Called with the lock held. */
static void answer_waiting(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor, const trek_joiner *joiners, int n)
{
    for (int k = 0; k < n; k++)
        visitor->invited |= is_same(&joiners[k].member, &visitor->joiner.member);
    if (!visitor->invited && visitor->met >= 2)
        tell(rendezvous, visitor, TREK_RENDEZVOUS_TAKEN, NULL);
}

trek_status trek_rendezvous_invite(trek_rendezvous *rendezvous, const trek_joiner *joiners, int n)
{
    trek_member *all = n > 0 ? trek_calloc((size_t)(rendezvous->n_members + n), sizeof *all) : NULL;
    if (n > 0 && !all)
        return TREK_ERR_MEMORY;
    trek_lock_acquire(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_visitors; k++)
        if (rendezvous->visitors[k].line.fd >= 0 && rendezvous->visitors[k].waits)
            answer_waiting(rendezvous, &rendezvous->visitors[k], joiners, n);
    if (all) {
        memcpy(all, rendezvous->members, (size_t)rendezvous->n_members * sizeof *all);
        for (int k = 0; k < n; k++) {
            all[rendezvous->n_members + k] = joiners[k].member;
            trek_rendezvous_raise_unused(rendezvous, joiners[k].member.number + 1);
        }
        trek_free(rendezvous->members);
        rendezvous->members = all;
        rendezvous->n_members += n;
        rendezvous->running = false; /* from here on visitors are told that it will come */
        rendezvous->lost_ns = trek_now_ns();
    }
    trek_lock_release(&rendezvous->lock);
    return TREK_OK;
}

void trek_rendezvous_turn_away(trek_rendezvous *rendezvous, const trek_joiner *joiner, trek_rendezvous_no why)
{
    trek_lock_acquire(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        if (visitor->line.fd >= 0 && visitor->waits && is_same(&joiner->member, &visitor->joiner.member))
            tell(rendezvous, visitor, why == TREK_RENDEZVOUS_NO_ROOM ? TREK_RENDEZVOUS_FULL : TREK_RENDEZVOUS_APART, NULL);
    }
    trek_lock_release(&rendezvous->lock);
}
