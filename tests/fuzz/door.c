/* SPDX-License-Identifier: Apache-2.0 */
/* Notes at a door: its first byte says in which state it is; then come records of a kind, a length and that many bytes: notes of
 * this job whose fields they are, or anything at all. */
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/control/door_internal.h"
#include "distributed/system/socket.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"
#include "tests/fuzz/fuzz.h"

enum { VISITORS = 4 };

static trek_door *make_door(uint8_t state)
{
    trek_door *door = trek_calloc(1, sizeof *door);
    fuzz_expect(door && trek_lock_init(&door->lock), "a door");
    door->members = trek_calloc(2, sizeof *door->members);
    door->bell = trek_bell_new();
    door->listen_fd = door->host_line.fd = -1;
    door->lobby_fd = state & 1 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    door->n_members = state & 2 ? 2 : 0;
    door->running = state & 4;
    door->joins = state & 8;
    door->members[1].number = 1;
    trek_hmac_key_of("a token of a job", 16, &door->secret);
    return door;
}

/* Another connection in the place of one that has ended. */
static trek_door_visitor *visitor_of(trek_door *door, trek_door_line ours[VISITORS], int which)
{
    int ends[2];
    while (door->n_visitors < VISITORS) {
        fuzz_expect(trek_array_grow(&door->visitors, &door->cap_visitors, VISITORS, sizeof *door->visitors) == TREK_OK, "memory");
        door->visitors[door->n_visitors++] = (trek_door_visitor){ .line.fd = -1, .number = -1 };
    }
    trek_door_visitor *visitor = &door->visitors[which];
    if (visitor->line.fd >= 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return visitor;
    if (ours[which].fd >= 0)
        close(ours[which].fd);
    ours[which] = (trek_door_line){ .fd = ends[1] };
    *visitor = (trek_door_visitor){ .line.fd = ends[0], .number = -1, .heard_ns = trek_clock_ns() };
    return visitor;
}

static void take_record(trek_door *door, trek_door_line ours[VISITORS], uint8_t kind, const uint8_t *data, size_t bytes)
{
    int which = kind % VISITORS;
    trek_door_visitor *visitor = visitor_of(door, ours, which);
    trek_door_note note = trek_door_note_of(door, (trek_door_kind)(kind >> 2 & 15));
    size_t begin = offsetof(trek_door_note, number), room = offsetof(trek_door_note, code) - begin;
    memcpy((char *)&note + begin, data, bytes < room ? bytes : room);
    bool raw = kind & 64;
    trek_door_line *line = &ours[which];
    if (line->fd >= 0 && (raw ? send(line->fd, data, bytes, MSG_NOSIGNAL) >= 0 : trek_door_send(door, line, &note)))
        trek_door_read_visitor(door, visitor);
    for (int k = 0; k < 2 && line->fd >= 0 && visitor->line.fd >= 0; k++) /* the handshake goes to and fro */
        if (trek_door_receive(door, line, &note) >= 0)
            trek_door_read_visitor(door, visitor);
    trek_member list[VISITORS];
    trek_lock_release(&door->lock);
    int n = trek_door_waiting(door, list, VISITORS);
    fuzz_expect(n >= 0 && n <= VISITORS, "as many as there are");
    for (int k = 0; k < n; k++)
        fuzz_expect(list[k].number >= 0 && list[k].number < TREK_MAX_RANKS && list[k].port > 0 && list[k].port < 65536 &&
                        memchr(list[k].address, 0, sizeof list[k].address), "a newcomer that can be invited");
    if (kind & 128)
        fuzz_expect(trek_door_invite(door, list, n) == TREK_OK, "an invitation");
    trek_lock_acquire(&door->lock);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_door_line ours[VISITORS] = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };
    if (size == 0)
        return 0;
    trek_door *door = make_door(data[0]);
    trek_lock_acquire(&door->lock);
    for (size_t at = 1; at + 2 <= size;) {
        size_t bytes = data[at + 1] < size - at - 2 ? data[at + 1] : size - at - 2;
        if (door->n_members < 64)
            take_record(door, ours, data[at], data + at + 2, bytes);
        at += 2 + bytes;
    }
    trek_lock_release(&door->lock);
    for (int k = 0; k < VISITORS; k++)
        if (ours[k].fd >= 0)
            close(ours[k].fd);
    trek_error_clear();
    trek_door_free(&door);
    return 0;
}
