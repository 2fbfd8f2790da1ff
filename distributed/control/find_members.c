/* SPDX-License-Identifier: Apache-2.0 */
/* How the processes that are left find each other: by the rendezvous points of the members, in their order. */
#include <stdio.h>
#include <string.h>

#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* How often a process looks whether another one has come. */
#define LOOK_NS 20000000

/* --- at another one's rendezvous -------------------------------------------------------------------------- */

typedef enum outcome {
    OUTCOME_PLACE,   /* the place of the next group is known */
    OUTCOME_LOST,    /* the process visited is dead */
    OUTCOME_SENT_ON, /* it is the guest of another process */
    OUTCOME_FAILED   /* the error is set */
} outcome;

static bool once(void *arg)
{
    (void)arg;
    return true;
}

static int go_to(const trek_member *member)
{
    char why[256];
    return trek_socket_connect(member->address, member->port, trek_now_ns() + TREK_RENDEZVOUS_SILENCE_NS, once, NULL, why,
                               sizeof why);
}

static trek_status fail_without(int number)
{
    return trek_fail(TREK_ERR_PEER, "rejoin: process %d considered this one dead: the others have continued without it", number);
}

static trek_status fail_too_few(int left, int of, int least)
{
    return trek_fail(TREK_ERR_PEER, "rejoin: %d of %d processes are left; .min_processes is %d", left, of, least);
}

static trek_status fail_still(void)
{
    return trek_fail(TREK_ERR_PEER, "rejoin: this process and all remaining processes were suspended: the others may have "
                                    "continued without them, and have ended");
}

static outcome take_answer(trek_rendezvous *rendezvous, const trek_rendezvous_line *line, const trek_rendezvous_note *note,
                           trek_rendezvous_place *place)
{
    if (note->kind == TREK_RENDEZVOUS_GROUP) {
        *place = (trek_rendezvous_place){
            .process = note->process, .processes = note->processes, .generation = note->generation, .port = note->port
        };
        memcpy(place->address, note->address, sizeof place->address);
        rendezvous->host_line = *line;
        return OUTCOME_PLACE;
    }
    if (note->kind == TREK_RENDEZVOUS_FEW)
        fail_too_few(note->processes, rendezvous->n_members, note->least);
    else if (note->kind == TREK_RENDEZVOUS_STILL)
        fail_still();
    else
        fail_without(note->number);
    return OUTCOME_FAILED;
}

/* Processes that considered the host dead, as it may have seemed, wait at this process's rendezvous. They must meet it
 * nevertheless. */
static void become_guest(trek_rendezvous *rendezvous, const trek_member *host)
{
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->is_guest = true;
    rendezvous->host = *host;
    for (int k = 0; k < rendezvous->n_visitors; k++)
        if (rendezvous->visitors[k].line.fd >= 0 && rendezvous->visitors[k].number >= 0 && !rendezvous->visitors[k].answered)
            trek_rendezvous_send_visitor_on(rendezvous, &rendezvous->visitors[k]);
    trek_lock_release(&rendezvous->lock);
}

static void end_guest(trek_rendezvous *rendezvous)
{
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->is_guest = false;
    trek_lock_release(&rendezvous->lock);
}

bool trek_rendezvous_wait(trek_rendezvous *rendezvous, trek_rendezvous_line *line, const trek_member *host, int64_t until_ns,
                          trek_rendezvous_note *note,
                    bool *heard_any)
{
    trek_rendezvous_note beat = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_BEAT);
    int64_t heard = trek_now_ns(), beaten = heard;
    for (;;) {
        struct pollfd wait = { .fd = line->fd, .events = POLLIN };
        trek_socket_poll(&wait, 1, TREK_RENDEZVOUS_BEAT_NS / 1000000);
        int got = 1, shaken = line->seal.state;
        while (got == 1 && (got = trek_rendezvous_receive(rendezvous, line, note)) == 1) {
            heard = trek_now_ns();
            if (host && !*heard_any)
                become_guest(rendezvous, host);
            *heard_any = true;
            if (note->kind != TREK_RENDEZVOUS_BEAT)
                return true;
        }
        int64_t now = trek_now_ns();
        heard = line->seal.state == shaken ? heard : now; /* the handshake goes on */
        if (got < 0 || now - heard > TREK_RENDEZVOUS_SILENCE_NS || (until_ns && now > until_ns))
            return false;
        if (now - beaten >= TREK_RENDEZVOUS_BEAT_NS && !trek_rendezvous_send(rendezvous, line, &beat))
            return false;
        beaten = now - beaten >= TREK_RENDEZVOUS_BEAT_NS ? now : beaten;
    }
}

static void send_on(trek_rendezvous *rendezvous, const trek_member *host)
{
    trek_lock_acquire(&rendezvous->lock);
    trek_rendezvous_send_on(rendezvous, host);
    trek_lock_release(&rendezvous->lock);
}

/* Visits one process. If that sends this process on, *member gets where to try next. */
static outcome visit_one(trek_rendezvous *rendezvous, trek_member *member, int64_t until_ns, trek_rendezvous_place *place)
{
    trek_rendezvous_note note = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_VISIT);
    trek_lock_acquire(&rendezvous->lock);
    note.awake = !rendezvous->joins && !trek_rendezvous_stood_still(rendezvous);
    trek_lock_release(&rendezvous->lock);
    trek_rendezvous_line line = { .fd = go_to(member) };
    outcome how = OUTCOME_LOST;
    bool there = trek_rendezvous_send(rendezvous, &line, &note), heard = false;
    if (there)
        send_on(rendezvous, member);
    bool answered = there && trek_rendezvous_wait(rendezvous, &line, member, until_ns, &note, &heard);
    if (answered && note.kind == TREK_RENDEZVOUS_GO) {
        *member = (trek_member){ .number = -1, .port = note.port };
        memcpy(member->address, note.address, sizeof member->address);
        how = OUTCOME_SENT_ON;
    } else if (answered) {
        how = take_answer(rendezvous, &line, &note, place);
    }
    end_guest(rendezvous);
    if (how != OUTCOME_PLACE)
        trek_socket_close(line.fd);
    return how;
}

/* How long a process waits that was sent on to one that is dead, before it asks again. */
#define NOTICE_NS 10000000

/* Visits one process. *since: from when on this process has only been sent on; who was a guest for a while begins anew. */
static outcome visit_since(trek_rendezvous *rendezvous, trek_member *member, int64_t until_ns, trek_rendezvous_place *place,
                           int64_t *since)
{
    int64_t before = trek_now_ns();
    outcome how = visit_one(rendezvous, member, until_ns, place);
    if (how == OUTCOME_SENT_ON && trek_now_ns() - before > TREK_RENDEZVOUS_BEAT_NS)
        *since = trek_now_ns();
    return how;
}

/* Visits a process. If it sends this process on to a process that is not there, which it may not have noticed yet, this process
 * comes back, as long as somebody who is silent would be waited for. */
static outcome visit(trek_rendezvous *rendezvous, const trek_member *member, int64_t until_ns, trek_rendezvous_place *place)
{
    int64_t since = trek_now_ns();
    trek_member at = *member;
    outcome how = visit_since(rendezvous, &at, until_ns, place, &since);
    while (how == OUTCOME_SENT_ON && trek_now_ns() - since < TREK_RENDEZVOUS_SILENCE_NS) {
        how = visit_since(rendezvous, &at, until_ns, place, &since);
        if (how != OUTCOME_LOST)
            continue;
        trek_sleep_ns(NOTICE_NS);
        at = *member;
        how = visit_since(rendezvous, &at, until_ns, place, &since);
    }
    return how == OUTCOME_SENT_ON ? OUTCOME_LOST : how;
}

trek_status trek_rendezvous_visit(trek_rendezvous *rendezvous, const trek_member *host, int64_t until_ns,
                                  trek_rendezvous_place *place, bool *lost)
{
    outcome how = visit(rendezvous, host, until_ns, place);
    *lost = how == OUTCOME_LOST;
    return how == OUTCOME_FAILED ? trek_error_status() : TREK_OK;
}

/* --- whether missing processes are alive --------------------------------------------------------------- */

typedef struct probe {
    trek_rendezvous_line line; /* not connected: the member is not asked, or has answered */
    bool asked, lost; /* lost: it has not answered */
} probe;

/* What the host knows of a member. */
typedef struct guest {
    bool dead, came;
    probe probe;
} guest;

static void end_probe(guest *g, bool lost)
{
    trek_socket_close(g->probe.line.fd);
    g->probe.line.fd = -1;
    g->probe.lost = lost;
}

/* *looked: when this was last asked. */
static bool stood_still_since(int64_t *looked)
{
    int64_t before = *looked;
    *looked = trek_now_ns();
    return *looked - before > TREK_RENDEZVOUS_STILL_NS;
}

/* Returns whether that process is in a group without this process. */
static bool follow_probe(const trek_rendezvous *rendezvous, guest *g, const trek_rendezvous_note *question)
{
    trek_rendezvous_note note;
    if (!g->probe.asked) {
        g->probe.asked = true;
        if (!trek_socket_begun(g->probe.line.fd) || !trek_rendezvous_send(rendezvous, &g->probe.line, question))
            end_probe(g, true);
        return false;
    }
    int got = trek_rendezvous_receive(rendezvous, &g->probe.line, &note);
    if (got != 0)
        end_probe(g, got < 0);
    return got == 1 && note.kind == TREK_RENDEZVOUS_RUNNING;
}

static bool has_elder(trek_rendezvous *rendezvous)
{
    trek_lock_acquire(&rendezvous->lock);
    bool has = rendezvous->elder > 0;
    trek_lock_release(&rendezvous->lock);
    return has;
}

/* Asks all who are missing at once, and waits for their answers. Returns the number of a process that is in a group without this
 * process, or -1. If this process stood still meanwhile, others may have given it up, and no process counts as dead because of
 * that. Nor does one that was not waited for, because a process has appeared to which all must go, and which waits for them. */
static int ask_missing(trek_rendezvous *rendezvous, guest *guests, struct pollfd *polled, const trek_rendezvous_note *question)
{
    int64_t looked = trek_now_ns(), until = looked + TREK_RENDEZVOUS_SILENCE_NS;
    int n = rendezvous->n_members, open = 0, elsewhere = -1;
    bool still = false, goes = false;
    for (int k = 0; k < n; k++) {
        guest *g = &guests[k];
        g->probe = (probe){ .line.fd = -1 };
        if (g->dead || g->came)
            continue;
        g->probe.line.fd = trek_socket_begin(rendezvous->members[k].address, rendezvous->members[k].port);
        g->probe.lost = g->probe.line.fd < 0;
        open += !g->probe.lost;
    }
    while (open > 0 && trek_now_ns() < until && !(goes = has_elder(rendezvous))) {
        for (int k = 0; k < n; k++)
            polled[k] = (struct pollfd){ .fd = guests[k].probe.line.fd, .events = guests[k].probe.asked ? POLLIN : POLLOUT };
        trek_socket_poll(polled, n, TREK_RENDEZVOUS_BEAT_NS / 1000000);
        open = 0;
        for (int k = 0; k < n; k++) {
            if (guests[k].probe.line.fd >= 0 && polled[k].revents && follow_probe(rendezvous, &guests[k], question))
                elsewhere = rendezvous->members[k].number;
            open += guests[k].probe.line.fd >= 0;
        }
        still |= stood_still_since(&looked);
    }
    still |= stood_still_since(&looked);
    for (int k = 0; k < n; k++) {
        if (guests[k].probe.line.fd >= 0)
            end_probe(&guests[k], true);
        guests[k].dead |= guests[k].probe.lost && !still && !goes;
    }
    return elsewhere;
}

/* Asks them whether they are alive. */
static int probe_missing(trek_rendezvous *rendezvous, guest *guests, struct pollfd *polled)
{
    const trek_rendezvous_note question = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_PROBE);
    return ask_missing(rendezvous, guests, polled, &question);
}

void trek_rendezvous_leave(trek_rendezvous *rendezvous, int64_t done)
{
    size_t n = (size_t)rendezvous->n_members;
    guest *guests = n > 1 && !trek_forked ? trek_calloc(n, sizeof *guests) : NULL;
    struct pollfd *polled = guests ? trek_calloc(n, sizeof *polled) : NULL;
    trek_rendezvous_note farewell = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_FAREWELL);
    farewell.done = done;
    for (size_t k = 0; polled && k < n; k++)
        guests[k].came = rendezvous->members[k].number == rendezvous->own.number;
    if (polled)
        ask_missing(rendezvous, guests, polled, &farewell);
    trek_free(guests);
    trek_free(polled);
}

int64_t trek_rendezvous_left(trek_rendezvous *rendezvous)
{
    trek_lock_acquire(&rendezvous->lock);
    int64_t done = rendezvous->left_done;
    trek_lock_release(&rendezvous->lock);
    return done;
}

/* --- at this one's own rendezvous --------------------------------------------------------------------------------- */

/* Returns NULL if it is not here. Called with the lock held. */
static trek_rendezvous_visitor *visitor_of(trek_rendezvous *rendezvous, int number)
{
    for (int k = 0; k < rendezvous->n_visitors; k++)
        if (rendezvous->visitors[k].line.fd >= 0 && !rendezvous->visitors[k].answered && rendezvous->visitors[k].number == number)
            return &rendezvous->visitors[k];
    return NULL;
}

/* Returns whether all have come who are not dead. */
static bool look_around(trek_rendezvous *rendezvous, guest *guests)
{
    bool all = true;
    trek_lock_acquire(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_members; k++) {
        guests[k].came = rendezvous->members[k].number == rendezvous->own.number ||
            visitor_of(rendezvous, rendezvous->members[k].number);
        all = all && (guests[k].came || guests[k].dead);
    }
    trek_lock_release(&rendezvous->lock);
    return all;
}

static void wait_a_while(trek_rendezvous *rendezvous)
{
    int64_t until = trek_now_ns() + LOOK_NS;
    trek_lock_acquire(&rendezvous->lock);
    trek_condition_wait_until(&rendezvous->changed, &rendezvous->lock, until);
    trek_lock_release(&rendezvous->lock);
}

/* Sends the same note to all who are here. Called with the lock held. */
static void send_away(trek_rendezvous *rendezvous, trek_rendezvous_note *note)
{
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        if (visitor->line.fd < 0 || visitor->number < 0)
            continue;
        trek_rendezvous_send(rendezvous, &visitor->line, note);
        trek_rendezvous_drop(visitor);
    }
}

/* Called with the lock held. */
static void invite(trek_rendezvous *rendezvous, trek_rendezvous_place *place)
{
    trek_rendezvous_note note = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_GROUP);
    note.processes = place->processes;
    note.port = place->port;
    note.generation = place->generation;
    memcpy(note.address, place->address, sizeof note.address);
    for (int k = 0; k < rendezvous->n_members; k++) {
        trek_rendezvous_visitor *visitor = visitor_of(rendezvous, rendezvous->members[k].number);
        if (!visitor)
            continue;
        note.process++;
        visitor->answered = true;
        if (!trek_rendezvous_send(rendezvous, &visitor->line, &note))
            trek_rendezvous_drop(visitor);
    }
}

/* Makes those who are here the next group. Called with the lock held. */
static trek_status choose(trek_rendezvous *rendezvous, int least, trek_rendezvous_place *place)
{
    bool awake = !trek_rendezvous_stood_still(rendezvous);
    int missing = 0; /* who may have gone on; one that has only been invited cannot */
    *place = (trek_rendezvous_place){ .processes = 1, .generation = rendezvous->generation };
    for (int k = 0; k < rendezvous->n_members; k++) {
        const trek_rendezvous_visitor *visitor = visitor_of(rendezvous, rendezvous->members[k].number);
        place->processes += visitor != NULL;
        missing += k < rendezvous->n_entered && !visitor && rendezvous->members[k].number != rendezvous->own.number;
        awake |= visitor && visitor->awake;
        if (visitor && visitor->generation > place->generation)
            place->generation = visitor->generation;
    }
    place->generation++;
    memcpy(place->address, rendezvous->own.address, sizeof place->address);
    if (place->processes < least) {
        trek_rendezvous_note few = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_FEW);
        few.processes = place->processes;
        few.least = least;
        send_away(rendezvous, &few);
        return fail_too_few(place->processes, rendezvous->n_members, least);
    }
    if (!awake && missing > 0) {
        trek_rendezvous_note still = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_STILL);
        send_away(rendezvous, &still);
        return fail_still();
    }
    int fd = -1;
    trek_status status = place->processes > 1 ? trek_socket_listen(place->address, 0, &fd, &place->port) : TREK_OK;
    place->listening = fd + 1;
    if (status == TREK_OK)
        invite(rendezvous, place);
    return status;
}

/* Begins or ends to be the process to which the others come. */
static void set_hosts(trek_rendezvous *rendezvous, bool hosts)
{
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->hosts = hosts;
    rendezvous->elder = 0;
    trek_lock_release(&rendezvous->lock);
}

/* Receives the others until all living ones are here, or until a process has appeared to which they and this process
 * must go. */
static trek_status receive(trek_rendezvous *rendezvous, guest *guests, struct pollfd *polled, int64_t until_ns)
{
    for (int k = 0; k < rendezvous->n_members && rendezvous->members[k].number != rendezvous->own.number; k++)
        guests[k].dead = true; /* it was tried */
    send_on(rendezvous, &rendezvous->own);
    while (!look_around(rendezvous, guests) && !has_elder(rendezvous) && (until_ns == 0 || trek_now_ns() < until_ns)) {
        int elsewhere = probe_missing(rendezvous, guests, polled);
        if (elsewhere >= 0) {
            trek_lock_acquire(&rendezvous->lock);
            trek_rendezvous_note gone = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_GONE);
            send_away(rendezvous, &gone);
            trek_lock_release(&rendezvous->lock);
            return fail_without(elsewhere);
        }
        if (!look_around(rendezvous, guests))
            wait_a_while(rendezvous);
    }
    return TREK_OK;
}

/* Hosts the next group. *elder gets the process to visit instead if its rendezvous is set; then nothing was chosen. */
static trek_status host(trek_rendezvous *rendezvous, int least, int64_t settle_ns, trek_rendezvous_place *place,
                        trek_member *elder)
{
    size_t n = (size_t)rendezvous->n_members;
    guest *guests = trek_calloc(n, sizeof *guests);
    struct pollfd *polled = trek_calloc(n, sizeof *polled);
    trek_status status = guests && polled ? TREK_OK : TREK_ERR_MEMORY;
    *elder = (trek_member){ .port = 0 };
    set_hosts(rendezvous, true);
    if (status == TREK_OK)
        status = receive(rendezvous, guests, polled, settle_ns ? trek_now_ns() + settle_ns : 0);
    if (status == TREK_OK) {
        trek_lock_acquire(&rendezvous->lock);
        if (rendezvous->elder)
            *elder = rendezvous->members[rendezvous->elder - 1];
        else
            status = choose(rendezvous, least, place);
        trek_lock_release(&rendezvous->lock);
    }
    set_hosts(rendezvous, false);
    trek_free(guests);
    trek_free(polled);
    return status;
}

/* --- both --------------------------------------------------------------------------------------------------------- */

trek_status trek_rendezvous_meet(trek_rendezvous *rendezvous, int least, int64_t settle_ns, trek_rendezvous_place *place)
{
    /* the host waits settle_ns, and may have waited for the end of its own group before */
    int64_t until = settle_ns ? trek_now_ns() + 2 * settle_ns + 2 * TREK_RENDEZVOUS_SILENCE_NS : 0;
    if (trek_forked)
        return trek_fail_forked();
    trek_rendezvous_settled(rendezvous);
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->lost_ns = rendezvous->running ? trek_now_ns() : rendezvous->lost_ns;
    rendezvous->running = false;
    trek_lock_release(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_members && rendezvous->members[k].number != rendezvous->own.number; k++) {
        outcome how = visit(rendezvous, &rendezvous->members[k], until, place);
        if (how != OUTCOME_LOST)
            return how == OUTCOME_PLACE ? TREK_OK : trek_error_status();
    }
    trek_status status = TREK_OK;
    outcome how = OUTCOME_LOST;
    for (int times = 0; status == TREK_OK && how == OUTCOME_LOST && times <= rendezvous->n_members; times++) {
        trek_member elder;
        status = host(rendezvous, least, settle_ns, place, &elder);
        if (status != TREK_OK || elder.port == 0)
            return status;
        how = visit(rendezvous, &elder, until, place);
    }
    if (how == OUTCOME_LOST)
        return trek_fail(TREK_ERR_PEER, "rejoin: the remaining processes keep changing: no group has been formed");
    return how == OUTCOME_PLACE ? TREK_OK : trek_error_status();
}

static bool host_died(trek_rendezvous *rendezvous)
{
    trek_rendezvous_note note;
    int got = 1;
    while (rendezvous->host_line.fd >= 0 && got == 1)
        got = trek_rendezvous_receive(rendezvous, &rendezvous->host_line, &note);
    return got < 0;
}

bool trek_rendezvous_died(void *arg, char *text, size_t size)
{
    trek_rendezvous *rendezvous = arg;
    bool died = host_died(rendezvous);
    snprintf(text, size, "the process that formed the group ended");
    trek_lock_acquire(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_visitors && !died; k++)
        if (rendezvous->visitors[k].answered && rendezvous->visitors[k].line.fd < 0) {
            snprintf(text, size, "process %d of the job ended", rendezvous->visitors[k].number);
            died = true;
        }
    trek_lock_release(&rendezvous->lock);
    return died;
}

void trek_rendezvous_settled(trek_rendezvous *rendezvous)
{
    trek_lock_acquire(&rendezvous->lock);
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        if (!rendezvous->visitors[k].answered)
            continue;
        trek_rendezvous_drop(&rendezvous->visitors[k]);
        rendezvous->visitors[k].answered = false;
    }
    trek_lock_release(&rendezvous->lock);
    trek_socket_close(rendezvous->host_line.fd);
    rendezvous->host_line.fd = -1;
}
