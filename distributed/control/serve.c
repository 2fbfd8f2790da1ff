/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of the control channel: reads what the others say, sends heartbeats, and notices who is silent. arrivals.c lets
 * further processes in. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/system/system.h"
#include "tensor/trace.h"

/* In jobs up to this size all processes hear of each other more often than they must. */
#define FEW 64
/* How long a stranger may take to say who it is. */
#define HANDSHAKE_NS 5000000000
/* How many times in a row the listener may close the connection without a word. */
#define MOST_UNANSWERED 5
/* How long to wait for the last states of the others before the table is logged. */
#define TABLE_NS 250000000

/* --- messages ----------------------------------------------------------------------------------------------------- */

static void take_beat(trek_control *control, int process, const char *data, size_t bytes)
{
    trek_control_report report;
    for (; bytes >= sizeof report; data += sizeof report, bytes -= sizeof report) {
        memcpy(&report, data, sizeof report);
        if (control->process == 0)
            report.process = process;
        if (report.process == process)
            report.heard_ns = 0;
        trek_control_take_report(control, &report);
        if (report.process >= 0 && report.process < control->processes)
            control->peers[report.process].joined = true;
        control->beat_now |= control->process == 0 && report.is_long && report.phase_ns < TREK_CONTROL_BEAT_NS; /* pass it on */
    }
}

static void take_left(trek_control *control, trek_control_link *link, const trek_control_head *head, const char *data)
{
    trek_control_report report;
    if (head->bytes != sizeof report)
        return;
    memcpy(&report, data, sizeof report);
    int process = control->process == 0 ? link->process : report.process;
    trek_control_take_left(control, process, &report, head->number);
    if (process == link->process) {
        trek_control_flush(link);
        trek_control_link_close(link);
    }
}

static void refuse_by_zero(trek_control *control, const char *data, size_t bytes)
{
    char message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "process %d was rejected by process 0 at %s: %.*s", control->process, control->where,
             (int)(bytes < 512 ? bytes : 512), data);
    trek_control_end_locked(control, TREK_ERR_COMM, message);
}

static void take_start(trek_control *control, const char *data, size_t bytes)
{
    trek_control_start start;
    if (bytes != sizeof start || control->started)
        return;
    memcpy(&start, data, sizeof start);
    bool has_tree = start.fan >= 2 && start.fan <= TREK_TREE_FAN;
    trek_control_take_place(control, has_tree ? start.fan : 0);
    if (control->node.parent > 0) {
        snprintf(control->up_address, sizeof control->up_address, "%.*s", (int)sizeof start.address - 1, start.address);
        control->up_port = start.port;
    }
    control->same_machine = start.same_machine != 0;
    control->started = true;
    trek_condition_wake_all(&control->changed);
}

/* Lets the joining thread connect again. */
static void come_later(trek_control *control, trek_control_link *link)
{
    trek_control_link_close(link);
    control->later = true;
    trek_condition_wake_all(&control->changed);
}

static void take_message(trek_control *control, trek_control_link *link, const trek_control_head *head, const char *data)
{
    int64_t deadline = 0;
    switch ((trek_control_type)head->type) {
    case TREK_CONTROL_WELCOME:
        control->welcome = true;
        break;
    case TREK_CONTROL_REFUSED:
        refuse_by_zero(control, data, head->bytes);
        break;
    case TREK_CONTROL_START:
        take_start(control, data, head->bytes);
        break;
    case TREK_CONTROL_BEAT:
        take_beat(control, link->process, data, head->bytes);
        break;
    case TREK_CONTROL_GATHER:
        if (control->process == 0 && !atomic_load(&control->ended))
            trek_control_contribute(control, link->process, head->number, data, head->bytes);
        break;
    case TREK_CONTROL_GATHERED:
        if (link == trek_control_up(control))
            trek_control_gathered(control, head->number, data, head->bytes);
        break;
    case TREK_CONTROL_LATE:
        if (head->bytes == sizeof deadline && control->process == 0 && !atomic_load(&control->ended)) {
            memcpy(&deadline, data, sizeof deadline);
            trek_control_late(control, head->number, deadline > 0 ? deadline : 0);
        }
        break;
    case TREK_CONTROL_EXTEND:
        trek_control_extend(control, head->number);
        break;
    case TREK_CONTROL_END:
        trek_control_take_end(control, data, head->bytes);
        break;
    case TREK_CONTROL_LEFT:
        take_left(control, link, head, data);
        break;
    case TREK_CONTROL_LATER:
        control->unanswered = 0;
        if (control->process != 0 && !control->welcome)
            come_later(control, link);
        break;
    case TREK_CONTROL_ASK:
        trek_control_take_question(control, link, head->number, data, head->bytes);
        break;
    case TREK_CONTROL_ANSWER:
        trek_control_take_answer(control, link, head->number, data, head->bytes);
        break;
    default:
        break;
    }
}

static void end_without(trek_control *control, int process, const char *how)
{
    if (control->process != 0 && !control->welcome) {
        char message[TREK_ERROR_SIZE];
        snprintf(
            message, sizeof message,
            "what listens at %s does not answer as process 0 of this job: another program, another version of trek, or a job "
            "that has just ended",
            control->where);
        trek_control_end_locked(control, TREK_ERR_COMM, message);
        return;
    }
    trek_control_lost(control, process, how);
}

/* Returns whether the process, which was lost before all have come, may come again. */
static bool forgets(const trek_control *control, int process)
{
    return control->patient && control->process == 0 && !control->started && !atomic_load(&control->ended) &&
           !atomic_load(&control->stopping) && process > 0;
}

static void lose_link(trek_control *control, trek_control_link *link, const char *how)
{
    int process = link->process;
    link->lost = true;
    if (forgets(control, process))
        control->peers[process].joined = false;
    else if (!atomic_load(&control->stopping) && !control->peers[process].left)
        end_without(control, process, how);
    trek_control_link_close(link);
}

/* Handles the end of a connection. A process that ends closes its connections, or its system resets them; everything
 * else is a failure of the network. */
static void lose_ended_link(trek_control *control, trek_control_link *link)
{
    char how[160];
    bool closed = link->error == 0 || link->error == ECONNRESET || link->error == EPIPE;
    bool waited = !control->welcome && ++control->unanswered < MOST_UNANSWERED; /* the group before was waited for */
    if (closed && control->process != 0 && !control->started && (waited || control->patient)) {
        control->welcome = false;
        come_later(control, link);
        return;
    }
    if (closed)
        snprintf(how, sizeof how, "died: its connection was closed unexpectedly");
    else
        snprintf(how, sizeof how, "cannot be reached: %s (stopped, or the network to it is cut)", strerror(link->error));
    lose_link(control, link, how);
}

void trek_control_serve_link(trek_control *control, trek_control_link *link)
{
    trek_control_head head;
    const char *data;
    bool bad = false, open = trek_control_receive(control, link);
    control->peers[link->process].report.heard_ns = trek_now_ns();
    bool proved = trek_control_has_proof(control, link);
    while (proved && link->fd >= 0 && trek_control_message(link, &head, &data, &bad)) {
        take_message(control, link, &head, data);
        trek_control_consume(link, &head);
    }
    if (link->fd >= 0 && link->forged && proved)
        lose_link(control, link, TREK_CONTROL_FORGED);
    else if (link->fd >= 0 && (bad || link->forged))
        lose_link(control, link, "sent data that is not a message of the control channel");
    else if (link->fd >= 0 && !open)
        lose_ended_link(control, link);
}

/* --- the clock ---------------------------------------------------------------------------------------------------- */

static void notice_silence(trek_control *control, int64_t now)
{
    for (int i = 0; i < control->links_count; i++) {
        trek_control_link *link = &control->links[i];
        char how[128];
        if (link->fd < 0 || link->closing)
            continue;
        int64_t silent = now - control->peers[link->process].report.heard_ns;
        if (silent <= TREK_CONTROL_SILENCE_NS)
            continue;
        snprintf(how, sizeof how, "has not been heard of for %.1f s (stopped, or the network to it is cut)",
                 (double)silent * 1e-9);
        lose_link(control, link, how);
    }
    for (int i = 0; i < control->arrivals_top; i++)
        if (control->arrivals[i].fd >= 0 && now - control->arrivals[i].since_ns > HANDSHAKE_NS)
            trek_control_link_close(&control->arrivals[i]);
}

/* A connection of the tree has ended, and the star has not said why. */
static void notice_torn_branch(trek_control *control, int64_t now)
{
    char message[TREK_ERROR_SIZE];
    if (!control->torn_ns || now - control->torn_ns < TREK_CONTROL_TORN_NS || control->peers[control->torn].left)
        return;
    snprintf(message, sizeof message, "the connection of process %d to process %d, which gathers use, is lost%s",
             control->process, control->torn, control->peers[0].left ? "; process 0, which would know the reason, has left" : "");
    trek_control_end_locked(control, TREK_ERR_PEER, message);
}

/* Writes e.g. "0, 2, 5 and 9 more": the processes that have joined, or those that have not. Returns their number. */
static int list_processes(const trek_control *control, bool joined, char *text, size_t size)
{
    size_t used = 0;
    int count = 0, listed = 0;
    text[0] = '\0';
    for (int p = 0; p < control->processes; p++) {
        if (control->peers[p].joined != joined)
            continue;
        count++;
        if (used + 40 > size)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d", used ? ", " : "", p);
        listed++;
    }
    if (count > listed)
        snprintf(text + used, size - used, " and %d more", count - listed);
    return count;
}

static void notice_who_does_not_come(trek_control *control, int64_t now)
{
    if (control->process != 0 || control->started || now < control->join_until_ns)
        return;
    char missing[200], came[200], message[TREK_ERROR_SIZE];
    int count = list_processes(control, false, missing, sizeof missing);
    list_processes(control, true, came, sizeof came);
    snprintf(message, sizeof message, "process%s %s of %d did not come to %s within %g s; %s did", count > 1 ? "es" : "", missing,
             control->processes, control->where, control->join_s, came);
    trek_control_end_locked(control, TREK_ERR_TIMEOUT, message);
}

/* Returns whether this process must log the table: process 0 does, and those that have lost process 0. */
static bool owes_table(const trek_control *control)
{
    return atomic_load(&control->ended) && control->started && !control->zero_logs && !control->table_logged;
}

/* The loop runs at least as often. */
static int64_t beat_ns(const trek_control *control)
{
    return control->processes <= FEW ? TREK_CONTROL_BEAT_NS / 4 : TREK_CONTROL_BEAT_NS;
}

/* Notices that this process itself stood still (stopped, suspended). Then the silence of the others means nothing. */
static void notice_time(trek_control *control)
{
    int64_t now = trek_now_ns();
    bool slept = now - control->loop_ns > 2 * (int64_t)TREK_CONTROL_BEAT_NS + TREK_CONTROL_BEAT_NS / 2;
    if (now - control->loop_ns > beat_ns(control) + TREK_CONTROL_BEAT_NS / 4)
        control->still_ns = now;
    control->loop_ns = now;
    if (slept) {
        for (int p = 0; p < control->processes; p++)
            control->peers[p].report.heard_ns = now;
        control->up.since_ns = now;
    } else {
        notice_silence(control, now);
        trek_control_notice_silent_parent(control, now);
    }
    if (!atomic_load(&control->ended)) {
        notice_who_does_not_come(control, now);
        notice_torn_branch(control, now);
    }
    if (control->late.decide_ns && now >= control->late.decide_ns && !atomic_load(&control->ended))
        trek_control_decide_late(control);
    if (now >= control->beat_ns || control->beat_now) {
        trek_control_send_beats(control);
        control->beat_ns = now + beat_ns(control);
    }
    if (owes_table(control) && now - control->ended_ns >= TABLE_NS)
        trek_control_log_table(control);
}

static void call_hooks(trek_control *control)
{
    for (int h = 0; h < TREK_CONTROL_HOOKS && atomic_load(&control->ended); h++) {
        if (!control->hooks[h].fn || control->hooks[h].called)
            continue;
        control->hooks[h].called = control->hooks[h].calling = true;
        trek_control_ended_fn fn = control->hooks[h].fn;
        void *arg = control->hooks[h].arg;
        trek_lock_release(&control->lock);
        fn(arg);
        trek_lock_acquire(&control->lock);
        control->hooks[h].calling = false;
        trek_condition_wake_all(&control->changed);
    }
}

/* --- the loop ----------------------------------------------------------------------------------------------------- */

static struct pollfd watched(const trek_control_link *link)
{
    return (struct pollfd){ .fd = link->fd, .events = (short)(trek_control_is_full(link) ? POLLIN | POLLOUT : POLLIN) };
}

static int watch(trek_control *control)
{
    int n = 0;
    struct pollfd *polled = control->polled;
    polled[n++] = (struct pollfd){ .fd = control->bell, .events = POLLIN };
    bool listens = !control->crowded_ns && (control->process == 0 || control->started); /* places or descriptors are missing */
    polled[n++] = (struct pollfd){ .fd = listens ? control->listen_fd : -1, .events = POLLIN };
    for (int i = 0; i < control->links_count; i++)
        polled[n++] = watched(&control->links[i]);
    polled[n++] = watched(&control->up);
    for (int k = 0; k < TREK_TREE_FAN; k++)
        polled[n++] = watched(&control->below[k]);
    while (control->arrivals_top > 0 && control->arrivals[control->arrivals_top - 1].fd < 0)
        control->arrivals_top--;
    control->arrivals_polled = control->arrivals_top;
    for (int i = 0; i < control->arrivals_polled; i++)
        polled[n++] = (struct pollfd){ .fd = control->arrivals[i].fd, .events = POLLIN };
    return n;
}

static int wait_ms(const trek_control *control)
{
    int64_t now = trek_now_ns(), until = control->beat_ns;
    if (owes_table(control) && control->ended_ns + TABLE_NS < until)
        until = control->ended_ns + TABLE_NS;
    if (control->process == 0 && !control->started && !atomic_load(&control->ended) && control->join_until_ns < until)
        until = control->join_until_ns;
    if (control->crowded_ns && control->crowded_ns + TREK_CONTROL_HURRIED_NS < until)
        until = control->crowded_ns + TREK_CONTROL_HURRIED_NS;
    if (control->late.decide_ns && control->late.decide_ns < until)
        until = control->late.decide_ns;
    return until <= now ? 1 : (int)((until - now) / 1000000) + 1;
}

/* Sends what waits to be sent. Returns whether there is something to read. */
static bool may_read(trek_control_link *link, const struct pollfd *polled)
{
    if (link->fd < 0 || polled->fd != link->fd)
        return false;
    trek_control_flush(link);
    if (link->closing && link->out_used == link->out_begin)
        trek_socket_finish(link->fd);
    return (polled->revents & ~POLLOUT) != 0;
}

static void serve_sockets(trek_control *control)
{
    const struct pollfd *polled = control->polled;
    if (polled[0].revents && !trek_bell_quiet(control->bell))
        trek_log_message(TREK_LOG_LEVEL_DEBUG, "control: %s", strerror(errno));
    const struct pollfd *at = polled + 2;
    for (int i = 0; i < control->links_count; i++, at++)
        if (may_read(&control->links[i], at))
            trek_control_serve_link(control, &control->links[i]);
    if (may_read(&control->up, at++))
        trek_control_serve_branch(control, &control->up);
    for (int k = 0; k < TREK_TREE_FAN; k++, at++)
        if (may_read(&control->below[k], at))
            trek_control_serve_branch(control, &control->below[k]);
    for (int i = 0; i < control->arrivals_polled; i++, at++)
        if (control->arrivals[i].fd >= 0 && at->fd == control->arrivals[i].fd && at->revents)
            trek_control_serve_arrival(control, &control->arrivals[i]);
    if (polled[1].revents || (control->crowded_ns && trek_now_ns() - control->crowded_ns >= TREK_CONTROL_HURRIED_NS))
        trek_control_accept_arrivals(control);
}

static bool has_links(const trek_control *control)
{
    for (int i = 0; i < control->links_count; i++)
        if (control->links[i].fd >= 0)
            return true;
    for (int k = 0; k < TREK_TREE_FAN; k++)
        if (control->below[k].fd >= 0)
            return true;
    return control->up.fd >= 0;
}

/* Runs until the process leaves, and then until the others have taken note, at most a second. */
void *trek_control_serve(void *arg)
{
    trek_control *control = arg;
    int64_t leave_until = 0;
    trek_lock_acquire(&control->lock);
    control->loop_ns = trek_now_ns();
    for (;;) {
        if (atomic_load(&control->stopping)) {
            int64_t now = trek_now_ns();
            leave_until = leave_until ? leave_until : now + TREK_CONTROL_BEAT_NS;
            if (!has_links(control) || now >= leave_until)
                break;
        }
        int n = watch(control), ms = leave_until ? 20 : wait_ms(control);
        trek_lock_release(&control->lock);
        trek_socket_poll(control->polled, n, ms);
        trek_lock_acquire(&control->lock);
        serve_sockets(control);
        notice_time(control);
        call_hooks(control);
    }
    if (owes_table(control))
        trek_control_log_table(control);
    trek_lock_release(&control->lock);
    return NULL;
}
