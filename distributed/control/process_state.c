/* SPDX-License-Identifier: Apache-2.0 */
/* What each process does, as far as it is known. Each process sends it once a second, and process 0 passes it on. */
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* The states of how many processes process 0 sends to each of the others at a time. */
#define RELAYED 64
#define LISTED 64
#define LINE 400

static trek_control_report *own_state(trek_control *control) { return &control->peers[control->process].report; }

static void say(trek_control *control, const char *phase, const trek_call_note *call, bool is_long)
{
    trek_control_report *own = own_state(control);
    int64_t now = trek_now_ns();
    if (phase && (control->phase != phase || own->is_long != is_long)) {
        snprintf(own->phase, sizeof own->phase, "%s", phase);
        control->phase = phase;
        own->phase_ns = now;
        control->beat_now |= own->is_long || is_long; /* processes that wait need to know */
        own->is_long = is_long;
    }
    if (call) {
        own->number = call->number;
        own->kind = call->kind;
        own->op = call->op;
        own->dtype = call->dtype;
        own->root = call->root;
        own->count = call->count;
        own->call_ns = now;
        own->in_call = 1;
    }
}

static void say_and_wake(trek_control *control, const char *phase, bool is_long)
{
    if (!control || trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    say(control, phase, NULL, is_long);
    bool wake = control->beat_now;
    trek_lock_release(&control->lock);
    if (wake)
        trek_control_wake(control);
}

void trek_control_say(trek_control *control, const char *phase, const trek_call_note *call)
{
    say_and_wake(control, phase ? phase : "training", false);
    if (call)
        trek_control_call(control, call);
}

void trek_control_say_long(trek_control *control, const char *phase) { say_and_wake(control, phase, true); }

void trek_control_note(trek_control *control, const char *phase)
{
    if (!control || trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    trek_control_report *own = own_state(control);
    if (!own->is_long) {
        say(control, phase, NULL, false);
        own->phase_ns = trek_now_ns();
    }
    trek_lock_release(&control->lock);
}

void trek_control_call(trek_control *control, const trek_call_note *call)
{
    if (!control || trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    say(control, NULL, call, false);
    trek_control_check_left(control);
    trek_lock_release(&control->lock);
}

void trek_control_called(trek_control *control)
{
    if (!control || trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    trek_control_report *own = own_state(control);
    own->in_call = 0;
    own->done = own->number;
    trek_lock_release(&control->lock);
}

/* --- reports ----------------------------------------------------------------------------------------------------- */

static trek_control_report aged(const trek_control_report *kept, int64_t now)
{
    trek_control_report report = *kept;
    report.phase_ns = now - kept->phase_ns;
    report.call_ns = now - kept->call_ns;
    report.heard_ns = now - kept->heard_ns;
    return report;
}

void trek_control_say_hello(trek_control *control, trek_control_link *link, const char *address, int port)
{
    trek_control_hello hello = { .processes = control->processes, .process = control->process, .pid = trek_process_id(),
                                 .port = port, .generation = control->generation,
                                 .left_ns = control->join_until_ns - trek_now_ns() };
    memcpy(hello.machine, control->machine, sizeof hello.machine);
    memcpy(hello.host, control->peers[control->process].host, sizeof hello.host);
    snprintf(hello.address, sizeof hello.address, "%s", address);
    trek_control_call_up(control, link);
    trek_control_send(control, link, TREK_CONTROL_HELLO, 0, &hello, sizeof hello);
}

void trek_control_own_report(trek_control *control, trek_control_report *report)
{
    int64_t now = trek_now_ns();
    *report = aged(own_state(control), now);
    report->process = control->process;
    report->gathers = control->gathers;
    report->heard_ns = 0;
}

/* Bounds an age to what a clock can have. A value from the network is used in no calculation before that. */
static int64_t possible_age(int64_t age, int64_t now) { return age < 0 ? 0 : age > now ? now : age; }

void trek_control_take_report(trek_control *control, const trek_control_report *report)
{
    if (report->process < 0 || report->process >= control->processes || report->process == control->process)
        return;
    int64_t now = trek_now_ns();
    trek_control_report *kept = &control->peers[report->process].report, sent = *report;
    sent.phase_ns = possible_age(sent.phase_ns, now);
    sent.call_ns = possible_age(sent.call_ns, now);
    sent.heard_ns = possible_age(sent.heard_ns, now);
    *kept = aged(&sent, now);
    kept->phase[sizeof kept->phase - 1] = '\0';
    if (kept->gathers > control->peers[report->process].gathers)
        control->peers[report->process].gathers = kept->gathers;
}

/* Process 0 sends its own state and those of others, in turn if they are many. The others send their own. */
void trek_control_send_beats(trek_control *control)
{
    trek_control_report reports[RELAYED + 1];
    int count = 1;
    int64_t now = trek_now_ns();
    trek_control_own_report(control, &reports[0]);
    for (int i = 1; control->process == 0 && i < control->processes && count <= RELAYED; i++) {
        control->relay_from = control->relay_from % (control->processes - 1) + 1;
        if (!control->peers[control->relay_from].joined)
            continue;
        reports[count] = aged(&control->peers[control->relay_from].report, now);
        reports[count++].process = control->relay_from;
    }
    for (int i = 0; i < control->links_count; i++)
        trek_control_send(control, &control->links[i], TREK_CONTROL_BEAT, 0, reports, (size_t)count * sizeof *reports);
    control->beat_now = false;
}

bool trek_control_excused_locked(trek_control *control, int process, int64_t deadline_ns)
{
    const trek_control_peer_state *peer = &control->peers[process];
    int64_t now = trek_now_ns(), lately = now - deadline_ns;
    if (process != control->process && (peer->left || now - peer->report.heard_ns > TREK_CONTROL_SILENCE_NS))
        return false;
    return peer->report.is_long || peer->report.phase_ns > lately || peer->report.call_ns > lately;
}

bool trek_control_excused(trek_control *control, int process, int64_t deadline_ns)
{
    if (trek_forked)
        return false;
    trek_lock_acquire(&control->lock);
    bool excused = trek_control_excused_locked(control, process, deadline_ns);
    trek_lock_release(&control->lock);
    return excused;
}

bool trek_control_some_left(trek_control *control)
{
    if (trek_forked)
        return false;
    bool left = false;
    trek_lock_acquire(&control->lock);
    for (int p = 0; p < control->processes && !left; p++)
        left = p != control->process && control->peers[p].left;
    trek_lock_release(&control->lock);
    return left;
}

uint64_t trek_control_peer_call(trek_control *control, int process)
{
    if (trek_forked)
        return 0;
    trek_lock_acquire(&control->lock);
    uint64_t number = control->peers[process].report.number;
    trek_lock_release(&control->lock);
    return number;
}

void trek_control_peer(trek_control *control, int process, char *phase, size_t size, int64_t *silent_ns, int64_t *in_phase_ns)
{
    if (trek_forked || process < 0 || process >= control->processes) {
        snprintf(phase, size, "%s", "");
        *silent_ns = *in_phase_ns = 0;
        return;
    }
    trek_lock_acquire(&control->lock);
    const trek_control_report *report = &control->peers[process].report;
    int64_t now = trek_now_ns();
    snprintf(phase, size, "%s", report->phase);
    *silent_ns = process == control->process ? 0 : now - report->heard_ns;
    *in_phase_ns = now - report->phase_ns;
    trek_lock_release(&control->lock);
}

/* --- in words ---------------------------------------------------------------------------------------------------- */

char *trek_control_doing(trek_control *control, int process, char *text, size_t size)
{
    const trek_control_report *report = &control->peers[process].report;
    int64_t now = trek_now_ns();
    size_t used = 0;
    text[0] = '\0';
    if (report->phase[0])
        used =
            (size_t)snprintf(text, size, "in phase \"%s\" for %.1f s, ", report->phase, (double)(now - report->phase_ns) * 1e-9);
    if (used >= size)
        return text;
    trek_call_note call = { .kind = report->kind, .op = report->op, .dtype = report->dtype, .root = report->root,
                            .count = report->count };
    char words[128];
    if (report->number == 0)
        snprintf(text + used, size - used, "before its first call");
    else if (report->in_call)
        snprintf(text + used, size - used, "in call %llu, %s, for %.1f s", (unsigned long long)report->number,
                 trek_call_text(&call, words, sizeof words), (double)(now - report->call_ns) * 1e-9);
    else
        snprintf(text + used, size - used, "after call %llu, %s", (unsigned long long)report->number,
                 trek_call_text(&call, words, sizeof words));
    return text;
}

static void write_line(trek_control *control, int process, char *line, size_t size)
{
    const trek_control_peer_state *peer = &control->peers[process];
    char doing[256], heard[64] = "";
    if (process != control->process)
        snprintf(heard, sizeof heard, ", heard of %.1f s ago", (double)(trek_now_ns() - peer->report.heard_ns) * 1e-9);
    char who[96] = "";
    if (peer->host[0])
        snprintf(who, sizeof who, " (pid %d on %s)", peer->pid, peer->host);
    if (process != control->process && !peer->joined && peer->report.heard_ns == 0)
        snprintf(line, size, "process %d: has not come\n", process);
    else
        snprintf(line, size, "process %d%s: %s%s%s\n", process, who, peer->left ? "has left, " : "",
                 trek_control_doing(control, process, doing, sizeof doing), heard);
}

static void append_table(trek_control *control, char *text, size_t size)
{
    size_t used = strlen(text);
    char line[LINE];
    for (int p = 0; p < control->processes && p < LISTED; p++) {
        write_line(control, p, line, sizeof line);
        size_t length = strlen(line);
        if (used + length + 1 > size)
            return;
        memcpy(text + used, line, length + 1);
        used += length;
    }
    if (control->processes > LISTED && used + 1 < size)
        snprintf(text + used, size - used, "and %d more\n", control->processes - LISTED);
}

char *trek_control_table(trek_control *control, char *text, size_t size)
{
    if (trek_forked)
        return text;
    trek_lock_acquire(&control->lock);
    append_table(control, text, size);
    trek_lock_release(&control->lock);
    return text;
}

/* Called with the lock held, which is released while a user's log function runs. */
void trek_control_log_table(trek_control *control)
{
    size_t size = LINE * (size_t)(control->processes < LISTED ? control->processes : LISTED) + 64;
    char reason[TREK_ERROR_SIZE];
    control->table_logged = true;
    snprintf(reason, sizeof reason, "%s", control->message);
    char *text = trek_calloc(1, size);
    if (text)
        append_table(control, text, size);
    else
        trek_error_clear();
    trek_lock_release(&control->lock);
    trek_log_message(TREK_LOG_ERROR, "the group of %d processes has ended: %s", control->processes, reason);
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        trek_log_message(TREK_LOG_ERROR, "  %.*s", end ? (int)(end - line) : (int)strlen(line), line);
        line = end ? end + 1 : NULL;
    }
    trek_free(text);
    trek_lock_acquire(&control->lock);
}
