/* SPDX-License-Identifier: Apache-2.0 */
/* Where newcomers wait for the next meeting: at the job's address, in one of the processes that are at work. */
#include <string.h>

#include "distributed/control/door_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* --- with the lock held ------------------------------------------------------------------------------- */

static void tell(const trek_door *door, trek_door_visitor *visitor, trek_door_kind kind, const trek_member *host)
{
    trek_door_note note = trek_door_note_of(door, kind);
    note.processes = door->world;
    if (host) {
        note.port = host->port;
        memcpy(note.address, host->address, sizeof note.address);
    }
    trek_door_send(door, &visitor->line, &note);
    visitor->waits = visitor->invited = false;
    visitor->told = true; /* the visitor closes the connection, because closing it here would reset it if the visitor still
                           * sends */
}

static bool is_sound(const trek_door_note *note)
{
    return note->number >= 0 && note->number < TREK_MAX_RANKS && note->port > 0 && note->port < 65536 && note->address[0];
}

void trek_door_take_newcomer(trek_door *door, trek_door_visitor *visitor, const trek_door_note *note)
{
    if (!is_sound(note) || door->lobby_fd < 0) {
        trek_door_drop(visitor);
        return;
    }
    if (note->processes != door->world || note->number >= door->world) {
        tell(door, visitor, TREK_DOOR_OTHER_WORLD, NULL);
        return;
    }
    if (note->program != door->program) {
        tell(door, visitor, TREK_DOOR_DIFFERS, NULL);
        return;
    }
    for (int k = 0; k < door->n_visitors; k++) /* it has come again */
        if (door->visitors[k].waits && door->visitors[k].newcomer.number == note->number)
            tell(door, &door->visitors[k], TREK_DOOR_TAKEN, NULL);
    visitor->waits = true;
    visitor->newcomer = (trek_member){ .number = note->number, .port = note->port };
    memcpy(visitor->newcomer.address, note->address, sizeof visitor->newcomer.address);
    trek_door_note beat = trek_door_note_of(door, TREK_DOOR_BEAT); /* it may stay */
    if (!trek_door_send(door, &visitor->line, &beat))
        trek_door_drop(visitor);
}

void trek_door_send_on(trek_door *door, const trek_member *host)
{
    for (int k = 0; k < door->n_visitors; k++)
        if (door->visitors[k].line.fd >= 0 && door->visitors[k].invited)
            tell(door, &door->visitors[k], TREK_DOOR_GO, host);
}

void trek_door_send_visitor_on(const trek_door *door, trek_door_visitor *visitor)
{
    tell(door, visitor, TREK_DOOR_GO, &door->host);
    visitor->number = -1; /* it does not wait here */
}

void trek_door_close_lobby(trek_door *door)
{
    for (int k = 0; k < door->n_visitors; k++) {
        trek_door_visitor *visitor = &door->visitors[k];
        if (visitor->line.fd < 0 || !visitor->waits)
            continue;
        tell(door, visitor, TREK_DOOR_OVER, NULL);
        trek_socket_finish(visitor->line.fd);
    }
}

/* --- for the group ---------------------------------------------------------------------------------------- */

trek_status trek_door_admit(trek_door *door, const char *address, int port, int listening, uint64_t program, int world)
{
    int fd = listening - 1, bound = port;
    trek_status status = fd >= 0 ? TREK_OK : trek_socket_listen(address, port, &fd, &bound);
    if (status != TREK_OK)
        return status;
    trek_lock_acquire(&door->lock);
    door->lobby_fd = fd;
    door->program = program;
    door->world = world;
    trek_lock_release(&door->lock);
    trek_door_wake(door);
    return TREK_OK;
}

bool trek_door_admits(trek_door *door)
{
    trek_lock_acquire(&door->lock);
    bool admits = door->lobby_fd >= 0;
    trek_lock_release(&door->lock);
    return admits;
}

int trek_door_waiting(trek_door *door, trek_member *newcomers, int most)
{
    int n = 0;
    trek_lock_acquire(&door->lock);
    for (int k = 0; k < door->n_visitors; k++) {
        trek_door_visitor *visitor = &door->visitors[k];
        if (visitor->line.fd < 0 || !visitor->waits)
            continue;
        if (trek_door_is_member(door, visitor->newcomer.number)) {
            visitor->met++;
            continue;
        }
        int at = n < most ? n++ : n;
        for (; at > 0 && at < n && newcomers[at - 1].number > visitor->newcomer.number; at--)
            newcomers[at] = newcomers[at - 1];
        if (at < n)
            newcomers[at] = visitor->newcomer;
    }
    trek_lock_release(&door->lock);
    return n;
}

/* Answers the newcomers that wait. Called with the lock held. */
static void answer_waiting(trek_door *door, trek_door_visitor *visitor, const trek_member *newcomers, int n)
{
    const trek_member *own = &visitor->newcomer;
    for (int k = 0; k < n; k++)
        if (newcomers[k].number == own->number && newcomers[k].port == own->port &&
            strcmp(newcomers[k].address, own->address) == 0)
            visitor->invited = true;
    if (!visitor->invited && visitor->met >= 2)
        tell(door, visitor, TREK_DOOR_TAKEN, NULL);
}

trek_status trek_door_invite(trek_door *door, const trek_member *newcomers, int n)
{
    trek_member *all = n > 0 ? trek_calloc((size_t)(door->n_members + n), sizeof *all) : NULL;
    if (n > 0 && !all)
        return TREK_ERR_MEMORY;
    trek_lock_acquire(&door->lock);
    for (int k = 0; k < door->n_visitors; k++)
        if (door->visitors[k].line.fd >= 0 && door->visitors[k].waits)
            answer_waiting(door, &door->visitors[k], newcomers, n);
    if (all) {
        memcpy(all, door->members, (size_t)door->n_members * sizeof *all);
        memcpy(all + door->n_members, newcomers, (size_t)n * sizeof *all);
        trek_free(door->members);
        door->members = all;
        door->n_members += n;
        door->running = false; /* from here on visitors are told that it will come */
        door->lost_ns = trek_now_ns();
    }
    trek_lock_release(&door->lock);
    return TREK_OK;
}
