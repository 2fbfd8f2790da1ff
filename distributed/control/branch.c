/* SPDX-License-Identifier: Apache-2.0 */
/* The connections of the tree. The children make them when all processes have joined. They carry gathers, and the reason if one
 * of them has been torn. Who is alive, who has left and why the group has ended goes over the star, so that the death of a
 * process in the middle of the tree is reported like any other. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/system/system.h"

/* How long a parent, which has already joined, may take to accept a child, and to prove that it belongs to the job. */
#define CLIMB_NS 10000000000

/* Returns whether waiting is useless because the parent can no longer be reached. */
static bool is_vain(void *arg)
{
    trek_control *control = arg;
    trek_lock_acquire(&control->lock);
    bool left = control->peers[control->node.parent].left;
    trek_lock_release(&control->lock);
    return left || trek_control_ended(control);
}

trek_status trek_control_climb(trek_control *control)
{
    char why[256], where[TREK_WHERE], message[TREK_ERROR_SIZE];
    if (control->up_port == 0)
        return TREK_OK;
    int fd = trek_socket_connect(control->up_address, control->up_port, trek_now_ns() + CLIMB_NS, is_vain, control, why,
                                 sizeof why);
    trek_lock_acquire(&control->lock);
    bool left = control->peers[control->node.parent].left; /* the first gather reports it */
    if (fd < 0 && !left) {
        snprintf(message, sizeof message,
                 "process %d does not reach process %d at %s (%s), by which the gathers of %d processes go; "
                 "TREK_CONTROL_TREE_ABOVE=%d in the environment goes without",
                 control->process, control->node.parent,
                 trek_socket_where(control->up_address, control->up_port, where, sizeof where), why, control->processes,
                 TREK_MAX_RANKS);
        trek_control_end_locked(control, TREK_ERR_COMM, message);
    } else if (fd >= 0) {
        control->up = (trek_control_link){ .fd = fd, .process = control->node.parent, .since_ns = trek_now_ns() };
        trek_control_say_hello(control, &control->up, "", 0);
        trek_control_wake(control); /* the thread must watch the connection */
    }
    trek_lock_release(&control->lock);
    return fd < 0 && !left ? trek_control_fail(control) : TREK_OK;
}

static void note_torn(trek_control *control, int process)
{
    if (control->torn_ns || control->peers[process].left)
        return;
    control->torn = process;
    control->torn_ns = trek_now_ns();
}

/* The star reports the end of the other process soon. If it does not, a part of the network is broken. */
static void lose_branch(trek_control *control, trek_control_link *link)
{
    int process = link->process;
    trek_control_link_close(link);
    note_torn(control, process);
}

/* Until the parent has proved that it belongs to the job, nothing is sent to it, so the system would not notice either that the
 * network between the two is cut. */
void trek_control_notice_silent_parent(trek_control *control, int64_t now)
{
    if (control->up.fd >= 0 && !trek_seal_is_open(&control->up.seal) && now - control->up.since_ns > CLIMB_NS)
        lose_branch(control, &control->up);
}

/* The other process has ended the group because a connection of the tree is torn, and gives the reason. */
static void take_end(trek_control *control, int process, const char *data, size_t bytes)
{
    note_torn(control, process); /* so that this process passes the reason on */
    trek_control_take_end(control, data, bytes);
}

void trek_control_serve_branch(trek_control *control, trek_control_link *link)
{
    trek_control_head head;
    const char *data;
    bool bad = false, open = trek_control_receive(control, link);
    control->peers[link->process].report.heard_ns = trek_now_ns();
    bool proved = link != &control->up || trek_control_has_proof(control, link);
    while (proved && link->fd >= 0 && trek_control_message(link, &head, &data, &bad)) {
        if (head.type == TREK_CONTROL_GATHERED && link == &control->up)
            trek_control_gathered(control, head.number, data, head.bytes);
        else if (head.type == TREK_CONTROL_GATHER && link != &control->up && !atomic_load(&control->ended))
            trek_control_contribute(control, link->process, head.number, data, head.bytes);
        else if (head.type == TREK_CONTROL_END)
            take_end(control, link->process, data, head.bytes);
        trek_control_consume(link, &head);
    }
    if (link->fd >= 0 && link->forged)
        trek_control_lost(control, link->process, TREK_CONTROL_FORGED); /* the first reason counts */
    if (link->fd >= 0 && (bad || !open || link->forged))
        lose_branch(control, link);
}
