/* SPDX-License-Identifier: Apache-2.0 */
/* The end of the group: by a call, by the death of a process, or because a process has left that another one still
 * needs. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/system/system.h"

typedef struct end_message {
    int32_t status;
    char text[TREK_ERROR_SIZE];
} end_message;

/* Tells the others of the end. Process 0 tells all others, and these tell process 0. Where a connection of the tree is torn,
 * process 0 may not be reachable: then a process also tells those beside it in the tree, which otherwise only see that it has
 * gone. */
static void tell_end(trek_control *control, const end_message *end)
{
    size_t bytes = offsetof(end_message, text) + strlen(end->text);
    for (int i = 0; i < control->links_count; i++)
        trek_control_send(control, &control->links[i], TREK_CONTROL_END, 0, end, bytes);
    if (!control->torn_ns)
        return;
    trek_control_send(control, &control->up, TREK_CONTROL_END, 0, end, bytes);
    for (int k = 0; k < TREK_TREE_FAN; k++)
        trek_control_send(control, &control->below[k], TREK_CONTROL_END, 0, end, bytes);
}

/* The first reason counts. */
void trek_control_end_locked(trek_control *control, trek_status status, const char *message)
{
    if (atomic_load(&control->ended))
        return;
    control->status = status;
    snprintf(control->message, sizeof control->message, "%s", message);
    control->ended_ns = trek_now_ns();
    control->zero_logs = control->process != 0 && control->links[0].fd >= 0 && !control->links[0].lost && !control->peers[0].left;
    atomic_store(&control->ended, true);
    end_message end = { .status = (int32_t)status };
    memcpy(end.text, control->message, sizeof end.text);
    tell_end(control, &end);
    trek_condition_wake_all(&control->changed);
    trek_control_wake(control);
}

void trek_control_end(trek_control *control, trek_status status, const char *message)
{
    if (trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    trek_control_end_locked(control, status, message);
    trek_lock_release(&control->lock);
}

void trek_control_take_end(trek_control *control, const char *data, size_t bytes)
{
    int32_t status;
    char text[TREK_ERROR_SIZE];
    if (bytes < sizeof status)
        return;
    memcpy(&status, data, sizeof status);
    size_t length = bytes - sizeof status < sizeof text - 1 ? bytes - sizeof status : sizeof text - 1;
    memcpy(text, data + sizeof status, length);
    text[length] = '\0';
    bool known = status > TREK_OK && strcmp(trek_status_name((trek_status)status), "unknown") != 0;
    trek_control_end_locked(control, known ? (trek_status)status : TREK_ERR_COMM,
                            text[0] ? text : "another process has ended the group");
    control->beat_now = true;
}

bool trek_control_ended(const trek_control *control) { return atomic_load(&control->ended); }

trek_status trek_control_fail(trek_control *control)
{
    if (trek_forked)
        return trek_fail_forked();
    char message[TREK_ERROR_SIZE];
    trek_lock_acquire(&control->lock);
    trek_status status = control->status;
    memcpy(message, control->message, sizeof message);
    trek_lock_release(&control->lock);
    return status == TREK_OK ? trek_fail(TREK_ERR_STATE, "job: the group of processes has not ended")
                             : trek_fail(status, "%s", message);
}

/* Handles the loss of a process that has not said goodbye. how: e.g. "its connection was closed". */
void trek_control_lost(trek_control *control, int process, const char *how)
{
    char doing[256], message[TREK_ERROR_SIZE];
    if (control->started)
        snprintf(message, sizeof message, "process %d %s; it was %s", process, how,
                 trek_control_doing(control, process, doing, sizeof doing));
    else
        snprintf(message, sizeof message, "process %d %s while the processes were joining", process, how);
    trek_control_end_locked(control, TREK_ERR_PEER, message);
}

static void end_by_leaving(trek_control *control, int process)
{
    const trek_control_report *report = &control->peers[process].report;
    char doing[256], message[TREK_ERROR_SIZE];
    snprintf(message, sizeof message, "process %d has left: it %s %s", process, report->exited ? "exited" : "left the group",
             trek_control_doing(control, process, doing, sizeof doing));
    trek_control_end_locked(control, TREK_ERR_PEER, message);
}

/* A process that has left ends the group for those who begin a call that it has not ended. Calls that it did end may
 * still be under way here; nobody waits for it in them. */
void trek_control_check_left(trek_control *control)
{
    const trek_control_report *own = &control->peers[control->process].report;
    for (int p = 0; p < control->processes && !atomic_load(&control->ended) && own->in_call; p++)
        if (control->peers[p].left && own->number > control->peers[p].report.done)
            end_by_leaving(control, p);
}

/* Does the same for gathers to which this process or one below it has come. */
void trek_control_gather_left(trek_control *control)
{
    for (int s = 0; s < 2; s++) {
        const trek_control_slot *slot = &control->slots[s];
        for (int p = 0; p < control->processes && !slot->done && slot->came > 0 && !atomic_load(&control->ended); p++)
            if (p != control->process && control->peers[p].left && control->peers[p].gathers < slot->number)
                end_by_leaving(control, p);
    }
}

/* Does the same for questions to process 0. */
void trek_control_ask_left(trek_control *control)
{
    char message[TREK_ERROR_SIZE];
    if (control->process == 0 || !control->peers[0].left || atomic_load(&control->ended))
        return;
    for (int k = 0; k < control->n_subjects; k++)
        if (control->subjects[k].asked && !control->subjects[k].has_answer) {
            snprintf(message, sizeof message, "process 0 has left, and process %d waits for its answer", control->process);
            trek_control_end_locked(control, TREK_ERR_PEER, message);
            return;
        }
}

/* Process 0 has left. What it gave to the tree in the last gather is still on its way here, and if a process that
 * must pass it on has died, nobody reports that any more. */
static void watch_branch(trek_control *control)
{
    const trek_control_slot *slot = &control->slots[control->gathers & 1];
    if (control->up.fd < 0 || control->torn_ns || slot->done || slot->number != control->gathers || slot->came == 0)
        return;
    control->torn = control->node.parent;
    control->torn_ns = trek_now_ns() + TREK_CONTROL_SILENCE_NS - TREK_CONTROL_TORN_NS;
}

void trek_control_take_left(trek_control *control, int process, const trek_control_report *report, uint64_t gathers)
{
    if (process < 0 || process >= control->processes || process == control->process)
        return;
    trek_control_peer_state *peer = &control->peers[process];
    if (control->patient && control->process == 0 && !control->started) {
        peer->joined = false;
        return;
    }
    trek_control_report kept = *report;
    kept.process = process;
    kept.heard_ns = 0;
    trek_control_take_report(control, &kept);
    peer->left = true;
    peer->gathers = gathers;
    if (!control->started) {
        trek_control_lost(control, process, "left");
        return;
    }
    for (int i = 1; control->process == 0 && i < control->links_count; i++)
        if (i != process)
            trek_control_send(control, &control->links[i], TREK_CONTROL_LEFT, gathers, &kept, sizeof kept);
    trek_control_check_left(control);
    trek_control_gather_left(control);
    trek_control_ask_left(control);
    if (process == 0)
        watch_branch(control);
}

static void finish_link(trek_control_link *link)
{
    link->closing = true;
    if (link->out_used == link->out_begin)
        trek_socket_finish(link->fd);
}

/* Says goodbye to all whom this process knows, when it leaves in order. */
void trek_control_say_goodbye(trek_control *control, bool exited)
{
    trek_control_report report;
    trek_control_own_report(control, &report);
    report.exited = exited;
    for (int i = 0; i < control->links_count; i++) {
        trek_control_link *link = &control->links[i];
        trek_control_send(control, link, TREK_CONTROL_LEFT, control->gathers, &report, sizeof report);
        finish_link(link);
    }
    finish_link(&control->up);
    for (int k = 0; k < TREK_TREE_FAN; k++)
        finish_link(&control->below[k]);
}

/* --- whom the end wakes ------------------------------------------------------------------------------------------- */

trek_status trek_control_on_end(trek_control *control, trek_control_ended_fn fn, void *arg)
{
    if (trek_forked)
        return trek_fail_forked();
    trek_lock_acquire(&control->lock);
    int h = 0;
    while (h < TREK_CONTROL_HOOKS && control->hooks[h].fn)
        h++;
    if (h < TREK_CONTROL_HOOKS) {
        control->hooks[h].fn = fn;
        control->hooks[h].arg = arg;
        control->hooks[h].called = control->hooks[h].calling = false;
    }
    trek_lock_release(&control->lock);
    trek_control_wake(control);
    return h < TREK_CONTROL_HOOKS ? TREK_OK
                                  : trek_fail(TREK_ERR_STATE, "comm_init: more than %d engines use one control channel", h);
}

/* Returns when fn is not running and will not run again. */
void trek_control_forget(trek_control *control, void *arg)
{
    if (!control || trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    for (int h = 0; h < TREK_CONTROL_HOOKS; h++) {
        if (!control->hooks[h].fn || control->hooks[h].arg != arg)
            continue;
        while (control->hooks[h].calling && !trek_thread_equal(trek_thread_self(), control->thread))
            trek_condition_wait(&control->changed, &control->lock);
        control->hooks[h].fn = NULL;
    }
    trek_lock_release(&control->lock);
}
