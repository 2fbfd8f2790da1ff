/* SPDX-License-Identifier: Apache-2.0 */
/* What is said at a door: notes of one size, each with the job's token. */
#include <errno.h>
#include <string.h>

#include "distributed/control/door_internal.h"
#include "distributed/system/socket.h"
#include "tensor/status_internal.h"

#define MAGIC 0x31306f646b657274u /* "trekdo01" */

trek_door_note trek_door_note_of(const trek_door *door, trek_door_kind kind)
{
    trek_door_note note = { .magic = MAGIC, .kind = kind, .number = door->own.number, .generation = door->generation };
    memcpy(note.token, door->token, sizeof note.token);
    return note;
}

bool trek_door_send(int fd, const trek_door_note *note)
{
    struct iovec part = { (void *)(uintptr_t)note, sizeof *note };
    return fd >= 0 && trek_socket_send(fd, &part, 1) == (int64_t)sizeof *note;
}

/* Takes as long for every wrong one. */
static bool is_ours(const trek_door *door, const trek_door_note *note)
{
    unsigned char differ = 0;
    for (size_t i = 0; i < sizeof note->token; i++)
        differ |= (unsigned char)(note->token[i] ^ door->token[i]);
    return differ == 0 && note->magic == MAGIC;
}

int trek_door_receive(const trek_door *door, int fd, char *in, size_t *used, trek_door_note *note)
{
    int64_t got = trek_socket_receive(fd, in + *used, sizeof *note - *used);
    if (got <= 0)
        return (int)got;
    *used += (size_t)got;
    if (*used < sizeof *note)
        return 0;
    *used = 0;
    memcpy(note, in, sizeof *note);
    note->address[sizeof note->address - 1] = '\0';
    return is_ours(door, note) ? 1 : -1;
}

bool trek_door_is_member(const trek_door *door, int number)
{
    for (int k = 0; k < door->n_members; k++)
        if (door->members[k].number == number)
            return true;
    return false;
}

void trek_door_drop(trek_door_visitor *visitor)
{
    trek_socket_close(visitor->fd);
    visitor->fd = -1;
}

void trek_door_wake(const trek_door *door)
{
    if (!trek_bell_ring(door->bell))
        trek_log_message(TREK_LOG_DEBUG, "door: %s", strerror(errno));
}
