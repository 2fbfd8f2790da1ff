/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous's thread: lets in processes of the job, answers those that ask, and sends beats to those that wait. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* All processes of a job may come, and others may ask meanwhile. */
#define MOST_VISITORS (2 * TREK_MAX_RANKS)

/* --- visitors, with the lock held ------------------------------------------------------------------- */

/* The elder member that asks will receive the others itself. */
static void note_elder(trek_rendezvous *rendezvous, int number)
{
    for (int k = 0; rendezvous->hosts && k < rendezvous->n_members && rendezvous->members[k].number != rendezvous->own.number;
         k++)
        if (rendezvous->members[k].number == number)
            rendezvous->elder = k + 1;
}

static void answer_probe(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor, int number)
{
    note_elder(rendezvous, number);
    bool without = rendezvous->running && !rendezvous->joins && !trek_rendezvous_is_member(rendezvous, number);
    trek_rendezvous_note answer = trek_rendezvous_note_of(rendezvous, without ? TREK_RENDEZVOUS_RUNNING : TREK_RENDEZVOUS_COMING);
    trek_rendezvous_send(rendezvous, &visitor->line, &answer);
    trek_rendezvous_drop(visitor);
}

static void take_visit(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor, const trek_rendezvous_note *note)
{
    if (!trek_rendezvous_is_member(rendezvous, note->number)) {
        trek_rendezvous_note gone = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_GONE);
        trek_rendezvous_send(rendezvous, &visitor->line, &gone);
        trek_rendezvous_drop(visitor);
        return;
    }
    for (int k = 0; k < rendezvous->n_visitors; k++) /* it has come again */
        if (&rendezvous->visitors[k] != visitor && rendezvous->visitors[k].number == note->number)
            trek_rendezvous_drop(&rendezvous->visitors[k]);
    visitor->number = note->number;
    visitor->generation = note->generation;
    visitor->awake = note->awake != 0;
    if (rendezvous->is_guest)
        trek_rendezvous_send_visitor_on(rendezvous, visitor);
}

/* Notes what a member has done that leaves. The answer says that it may go. */
static void take_farewell(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor, const trek_rendezvous_note *note)
{
    if (trek_rendezvous_is_member(rendezvous, note->number) && note->done > rendezvous->left_done)
        rendezvous->left_done = note->done;
    trek_rendezvous_note answer = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_COMING);
    trek_rendezvous_send(rendezvous, &visitor->line, &answer);
    trek_rendezvous_drop(visitor);
}

/* The visitor goes when it has read that. */
static void put_off(trek_rendezvous_visitor *visitor)
{
    trek_rendezvous_put_off(&visitor->line);
    visitor->told = true;
}

/* Returns whether the others may know of this rendezvous before its own process knows that all do. A visitor that asks
 * meanwhile waits for that. */
static bool is_between(const trek_rendezvous *rendezvous) { return rendezvous->n_members == 0 && !rendezvous->joins; }

void trek_rendezvous_read_visitor(trek_rendezvous *rendezvous, trek_rendezvous_visitor *visitor)
{
    trek_rendezvous_note note;
    int got, shaken = visitor->line.seal.state;
    while (visitor->line.fd >= 0 && !is_between(rendezvous) &&
           (got = trek_rendezvous_receive(rendezvous, &visitor->line, &note)) != 0) {
        visitor->heard_ns = trek_now_ns();
        if (got < 0)
            trek_rendezvous_drop(visitor);
        else if (visitor->told)
            continue;
        else if (got == 2)
            put_off(visitor);
        else if (note.kind == TREK_RENDEZVOUS_JOIN && visitor->number < 0 && !visitor->waits)
            trek_rendezvous_take_joiner(rendezvous, visitor, &note);
        else if (note.kind == TREK_RENDEZVOUS_PROBE)
            answer_probe(rendezvous, visitor, note.number);
        else if (note.kind == TREK_RENDEZVOUS_FAREWELL && visitor->number < 0)
            take_farewell(rendezvous, visitor, &note);
        else if (note.kind == TREK_RENDEZVOUS_VISIT && visitor->number < 0)
            take_visit(rendezvous, visitor, &note);
        else if (note.kind != TREK_RENDEZVOUS_BEAT || (visitor->number < 0 && !visitor->waits))
            trek_rendezvous_drop(visitor);
    }
    if (visitor->line.seal.state != shaken) /* the handshake goes on: at most twice */
        visitor->heard_ns = trek_now_ns();
}

/* Removes visitors that have ended. Those that were answered stay, for trek_rendezvous_died. */
static void sweep(trek_rendezvous *rendezvous)
{
    int kept = 0;
    for (int k = 0; k < rendezvous->n_visitors; k++)
        if (rendezvous->visitors[k].line.fd >= 0 || rendezvous->visitors[k].answered)
            rendezvous->visitors[kept++] = rendezvous->visitors[k];
    rendezvous->n_visitors = kept;
}

static bool is_stranger(const trek_rendezvous_visitor *visitor)
{
    return visitor->line.fd >= 0 && visitor->number < 0 && !visitor->waits && !visitor->told && !visitor->answered;
}

/* Counts the strangers from an address; 0: from any address. */
static int count_strangers(const trek_rendezvous *rendezvous, uint64_t from)
{
    int n = 0;
    for (int k = 0; k < rendezvous->n_visitors; k++)
        n += is_stranger(&rendezvous->visitors[k]) && (from == 0 || rendezvous->visitors[k].from == from);
    return n;
}

/* Returns whether another stranger may come. If all places are taken, the stranger that has been silent longest is
 * removed, if that is long enough. Between groups nobody is removed, because nobody has been listened to. */
static bool has_place(trek_rendezvous *rendezvous)
{
    trek_rendezvous_visitor *goes = NULL;
    int64_t now = trek_now_ns();
    if (count_strangers(rendezvous, 0) < TREK_RENDEZVOUS_STRANGERS)
        return true;
    for (int k = 0; k < rendezvous->n_visitors && !is_between(rendezvous); k++) {
        trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        bool one_of_many = is_stranger(visitor) &&
            count_strangers(rendezvous, visitor->from) > TREK_RENDEZVOUS_STRANGERS_OF_ADDRESS;
        int64_t patience = one_of_many ? TREK_RENDEZVOUS_PATIENCE_OF_MANY_NS : TREK_RENDEZVOUS_PATIENCE_NS;
        if (is_stranger(visitor) && now - visitor->since_ns >= patience && (!goes || visitor->since_ns < goes->since_ns))
            goes = visitor;
    }
    if (goes)
        trek_rendezvous_drop(goes);
    sweep(rendezvous);
    return goes != NULL;
}

static void rest(trek_rendezvous *rendezvous) { rendezvous->rest_ns = trek_now_ns() + TREK_RENDEZVOUS_REST_NS; }

static void accept_visitors(trek_rendezvous *rendezvous, int listening)
{
    while (listening >= 0 && rendezvous->rest_ns == 0 && rendezvous->n_visitors < MOST_VISITORS) {
        if (!has_place(rendezvous)) {
            rest(rendezvous);
            return;
        }
        int n = rendezvous->n_visitors + 1;
        if (trek_array_grow(&rendezvous->visitors, &rendezvous->cap_visitors, n, sizeof *rendezvous->visitors) != TREK_OK ||
            trek_array_grow(&rendezvous->polled, &rendezvous->cap_polled, n + 3, sizeof *rendezvous->polled) != TREK_OK) {
            trek_error_clear();
            return;
        }
        uint64_t from;
        bool full;
        int fd = trek_socket_accept(listening, &from, &full);
        if (fd < 0 && full)
            rest(rendezvous);
        if (fd < 0)
            return;
        int64_t now = trek_now_ns();
        rendezvous->visitors[n - 1] = (trek_rendezvous_visitor){ .line.fd = fd, .number = -1, .heard_ns = now, .since_ns = now,
                                                     .from = from };
        rendezvous->n_visitors = n;
        trek_rendezvous_read_visitor(rendezvous, &rendezvous->visitors[n - 1]);
    }
}

static void keep_company(trek_rendezvous *rendezvous)
{
    int64_t now = trek_now_ns();
    bool beats = now >= rendezvous->beat_ns;
    trek_rendezvous_note beat = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_BEAT);
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        if (visitor->line.fd >= 0 && !visitor->answered && now - visitor->heard_ns > TREK_RENDEZVOUS_SILENCE_NS)
            trek_rendezvous_drop(visitor);
        else if (visitor->line.fd >= 0 && (visitor->number >= 0 || visitor->waits) && beats &&
                 !trek_rendezvous_send(rendezvous, &visitor->line, &beat))
            trek_rendezvous_drop(visitor);
    }
    if (beats)
        rendezvous->beat_ns = now + TREK_RENDEZVOUS_BEAT_NS;
}

/* --- the thread -------------------------------------------------------------------------------------- */

static int watch(trek_rendezvous *rendezvous)
{
    int n = 0;
    rendezvous->polled[n++] = (struct pollfd){ .fd = rendezvous->bell, .events = POLLIN };
    bool room = rendezvous->n_visitors < MOST_VISITORS && rendezvous->rest_ns == 0;
    rendezvous->polled[n++] = (struct pollfd){ .fd = room ? rendezvous->listen_fd : -1, .events = POLLIN };
    rendezvous->polled[n++] = (struct pollfd){ .fd = room ? rendezvous->join_fd : -1, .events = POLLIN };
    for (int k = 0; k < rendezvous->n_visitors; k++)
        rendezvous->polled[n++] = (struct pollfd){ .fd = is_between(rendezvous) ? -1 : rendezvous->visitors[k].line.fd,
                                                   .events = POLLIN };
    return n;
}

static void *serve(void *arg)
{
    trek_rendezvous *rendezvous = arg;
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->loop_ns = trek_now_ns();
    while (!rendezvous->stopping) {
        sweep(rendezvous);
        int n = watch(rendezvous);
        bool rests = rendezvous->rest_ns != 0;
        trek_lock_release(&rendezvous->lock);
        trek_socket_poll(rendezvous->polled, n, (rests ? TREK_RENDEZVOUS_REST_NS : TREK_RENDEZVOUS_BEAT_NS) / 1000000);
        trek_lock_acquire(&rendezvous->lock);
        int64_t now = trek_now_ns();
        rendezvous->rest_ns = now >= rendezvous->rest_ns ? 0 : rendezvous->rest_ns;
        rendezvous->still_ns = now - rendezvous->loop_ns > TREK_RENDEZVOUS_STILL_NS ? now : rendezvous->still_ns;
        rendezvous->loop_ns = now;
        if (rendezvous->polled[0].revents && !trek_bell_quiet(rendezvous->bell))
            trek_log_message(TREK_LOG_LEVEL_DEBUG, "rendezvous: %s", strerror(errno));
        for (int k = 0; k < rendezvous->n_visitors; k++)
            trek_rendezvous_read_visitor(rendezvous, &rendezvous->visitors[k]);
        accept_visitors(rendezvous, rendezvous->listen_fd);
        accept_visitors(rendezvous, rendezvous->join_fd);
        keep_company(rendezvous);
        trek_condition_wake_all(&rendezvous->changed);
    }
    trek_lock_release(&rendezvous->lock);
    return NULL;
}

/* --- opening and closing ------------------------------------------------------------------------------ */

static trek_status make(trek_rendezvous *rendezvous, const char *address, const char *token)
{
    char why[160];
    trek_hmac_key_of(token, token ? strlen(token) : 0, &rendezvous->secret);
    snprintf(rendezvous->own.address, sizeof rendezvous->own.address, "%s", address);
    rendezvous->has_lock = trek_lock_init(&rendezvous->lock);
    rendezvous->has_condition = trek_condition_init(&rendezvous->changed);
    rendezvous->bell = trek_bell_new();
    if (!rendezvous->has_lock || !rendezvous->has_condition || rendezvous->bell < 0)
        return trek_fail(TREK_ERR_STATE, "comm_init: the socket at which processes rejoin cannot be opened: %s",
                         trek_process_why(errno, why, sizeof why));
    trek_status status = trek_array_grow(&rendezvous->polled, &rendezvous->cap_polled, 3, sizeof *rendezvous->polled);
    int port = 0;
    if (status == TREK_OK)
        status = trek_socket_listen(address, 0, &rendezvous->listen_fd, &port);
    rendezvous->own.port = port;
    if (status == TREK_OK && !(rendezvous->has_thread = trek_thread_begin(&rendezvous->thread, serve, rendezvous) == 0))
        status = trek_fail(TREK_ERR_STATE, "comm_init: the thread at which processes rejoin cannot start");
    return status;
}

trek_rendezvous *trek_rendezvous_open(const char *address, const char *token, int number)
{
    trek_rendezvous *rendezvous = trek_calloc(1, sizeof *rendezvous);
    if (!rendezvous)
        return NULL;
    rendezvous->own.number = number;
    rendezvous->loop_ns = trek_now_ns();
    rendezvous->bell = rendezvous->listen_fd = rendezvous->join_fd = rendezvous->host_line.fd = -1;
    if (make(rendezvous, address, token) != TREK_OK)
        trek_rendezvous_free(&rendezvous);
    return rendezvous;
}

static void stop(trek_rendezvous *rendezvous)
{
    trek_lock_acquire(&rendezvous->lock);
    rendezvous->stopping = true;
    trek_lock_release(&rendezvous->lock);
    trek_rendezvous_wake(rendezvous);
    trek_thread_join(rendezvous->thread);
}

void trek_rendezvous_free(trek_rendezvous **place)
{
    trek_rendezvous *rendezvous = place ? *place : NULL;
    if (!rendezvous)
        return;
    *place = NULL;
    if (rendezvous->has_thread && !trek_forked)
        stop(rendezvous);
    if (!trek_forked)
        trek_rendezvous_close_join_queue(rendezvous);
    for (int k = 0; k < rendezvous->n_visitors; k++)
        trek_rendezvous_drop(&rendezvous->visitors[k]);
    trek_socket_close(rendezvous->listen_fd);
    trek_socket_close(rendezvous->join_fd);
    trek_socket_close(rendezvous->host_line.fd);
    trek_bell_free(rendezvous->bell);
    if (rendezvous->has_condition && !trek_forked)
        trek_condition_destroy(&rendezvous->changed);
    if (rendezvous->has_lock && !trek_forked)
        trek_lock_destroy(&rendezvous->lock);
    trek_free(rendezvous->visitors);
    trek_free(rendezvous->polled);
    trek_free(rendezvous->members);
    trek_free(rendezvous);
}

trek_member trek_rendezvous_member(const trek_rendezvous *rendezvous) { return rendezvous->own; }
int trek_rendezvous_members(const trek_rendezvous *rendezvous) { return rendezvous->n_members; }

trek_status trek_rendezvous_enter(trek_rendezvous *rendezvous, int64_t generation, const trek_member *members, int n)
{
    trek_member *copy = trek_calloc((size_t)n, sizeof *copy);
    if (!copy)
        return TREK_ERR_MEMORY;
    memcpy(copy, members, (size_t)n * sizeof *copy);
    trek_lock_acquire(&rendezvous->lock);
    trek_free(rendezvous->members);
    rendezvous->members = copy;
    rendezvous->n_members = rendezvous->n_entered = n;
    rendezvous->generation = generation;
    rendezvous->running = true;
    rendezvous->joins = false;
    for (int k = 0; k < n; k++)
        trek_rendezvous_raise_unused(rendezvous, members[k].number + 1);
    for (int k = 0; k < rendezvous->n_visitors; k++)
        rendezvous->visitors[k].met = 0;
    trek_rendezvous_note gone = trek_rendezvous_note_of(rendezvous, TREK_RENDEZVOUS_GONE);
    for (int k = 0; k < rendezvous->n_visitors; k++) {
        trek_rendezvous_visitor *visitor = &rendezvous->visitors[k];
        if (visitor->line.fd < 0 || visitor->number < 0 || trek_rendezvous_is_member(rendezvous, visitor->number))
            continue;
        trek_rendezvous_send(rendezvous, &visitor->line, &gone);
        trek_rendezvous_drop(visitor);
    }
    trek_lock_release(&rendezvous->lock);
    trek_rendezvous_wake(rendezvous);
    return TREK_OK;
}
