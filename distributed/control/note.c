/* SPDX-License-Identifier: Apache-2.0 */
/* What is said at a door: notes of one size, each with the job's token. */
#include <errno.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/door_internal.h"
#include "distributed/system/socket.h"
#include "distributed/system/system.h"
#include "tensor/status_internal.h"

#define MAGIC 0x32306f646b657274u /* "trekdo02" */

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
static bool has_token(const trek_door *door, const char *token)
{
    unsigned char differ = 0;
    for (size_t i = 0; i < sizeof door->token; i++)
        differ |= (unsigned char)(token[i] ^ door->token[i]);
    return differ == 0;
}

/* At the job's address also those come who mean its next group, while the one before is still there. So much of what they say
 * has the length of a note. */
static bool is_hello(const trek_door *door, const char *in)
{
    trek_control_head head;
    const size_t token = sizeof head + offsetof(trek_control_hello, token);
    _Static_assert(sizeof(trek_door_note) >= sizeof head + offsetof(trek_control_hello, machine), "its token is in it");
    _Static_assert(sizeof door->token == sizeof((trek_control_hello *)0)->token, "of one length");
    memcpy(&head, in, sizeof head);
    return head.magic == TREK_CONTROL_MAGIC && head.type == TREK_CONTROL_HELLO && has_token(door, in + token);
}

bool trek_door_is_note(const char *in, size_t used)
{
    const uint64_t magic = MAGIC;
    return used > 0 && memcmp(in, &magic, used < sizeof magic ? used : sizeof magic) == 0;
}

bool trek_door_answer_early(const char *in, const char *token, int fd)
{
    trek_door door = { .own.number = -1 };
    trek_door_note note;
    memcpy(door.token, token, sizeof door.token);
    memcpy(&note, in, sizeof note);
    if (note.kind != TREK_DOOR_JOIN || !has_token(&door, note.token))
        return false;
    trek_door_note later = trek_door_note_of(&door, TREK_DOOR_LATER);
    trek_door_send(fd, &later);
    return true;
}

void trek_door_put_off(int fd)
{
    trek_control_head later = { .magic = TREK_CONTROL_MAGIC, .type = TREK_CONTROL_LATER };
    struct iovec part = { &later, sizeof later };
    trek_socket_send(fd, &part, 1);
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
    if (note->magic != MAGIC)
        return is_hello(door, in) ? 2 : -1;
    return has_token(door, note->token) ? 1 : -1;
}

bool trek_door_stood_still(const trek_door *door)
{
    bool noticed = door->still_ns && door->still_ns > door->lost_ns - TREK_DOOR_NOTICED_NS;
    return noticed || trek_now_ns() - door->loop_ns > TREK_DOOR_STILL_NS; /* its thread has not run since */
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
