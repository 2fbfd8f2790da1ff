/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of the control channel: lets arrivals in, reads what the others say, sends heartbeats, and notices who
 * is silent. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/rendezvous_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* In jobs up to this size all processes hear of each other more often than they must. */
#define FEW 64
/* How long a stranger may take to say who it is, and how long if others wait for its place. */
#define HANDSHAKE_NS 5000000000
#define HURRIED_NS 250000000
/* How many times in a row the listener may close the connection without a word. */
#define MOST_UNANSWERED 5
/* How long to wait for the last states of the others before the table is logged. */
#define TABLE_NS 250000000

/* --- arrivals, on process 0 -------------------------------------------------------------------------------------- */

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
    if (now - oldest->since_ns < HURRIED_NS)
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

static void accept_arrivals(trek_control *control)
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
    if (slept)
        for (int p = 0; p < control->processes; p++)
            control->peers[p].report.heard_ns = now;
    else
        notice_silence(control, now);
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
    if (control->crowded_ns && control->crowded_ns + HURRIED_NS < until)
        until = control->crowded_ns + HURRIED_NS;
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
    if (polled[1].revents || (control->crowded_ns && trek_now_ns() - control->crowded_ns >= HURRIED_NS))
        accept_arrivals(control);
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
