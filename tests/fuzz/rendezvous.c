/* SPDX-License-Identifier: Apache-2.0 */
/* Notes at a rendezvous: its first byte says in which state it is; then come records of a kind, a length and that many bytes:
 * notes of this job whose fields they are, or anything at all. */
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/socket.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"
#include "tests/fuzz/fuzz.h"

enum { VISITORS = 4 };

static trek_rendezvous *make_rendezvous(uint8_t state)
{
    trek_rendezvous *rendezvous = trek_calloc(1, sizeof *rendezvous);
    fuzz_expect(rendezvous && trek_lock_init(&rendezvous->lock), "a rendezvous");
    rendezvous->members = trek_calloc(2, sizeof *rendezvous->members);
    rendezvous->bell = trek_bell_new();
    rendezvous->listen_fd = rendezvous->host_line.fd = -1;
    rendezvous->join_fd = state & 1 ? open("/dev/null", O_RDONLY | O_CLOEXEC) : -1;
    rendezvous->n_members = state & 2 ? 2 : 0;
    rendezvous->running = state & 4;
    rendezvous->joins = state & 8;
    rendezvous->members[1].number = 1;
    trek_hmac_key_of("a token of a job", 16, &rendezvous->secret);
    return rendezvous;
}

/* Another connection in the place of one that has ended. */
static trek_rendezvous_visitor *visitor_of(trek_rendezvous *rendezvous, trek_rendezvous_line ours[VISITORS], int which)
{
    int ends[2];
    while (rendezvous->n_visitors < VISITORS) {
        fuzz_expect(trek_array_grow(&rendezvous->visitors, &rendezvous->cap_visitors, VISITORS,
                                    sizeof *rendezvous->visitors) == TREK_OK, "memory");
        rendezvous->visitors[rendezvous->n_visitors++] = (trek_rendezvous_visitor){ .line.fd = -1, .number = -1 };
    }
    trek_rendezvous_visitor *visitor = &rendezvous->visitors[which];
    if (visitor->line.fd >= 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return visitor;
    if (ours[which].fd >= 0)
        close(ours[which].fd);
    ours[which] = (trek_rendezvous_line){ .fd = ends[1] };
    *visitor = (trek_rendezvous_visitor){ .line.fd = ends[0], .number = -1, .heard_ns = trek_clock_ns() };
    return visitor;
}

static void take_record(trek_rendezvous *rendezvous, trek_rendezvous_line ours[VISITORS], uint8_t kind, const uint8_t *data,
                        size_t bytes)
{
    int which = kind % VISITORS;
    trek_rendezvous_visitor *visitor = visitor_of(rendezvous, ours, which);
    trek_rendezvous_note note = trek_rendezvous_note_of(rendezvous, (trek_rendezvous_kind)(kind >> 2 & 15));
    size_t begin = offsetof(trek_rendezvous_note, number), room = offsetof(trek_rendezvous_note, code) - begin;
    memcpy((char *)&note + begin, data, bytes < room ? bytes : room);
    bool raw = kind & 64;
    trek_rendezvous_line *line = &ours[which];
    if (line->fd >= 0 && (raw ? send(line->fd, data, bytes, MSG_NOSIGNAL) >= 0 : trek_rendezvous_send(rendezvous, line, &note)))
        trek_rendezvous_read_visitor(rendezvous, visitor);
    for (int k = 0; k < 2 && line->fd >= 0 && visitor->line.fd >= 0; k++) /* the handshake goes to and fro */
        if (trek_rendezvous_receive(rendezvous, line, &note) >= 0)
            trek_rendezvous_read_visitor(rendezvous, visitor);
    trek_joiner list[VISITORS];
    trek_lock_release(&rendezvous->lock);
    int n = trek_rendezvous_waiting(rendezvous, list, VISITORS);
    fuzz_expect(n >= 0 && n <= VISITORS, "as many as there are");
    for (int k = 0; k < n; k++)
        fuzz_expect(list[k].member.number >= 0 && list[k].ranks > 0 && list[k].ranks <= TREK_MAX_RANKS &&
                        list[k].member.port > 0 && list[k].member.port < 65536 &&
                        memchr(list[k].member.address, 0, sizeof list[k].member.address), "a joiner that can be invited");
    if (kind & 128)
        fuzz_expect(trek_rendezvous_invite(rendezvous, list, n) == TREK_OK, "an invitation");
    trek_lock_acquire(&rendezvous->lock);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    trek_rendezvous_line ours[VISITORS] = { { .fd = -1 }, { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };
    if (size == 0)
        return 0;
    trek_rendezvous *rendezvous = make_rendezvous(data[0]);
    trek_lock_acquire(&rendezvous->lock);
    for (size_t at = 1; at + 2 <= size;) {
        size_t bytes = data[at + 1] < size - at - 2 ? data[at + 1] : size - at - 2;
        if (rendezvous->n_members < 64)
            take_record(rendezvous, ours, data[at], data + at + 2, bytes);
        at += 2 + bytes;
    }
    trek_lock_release(&rendezvous->lock);
    for (int k = 0; k < VISITORS; k++)
        if (ours[k].fd >= 0)
            close(ours[k].fd);
    trek_error_clear();
    trek_rendezvous_free(&rendezvous);
    return 0;
}
