/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of the control channel, as process 0 and as another one takes them. The first byte says which, of how many, and
 * whether a tree joins them; then come records of a kind, a length and that many bytes: messages with a right head, or anything
 * at all. */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "distributed/control/control_internal.h"
#include "tensor/trace.h"
#include "tests/fuzz/fuzz.h"

enum { KIND_RAW = 12, KIND_HELLO, KIND_REPORT, KIND_LOCAL };

typedef struct peer {
    trek_control *control;
    int ours;               /* this program's end of the connection */
    trek_seal seal;         /* of that end */
    int theirs, connections;
} peer;

static trek_identity identity_of(const peer *p)
{
    return (trek_identity){ .secret = &p->control->secret, .role = TREK_ROLE_CHANNEL, .process = p->control->process == 0 };
}

/* This end's part of the handshake, of which nothing else is read. */
static void shake(peer *p)
{
    char in[sizeof(trek_handshake_note)];
    size_t taken;
    trek_identity own = identity_of(p);
    while (p->ours >= 0 && !trek_seal_is_open(&p->seal) && recv(p->ours, in, sizeof in, MSG_DONTWAIT) == (ssize_t)sizeof in)
        trek_seal_shake(&p->seal, &own, p->ours, in, sizeof in, &taken);
}

/* Another connection, to be that of an arrival, or process 0's. */
static bool connect_anew(peer *p)
{
    int ends[2];
    trek_control *control = p->control;
    if (p->ours >= 0)
        close(p->ours);
    p->ours = -1;
    bool from_child = control->process != 0 && control->node.children > 0 && p->connections % 2 == 1;
    trek_control_link *place = control->process == 0 ? &control->arrivals[0] : from_child ? &control->below[0]
        : &control->links[0];
    int size, process = control->process == 0 ? -1 : from_child ? trek_tree_child(&control->node, 0, &size) : 0;
    if (p->connections++ >= 4 || place->fd >= 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return false;
    *place = (trek_control_link){ .fd = ends[0], .process = process, .since_ns = trek_clock_ns() };
    p->theirs = ends[0];
    p->ours = ends[1];
    p->seal = (trek_seal){ .state = 0 };
    if (process < 0 || from_child) {
        trek_identity own = identity_of(p);
        trek_seal_call(&p->seal, &own, p->ours);
    } else {
        trek_control_call_up(control, place);
    }
    for (int k = 0; from_child && k < 2; k++) { /* a child has been let in before */
        trek_control_receive(control, place);
        trek_control_shake(control, place);
        shake(p);
    }
    return true;
}

/* What the thread of the channel does when a connection has something to read. */
static void serve(peer *p)
{
    trek_control *control = p->control;
    for (int i = 0; i < TREK_CONTROL_ARRIVALS; i++)
        if (control->arrivals[i].fd >= 0)
            trek_control_serve_arrival(control, &control->arrivals[i]);
    bool open = control->arrivals[0].fd >= 0;
    for (int i = 0; i < control->links_count; i++) {
        trek_control_link *link = &control->links[i];
        if (link->fd >= 0)
            trek_control_serve_link(control, link);
        open = open || link->fd >= 0;
    }
    for (int k = 0; k < control->node.children && control->process != 0; k++) {
        if (control->below[k].fd >= 0)
            trek_control_serve_branch(control, &control->below[k]);
        open = open || control->below[k].fd >= 0;
    }
    if (!open)
        connect_anew(p);
}

static void send_bytes(peer *p, const void *data, size_t bytes)
{
    if (p->ours >= 0 && send(p->ours, data, bytes, MSG_NOSIGNAL) < 0)
        return; /* they have closed it */
}

static void send_message(peer *p, uint32_t type, uint64_t number, const void *data, size_t bytes)
{
    trek_control_head head = { .magic = TREK_CONTROL_MAGIC, .number = number, .type = type, .bytes = (uint32_t)bytes };
    unsigned char code[TREK_SEAL_BYTES] = { 0 };
    struct iovec parts[2] = { { &head, sizeof head }, { (void *)(uintptr_t)data, bytes } };
    if (trek_seal_is_open(&p->seal))
        trek_seal_sign(&p->seal, parts, 2, code);
    send_bytes(p, &head, sizeof head);
    send_bytes(p, data, bytes);
    send_bytes(p, code, sizeof code);
}

static void send_hello(peer *p, int process)
{
    trek_control_hello hello = { .processes = p->control->processes, .process = process, .pid = 1 };
    memset(hello.host, 'h', sizeof hello.host);
    send_message(p, TREK_CONTROL_HELLO, 0, &hello, sizeof hello);
}

/* What this process does meanwhile. */
static void act_here(trek_control *control, int which, const uint8_t *data, size_t bytes)
{
    char text[300];
    trek_control_report *own = &control->peers[control->process].report;
    switch (which & 3) {
    case 0:
        if (control->process == 0)
            trek_control_contribute(control, 0, ++control->gathers, data, bytes);
        else if (!atomic_load(&control->ended))
            trek_control_contribute(control, control->process, ++control->gathers, data, bytes);
        break;
    case 1:
        trek_control_send_beats(control);
        break;
    case 2:
        own->in_call = 1;
        own->number = bytes;
        trek_control_check_left(control);
        break;
    default:
        trek_control_late(control, control->gathers, 1000000000);
    }
    for (int q = 0; q < control->processes; q++)
        trek_control_doing(control, q, text, 1 + bytes);
}

static void take_record(peer *p, uint8_t kind, const uint8_t *data, size_t bytes)
{
    trek_control_report reports[2];
    memset(reports, 0, sizeof reports);
    memcpy(reports, data, bytes < sizeof reports ? bytes : sizeof reports);
    for (int k = 0; k < 2 && !trek_seal_is_open(&p->seal) && kind != KIND_RAW; k++) {
        serve(p);
        shake(p);
    }
    switch (kind & 15) {
    case KIND_RAW: send_bytes(p, data, bytes); break;
    case KIND_HELLO: send_hello(p, kind >> 4); break;
    case KIND_REPORT:
        send_message(p, kind & 64 ? TREK_CONTROL_LEFT : TREK_CONTROL_BEAT, kind >> 4 & 3, reports,
                     (kind & 128 ? 2 : 1) * sizeof *reports);
        break;
    case KIND_LOCAL: act_here(p->control, kind >> 4, data, bytes); break;
    default: send_message(p, kind & 15, kind >> 4, data, bytes); break;
    }
    serve(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    trek_control_opts opts = { .process = data[0] & 1, .processes = 2 + (data[0] >> 1 & 3), .port = 1, .token = "token" };
    peer p = { .control = trek_control_make(&opts), .ours = -1 };
    fuzz_expect(p.control != NULL, "a control channel");
    trek_lock_acquire(&p.control->lock);
    if (data[0] & 8)
        trek_control_take_place(p.control, 2);
    connect_anew(&p);
    for (size_t at = 1; at + 2 <= size;) {
        size_t bytes = data[at + 1] < size - at - 2 ? data[at + 1] : size - at - 2;
        take_record(&p, data[at], data + at + 2, bytes);
        at += 2 + bytes;
    }
    bool ended = trek_control_ended(p.control);
    fuzz_expect(!ended || (p.control->status != TREK_OK && p.control->message[0]), "a group that has ended knows why");
    trek_lock_release(&p.control->lock);
    char table[4096] = "";
    trek_control_table(p.control, table, sizeof table);
    if (ended)
        fuzz_settle(trek_control_fail(p.control) == TREK_OK);
    if (p.ours >= 0)
        close(p.ours);
    trek_control_destroy(p.control);
    return 0;
}
