/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel's thread lets arrivals in: processes of the job at process 0, and a process's children in the tree. Others
 * are turned away with the reason, or asked to come again later. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/system.h"
#include "tensor/trace.h"

static const char *why_refused(const trek_control *control, const trek_control_hello *hello, char *text, size_t size)
{
    if (hello->generation != control->generation)
        snprintf(text, size, "it belongs to group %d of this job, process %d to group %d", hello->generation, control->process,
                 control->generation);
    else if (hello->processes != control->processes)
        snprintf(text, size, "it believes in a world of %d processes, process %d in %d", hello->processes, control->process,
                 control->processes);
    else if (control->process != 0) {
        int k = trek_tree_which(&control->node, hello->process);
        if (k >= 0 && control->below[k].fd < 0 && !control->below[k].closing)
            return NULL;
        snprintf(text, size, "process %d does not wait for process %d", control->process, hello->process);
    }
    else if (hello->process < 1 || hello->process >= control->processes)
        snprintf(text, size, "process %d cannot be in a job of %d", hello->process, control->processes);
    else if (control->peers[hello->process].joined)
        snprintf(text, size, "there is a process %d already (pid %d on %s)", hello->process, control->peers[hello->process].pid,
                 control->peers[hello->process].host);
    else if (atomic_load(&control->ended))
        snprintf(text, size, "%.500s", control->message);
    else
        return NULL;
    return text;
}

/* Returns whether a process comes too early, for the next group. Either this group has begun, and the process is in
 * it, has left it, or the group is over. Or it has not begun, and the process was started again, and its loss is not
 * known here yet. */
static bool comes_early(const trek_control *control, const trek_control_hello *hello)
{
    bool over = atomic_load(&control->ended) || atomic_load(&control->stopping);
    if (control->process != 0 || hello->generation != control->generation)
        return false;
    if (control->patient && !control->started && (over || hello->processes != control->processes))
        return true; /* one of the two does not know yet who has ended */
    if (hello->process < 1 || hello->process >= control->processes)
        return false;
    const trek_control_peer_state *peer = &control->peers[hello->process];
    bool same = hello->processes == control->processes && peer->pid == hello->pid &&
                strncmp(peer->host, hello->host, sizeof peer->host) == 0;
    return control->started ? same || peer->left || over : control->patient && peer->joined && !same;
}

static void start_group(trek_control *control)
{
    int fan = trek_control_choose_fan(control);
    trek_control_take_place(control, fan);
    for (int i = 1; i < control->links_count; i++) {
        const trek_control_peer_state *parent = &control->peers[trek_tree_place(control->processes, fan, i).parent];
        trek_control_start start = { .same_machine = control->same_machine, .fan = fan, .port = parent->port };
        memcpy(start.address, parent->address, sizeof start.address);
        trek_control_send(control, &control->links[i], TREK_CONTROL_START, 0, &start, sizeof start);
    }
    control->started = true;
    control->beat_ns = 0;
    trek_condition_wake_all(&control->changed);
}

static void admit(trek_control *control, trek_control_link *arrival, const trek_control_hello *hello)
{
    trek_control_link *link = &control->links[hello->process];
    trek_control_peer_state *peer = &control->peers[hello->process];
    *link = *arrival;
    *arrival = (trek_control_link){ .fd = -1, .process = -1 };
    link->process = hello->process;
    peer->joined = true;
    peer->pid = hello->pid;
    memcpy(peer->host, hello->host, sizeof peer->host);
    peer->host[sizeof peer->host - 1] = '\0';
    memcpy(peer->address, hello->address, sizeof peer->address);
    peer->port = hello->port;
    peer->report.heard_ns = peer->report.phase_ns = peer->report.call_ns = trek_now_ns();
    int64_t left_ns = control->join_until_ns - trek_now_ns();
    if (hello->left_ns > 0 && hello->left_ns < left_ns) /* so that the process that has waited longest is told, too */
        control->join_until_ns += hello->left_ns - left_ns;
    control->same_machine = control->same_machine && strncmp(hello->machine, control->machine, sizeof control->machine) == 0;
    trek_control_send(control, link, TREK_CONTROL_WELCOME, 0, NULL, 0);
    int joined = 0;
    for (int p = 0; p < control->processes; p++)
        joined += control->peers[p].joined;
    if (joined == control->processes)
        start_group(control);
}

/* Admits a child of this process, which may have come to a gather already. */
static void admit_child(trek_control *control, trek_control_link *arrival, int process)
{
    trek_control_link *link = &control->below[trek_tree_which(&control->node, process)];
    bool all = true;
    *link = *arrival;
    *arrival = (trek_control_link){ .fd = -1, .process = -1 };
    link->process = process;
    for (int k = 0; k < control->node.children; k++)
        all = all && control->below[k].fd >= 0;
    if (all) {
        trek_socket_close(control->listen_fd);
        control->listen_fd = -1;
    }
    trek_control_serve_branch(control, link);
}

/* The arrival has its answer, and goes when it has read that. */
static void finish_with(trek_control_link *arrival)
{
    trek_socket_finish(arrival->fd);
    arrival->closing = true;
}

static void turn_away(trek_control *control, trek_control_link *arrival, const char *why)
{
    trek_log_message(TREK_LOG_LEVEL_INFO, "control: a process was rejected: %s", why);
    trek_control_send(control, arrival, TREK_CONTROL_REFUSED, 0, why, strlen(why));
    finish_with(arrival);
}

/* A process that was started again looks for a group that lets it join; this group does not yet. */
static void serve_note(trek_control *control, trek_control_link *arrival)
{
    if (arrival->in_used < sizeof(trek_rendezvous_note))
        return;
    if (trek_rendezvous_answer_early(arrival->in, control->process, &arrival->seal, arrival->fd))
        finish_with(arrival);
    else
        trek_control_link_close(arrival);
}

/* Before version 5 a process began with a message of that version, and it understands this refusal. */
static void refuse_version_4(const trek_control *control, trek_control_link *arrival)
{
    char why[160];
    snprintf(why, sizeof why, "it speaks version 4 of the control channel, or an earlier one, and process %d version %d",
             control->process, TREK_HANDSHAKE_VERSION);
    trek_control_head head = { .magic = TREK_CONTROL_MAGIC_OF_4, .type = TREK_CONTROL_REFUSED, .bytes = (uint32_t)strlen(why) };
    struct iovec parts[2] = { { &head, sizeof head }, { why, strlen(why) } };
    trek_socket_send(arrival->fd, parts, 2);
    trek_log_message(TREK_LOG_LEVEL_INFO, "control: a process was rejected: %s", why);
    finish_with(arrival);
}

/* Refuses a process that has not proved that it belongs to the job. */
static void fail_handshake(trek_control *control, trek_control_link *arrival, trek_shake how)
{
    const uint64_t before = TREK_CONTROL_MAGIC_OF_4;
    char why[TREK_WHERE + 128];
    if (how == TREK_SHAKE_STRANGER && arrival->in_used >= sizeof before && memcmp(arrival->in, &before, sizeof before) == 0) {
        refuse_version_4(control, arrival);
        return;
    }
    if (how == TREK_SHAKE_STRANGER) {
        trek_control_link_close(arrival);
        return;
    }
    if (how == TREK_SHAKE_VERSION)
        snprintf(why, sizeof why, "it speaks version %d of the control channel, process %d version %d",
                 arrival->seal.other.version, control->process, TREK_HANDSHAKE_VERSION);
    else
        trek_seal_why(&arrival->seal, how, control->where, why, sizeof why);
    trek_log_message(control->warned ? TREK_LOG_LEVEL_INFO : TREK_LOG_LEVEL_WARNING, /* strangers must not fill a log */
                     "control: a process that claims to be process %d was rejected: %s", arrival->seal.other.process, why);
    control->warned = true;
    finish_with(arrival);
}

void trek_control_serve_arrival(trek_control *control, trek_control_link *arrival)
{
    trek_control_head head;
    trek_control_hello hello;
    const char *data;
    char why[512];
    bool bad = false, open = trek_control_receive(control, arrival);
    trek_shake how = arrival->closing ? TREK_SHAKE_DONE : trek_control_shake(control, arrival);
    if (how != TREK_SHAKE_DONE) {
        if (how != TREK_SHAKE_MORE)
            fail_handshake(control, arrival, how);
        if (!open)
            trek_control_link_close(arrival);
        return;
    }
    if (!arrival->closing && open && arrival->seal.other.role == TREK_ROLE_RENDEZVOUS) {
        serve_note(control, arrival);
        return;
    }
    if (arrival->closing || !trek_control_message(arrival, &head, &data, &bad)) {
        if (arrival->closing)
            arrival->in_used = 0;
        if (!open || (bad && !arrival->closing))
            trek_control_link_close(arrival);
        return;
    }
    if (head.type != TREK_CONTROL_HELLO || head.bytes != sizeof hello) {
        trek_control_link_close(arrival);
        return;
    }
    memcpy(&hello, data, sizeof hello);
    trek_control_consume(arrival, &head);
    if (comes_early(control, &hello)) {
        trek_control_send(control, arrival, TREK_CONTROL_LATER, 0, NULL, 0);
        finish_with(arrival);
    } else if (why_refused(control, &hello, why, sizeof why)) {
        if (atomic_load(&control->ended) && hello.process > 0 && hello.process < control->processes)
            control->peers[hello.process].joined = true; /* it has come, and knows the group */
        turn_away(control, arrival, why);
        trek_condition_wake_all(&control->changed);
    } else if (control->process == 0) {
        admit(control, arrival, &hello);
    } else {
        admit_child(control, arrival, hello.process);
    }
}

/* Returns a free place, or NULL if there is none yet. A silent stranger makes room for others; a process of the job
 * speaks as soon as it has connected. */
static trek_control_link *place_of_arrival(trek_control *control, int64_t now)
{
    trek_control_link *oldest = &control->arrivals[0];
    for (int i = 0; i < TREK_CONTROL_ARRIVALS; i++) {
        trek_control_link *place = &control->arrivals[i];
        if (place->fd < 0)
            return place;
        if (place->since_ns < oldest->since_ns)
            oldest = place;
    }
    if (now - oldest->since_ns < TREK_CONTROL_HURRIED_NS)
        return NULL;
    trek_control_link_close(oldest);
    return oldest;
}

/* Ends the group because arrivals cannot be accepted. */
static void end_by_limit(trek_control *control, int error)
{
    char why[160], message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "process %d cannot take in the others: %s", control->process,
             trek_process_why(error, why, sizeof why));
    trek_control_end_locked(control, TREK_ERR_COMM, message);
}

void trek_control_accept_arrivals(trek_control *control)
{
    trek_control_link *place;
    control->crowded_ns = 0;
    while ((place = place_of_arrival(control, trek_now_ns()))) {
        bool full;
        int fd = trek_socket_accept(control->listen_fd, NULL, &full);
        if (fd < 0 && !control->started && trek_process_is_limit(errno))
            end_by_limit(control, errno);
        if (fd < 0 && full)
            break; /* no descriptor is free: it tries again later */
        if (fd < 0)
            return;
        *place = (trek_control_link){ .fd = fd, .process = -1, .since_ns = trek_now_ns() };
        int top = (int)(place - control->arrivals) + 1;
        control->arrivals_top = top > control->arrivals_top ? top : control->arrivals_top;
        trek_control_serve_arrival(control, place); /* what it has already sent */
    }
    control->crowded_ns = trek_now_ns();
}
