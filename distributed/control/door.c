/* SPDX-License-Identifier: Apache-2.0 */
/* The door's thread: lets in processes of the job, answers those that ask, and sends beats to those that wait. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/door_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* All processes of a job may come, and others may ask meanwhile. */
#define MOST_VISITORS (2 * TREK_MAX_RANKS)

/* --- visitors, with the lock held ------------------------------------------------------------------- */

/* The elder member that asks will receive the others itself. */
static void note_elder(trek_door *door, int number)
{
    for (int k = 0; door->hosts && k < door->n_members && door->members[k].number != door->own.number; k++)
        if (door->members[k].number == number)
            door->elder = k + 1;
}

static void answer_probe(trek_door *door, trek_door_visitor *visitor, int number)
{
    note_elder(door, number);
    bool without = door->running && !door->joins && !trek_door_is_member(door, number);
    trek_door_note answer = trek_door_note_of(door, without ? TREK_DOOR_RUNNING : TREK_DOOR_COMING);
    trek_door_send(door, &visitor->line, &answer);
    trek_door_drop(visitor);
}

static void take_visit(trek_door *door, trek_door_visitor *visitor, const trek_door_note *note)
{
    if (!trek_door_is_member(door, note->number)) {
        trek_door_note gone = trek_door_note_of(door, TREK_DOOR_GONE);
        trek_door_send(door, &visitor->line, &gone);
        trek_door_drop(visitor);
        return;
    }
    for (int k = 0; k < door->n_visitors; k++) /* it has come again */
        if (&door->visitors[k] != visitor && door->visitors[k].number == note->number)
            trek_door_drop(&door->visitors[k]);
    visitor->number = note->number;
    visitor->generation = note->generation;
    visitor->awake = note->awake != 0;
    if (door->is_guest)
        trek_door_send_visitor_on(door, visitor);
}

/* The visitor goes when it has read that. */
static void put_off(trek_door_visitor *visitor)
{
    trek_door_put_off(&visitor->line);
    visitor->told = true;
}

/* Returns whether the others may know of this door before its own process knows that all do. A visitor that asks
 * meanwhile waits for that. */
static bool is_between(const trek_door *door) { return door->n_members == 0 && !door->joins; }

void trek_door_read_visitor(trek_door *door, trek_door_visitor *visitor)
{
    trek_door_note note;
    int got, shaken = visitor->line.seal.state;
    while (visitor->line.fd >= 0 && !is_between(door) &&
           (got = trek_door_receive(door, &visitor->line, &note)) != 0) {
        visitor->heard_ns = trek_now_ns();
        if (got < 0)
            trek_door_drop(visitor);
        else if (visitor->told)
            continue;
        else if (got == 2)
            put_off(visitor);
        else if (note.kind == TREK_DOOR_JOIN && visitor->number < 0 && !visitor->waits)
            trek_door_take_newcomer(door, visitor, &note);
        else if (note.kind == TREK_DOOR_PROBE)
            answer_probe(door, visitor, note.number);
        else if (note.kind == TREK_DOOR_VISIT && visitor->number < 0)
            take_visit(door, visitor, &note);
        else if (note.kind != TREK_DOOR_BEAT || (visitor->number < 0 && !visitor->waits))
            trek_door_drop(visitor);
    }
    if (visitor->line.seal.state != shaken) /* the handshake goes on: at most twice */
        visitor->heard_ns = trek_now_ns();
}

/* Removes visitors that have ended. Those that were answered stay, for trek_door_died. */
static void sweep(trek_door *door)
{
    int kept = 0;
    for (int k = 0; k < door->n_visitors; k++)
        if (door->visitors[k].line.fd >= 0 || door->visitors[k].answered)
            door->visitors[kept++] = door->visitors[k];
    door->n_visitors = kept;
}

static bool is_stranger(const trek_door_visitor *visitor)
{
    return visitor->line.fd >= 0 && visitor->number < 0 && !visitor->waits && !visitor->told && !visitor->answered;
}

/* Counts the strangers from an address; 0: from any address. */
static int count_strangers(const trek_door *door, uint64_t from)
{
    int n = 0;
    for (int k = 0; k < door->n_visitors; k++)
        n += is_stranger(&door->visitors[k]) && (from == 0 || door->visitors[k].from == from);
    return n;
}

/* Returns whether another stranger may come. If all places are taken, the stranger that has been silent longest is
 * removed, if that is long enough. Between groups nobody is removed, because nobody has been listened to. */
static bool has_place(trek_door *door)
{
    trek_door_visitor *goes = NULL;
    int64_t now = trek_now_ns();
    if (count_strangers(door, 0) < TREK_DOOR_STRANGERS)
        return true;
    for (int k = 0; k < door->n_visitors && !is_between(door); k++) {
        trek_door_visitor *visitor = &door->visitors[k];
        bool one_of_many = is_stranger(visitor) && count_strangers(door, visitor->from) > TREK_DOOR_STRANGERS_OF_ADDRESS;
        int64_t patience = one_of_many ? TREK_DOOR_PATIENCE_OF_MANY_NS : TREK_DOOR_PATIENCE_NS;
        if (is_stranger(visitor) && now - visitor->since_ns >= patience && (!goes || visitor->since_ns < goes->since_ns))
            goes = visitor;
    }
    if (goes)
        trek_door_drop(goes);
    sweep(door);
    return goes != NULL;
}

static void rest(trek_door *door) { door->rest_ns = trek_now_ns() + TREK_DOOR_REST_NS; }

static void accept_visitors(trek_door *door, int listening)
{
    while (listening >= 0 && door->rest_ns == 0 && door->n_visitors < MOST_VISITORS) {
        if (!has_place(door)) {
            rest(door);
            return;
        }
        int n = door->n_visitors + 1;
        if (trek_array_grow(&door->visitors, &door->cap_visitors, n, sizeof *door->visitors) != TREK_OK ||
            trek_array_grow(&door->polled, &door->cap_polled, n + 3, sizeof *door->polled) != TREK_OK) {
            trek_error_clear();
            return;
        }
        uint64_t from;
        bool full;
        int fd = trek_socket_accept(listening, &from, &full);
        if (fd < 0 && full)
            rest(door);
        if (fd < 0)
            return;
        int64_t now = trek_now_ns();
        door->visitors[n - 1] = (trek_door_visitor){ .line.fd = fd, .number = -1, .heard_ns = now, .since_ns = now,
                                                     .from = from };
        door->n_visitors = n;
        trek_door_read_visitor(door, &door->visitors[n - 1]);
    }
}

static void keep_company(trek_door *door)
{
    int64_t now = trek_now_ns();
    bool beats = now >= door->beat_ns;
    trek_door_note beat = trek_door_note_of(door, TREK_DOOR_BEAT);
    for (int k = 0; k < door->n_visitors; k++) {
        trek_door_visitor *visitor = &door->visitors[k];
        if (visitor->line.fd >= 0 && !visitor->answered && now - visitor->heard_ns > TREK_DOOR_SILENCE_NS)
            trek_door_drop(visitor);
        else if (visitor->line.fd >= 0 && (visitor->number >= 0 || visitor->waits) && beats &&
                 !trek_door_send(door, &visitor->line, &beat))
            trek_door_drop(visitor);
    }
    if (beats)
        door->beat_ns = now + TREK_DOOR_BEAT_NS;
}

/* --- the thread -------------------------------------------------------------------------------------- */

static int watch(trek_door *door)
{
    int n = 0;
    door->polled[n++] = (struct pollfd){ .fd = door->bell, .events = POLLIN };
    bool room = door->n_visitors < MOST_VISITORS && door->rest_ns == 0;
    door->polled[n++] = (struct pollfd){ .fd = room ? door->listen_fd : -1, .events = POLLIN };
    door->polled[n++] = (struct pollfd){ .fd = room ? door->lobby_fd : -1, .events = POLLIN };
    for (int k = 0; k < door->n_visitors; k++)
        door->polled[n++] = (struct pollfd){ .fd = is_between(door) ? -1 : door->visitors[k].line.fd, .events = POLLIN };
    return n;
}

static void *serve(void *arg)
{
    trek_door *door = arg;
    trek_lock_acquire(&door->lock);
    door->loop_ns = trek_now_ns();
    while (!door->stopping) {
        sweep(door);
        int n = watch(door);
        bool rests = door->rest_ns != 0;
        trek_lock_release(&door->lock);
        trek_socket_poll(door->polled, n, (rests ? TREK_DOOR_REST_NS : TREK_DOOR_BEAT_NS) / 1000000);
        trek_lock_acquire(&door->lock);
        int64_t now = trek_now_ns();
        door->rest_ns = now >= door->rest_ns ? 0 : door->rest_ns;
        door->still_ns = now - door->loop_ns > TREK_DOOR_STILL_NS ? now : door->still_ns;
        door->loop_ns = now;
        if (door->polled[0].revents && !trek_bell_quiet(door->bell))
            trek_log_message(TREK_LOG_DEBUG, "door: %s", strerror(errno));
        for (int k = 0; k < door->n_visitors; k++)
            trek_door_read_visitor(door, &door->visitors[k]);
        accept_visitors(door, door->listen_fd);
        accept_visitors(door, door->lobby_fd);
        keep_company(door);
        trek_condition_wake_all(&door->changed);
    }
    trek_lock_release(&door->lock);
    return NULL;
}

/* --- opening and closing ------------------------------------------------------------------------------ */

static trek_status make(trek_door *door, const char *address, const char *token)
{
    char why[160];
    trek_hmac_key_of(token, token ? strlen(token) : 0, &door->secret);
    snprintf(door->own.address, sizeof door->own.address, "%s", address);
    door->has_lock = trek_lock_init(&door->lock);
    door->has_condition = trek_condition_init(&door->changed);
    door->bell = trek_bell_new();
    if (!door->has_lock || !door->has_condition || door->bell < 0)
        return trek_fail(TREK_ERR_STATE, "comm_init: the socket at which processes rejoin cannot be opened: %s",
                         trek_process_why(errno, why, sizeof why));
    trek_status status = trek_array_grow(&door->polled, &door->cap_polled, 3, sizeof *door->polled);
    int port = 0;
    if (status == TREK_OK)
        status = trek_socket_listen(address, 0, &door->listen_fd, &port);
    door->own.port = port;
    if (status == TREK_OK && !(door->has_thread = trek_thread_begin(&door->thread, serve, door) == 0))
        status = trek_fail(TREK_ERR_STATE, "comm_init: the thread that lets processes join cannot start");
    return status;
}

trek_door *trek_door_open(const char *address, const char *token, int number)
{
    trek_door *door = trek_calloc(1, sizeof *door);
    if (!door)
        return NULL;
    door->own.number = number;
    door->loop_ns = trek_now_ns();
    door->bell = door->listen_fd = door->lobby_fd = door->host_line.fd = -1;
    if (make(door, address, token) != TREK_OK)
        trek_door_free(&door);
    return door;
}

static void stop(trek_door *door)
{
    trek_lock_acquire(&door->lock);
    door->stopping = true;
    trek_lock_release(&door->lock);
    trek_door_wake(door);
    trek_thread_join(door->thread);
}

void trek_door_free(trek_door **place)
{
    trek_door *door = place ? *place : NULL;
    if (!door)
        return;
    *place = NULL;
    if (door->has_thread && !trek_forked)
        stop(door);
    if (!trek_forked)
        trek_door_close_lobby(door);
    for (int k = 0; k < door->n_visitors; k++)
        trek_door_drop(&door->visitors[k]);
    trek_socket_close(door->listen_fd);
    trek_socket_close(door->lobby_fd);
    trek_socket_close(door->host_line.fd);
    trek_bell_free(door->bell);
    if (door->has_condition && !trek_forked)
        trek_condition_destroy(&door->changed);
    if (door->has_lock && !trek_forked)
        trek_lock_destroy(&door->lock);
    trek_free(door->visitors);
    trek_free(door->polled);
    trek_free(door->members);
    trek_free(door);
}

trek_member trek_door_member(const trek_door *door) { return door->own; }
int trek_door_members(const trek_door *door) { return door->n_members; }
int64_t trek_door_generation(const trek_door *door) { return door->generation; }

trek_status trek_door_enter(trek_door *door, int64_t generation, const trek_member *members, int n)
{
    trek_member *copy = trek_calloc((size_t)n, sizeof *copy);
    if (!copy)
        return TREK_ERR_MEMORY;
    memcpy(copy, members, (size_t)n * sizeof *copy);
    trek_lock_acquire(&door->lock);
    trek_free(door->members);
    door->members = copy;
    door->n_members = n;
    door->generation = generation;
    door->running = true;
    door->joins = false;
    for (int k = 0; k < door->n_visitors; k++)
        door->visitors[k].met = 0;
    trek_door_note gone = trek_door_note_of(door, TREK_DOOR_GONE);
    for (int k = 0; k < door->n_visitors; k++) {
        trek_door_visitor *visitor = &door->visitors[k];
        if (visitor->line.fd < 0 || visitor->number < 0 || trek_door_is_member(door, visitor->number))
            continue;
        trek_door_send(door, &visitor->line, &gone);
        trek_door_drop(visitor);
    }
    trek_lock_release(&door->lock);
    trek_door_wake(door);
    return TREK_OK;
}
