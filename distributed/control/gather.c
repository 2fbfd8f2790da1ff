/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers over the control channel: process 0 collects the parts and sends all of them to all. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "distributed/control/control_internal.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

static trek_control_slot *slot_of(trek_control *control, uint64_t number) { return &control->slots[number & 1]; }

static bool slot_room(trek_control *control, trek_control_slot *slot, size_t bytes)
{
    if (bytes <= slot->size)
        return true;
    char *data = trek_realloc(slot->data, bytes);
    if (!data) {
        trek_error_clear();
        trek_control_end_locked(control, TREK_ERR_MEMORY, "no memory for what the processes gather");
        return false;
    }
    slot->data = data;
    slot->size = bytes;
    return true;
}

/* On process 0: the first part of a gather makes its slot, the last one sends it. */
void trek_control_contribute(trek_control *control, int process, uint64_t number, const void *data, size_t bytes)
{
    trek_control_slot *slot = slot_of(control, number);
    int n = control->processes;
    char message[256];
    if (bytes > TREK_CONTROL_PAYLOAD / (size_t)n) { /* no trek_control_gather sends so much: not a byte is kept for it */
        snprintf(message, sizeof message, "process %d gave %zu bytes to a gather, of %u for all together", process, bytes,
                 TREK_CONTROL_PAYLOAD);
        trek_control_end_locked(control, TREK_ERR_COMM, message);
        return;
    }
    if (slot->number != number) {
        slot->number = number;
        slot->came = 0;
        slot->done = false;
        slot->bytes = bytes;
        memset(slot->has, 0, (size_t)n * sizeof *slot->has);
        if (!slot_room(control, slot, bytes * (size_t)n))
            return;
    }
    if (slot->bytes != bytes || slot->has[process]) {
        snprintf(message, sizeof message, "the processes' gathers differ: in number %llu process %d gave %zu bytes, others %zu",
                 (unsigned long long)number, process, bytes, slot->bytes);
        trek_control_end_locked(control, TREK_ERR_COMM, message);
        return;
    }
    if (bytes)
        memcpy(slot->data + (size_t)process * bytes, data, bytes);
    slot->has[process] = true;
    control->peers[process].gathers = number;
    if (++slot->came < n) {
        trek_control_gather_left(control);
        return;
    }
    slot->done = true;
    for (int i = 1; i < control->links_count; i++)
        trek_control_send(control, &control->links[i], TREK_CONTROL_GATHERED, number, slot->data, bytes * (size_t)n);
    pthread_cond_broadcast(&control->changed);
}

/* On the others: process 0's answer. */
void trek_control_gathered(trek_control *control, uint64_t number, const void *data, size_t bytes)
{
    trek_control_slot *slot = slot_of(control, number);
    if (number != control->gathers || slot->done || !slot_room(control, slot, bytes))
        return;
    if (bytes)
        memcpy(slot->data, data, bytes);
    slot->bytes = bytes / (size_t)control->processes;
    slot->done = true;
    pthread_cond_broadcast(&control->changed);
}

/* On process 0: somebody's deadline has passed in a gather. Ends the group unless all who miss are excused. */
void trek_control_late(trek_control *control, uint64_t number, int64_t deadline_ns)
{
    const trek_control_slot *slot = slot_of(control, number);
    char missing[200] = "", doing[256] = "", message[TREK_ERROR_SIZE];
    size_t used = 0;
    int count = 0;
    bool excused = true;
    if (slot->done && slot->number == number)
        return;
    for (int p = 0; p < control->processes; p++) {
        if (slot->number == number && slot->has[p])
            continue;
        excused = excused && trek_control_excused_locked(control, p, deadline_ns);
        if (count++ == 0)
            trek_control_doing(control, p, doing, sizeof doing);
        if (used < sizeof missing - 16)
            used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%d", used ? ", " : "", p);
    }
    for (int i = 1; excused && i < control->links_count; i++)
        trek_control_send(control, &control->links[i], TREK_CONTROL_EXTEND, number, NULL, 0);
    if (excused)
        return;
    snprintf(message, sizeof message, "gather %llu: process%s %s did not come within %g s; %s %s", (unsigned long long)number,
             count > 1 ? "es" : "", missing, (double)deadline_ns * 1e-9, count > 1 ? "the first was" : "it was", doing);
    trek_control_end_locked(control, TREK_ERR_TIMEOUT, message);
}

void trek_control_extend(trek_control *control, uint64_t number)
{
    if (number != control->gathers)
        return;
    slot_of(control, number)->came = 1; /* seen by the one who waits */
    pthread_cond_broadcast(&control->changed);
}

/* Waits for a change until that moment (0: for any time). false: it has passed. */
static bool wait_until(trek_control *control, int64_t until_ns)
{
    if (until_ns == 0)
        return pthread_cond_wait(&control->changed, &control->lock) == 0;
    struct timespec at = { .tv_sec = (time_t)(until_ns / 1000000000), .tv_nsec = (long)(until_ns % 1000000000) };
    return pthread_cond_timedwait(&control->changed, &control->lock, &at) == 0 || trek_clock_ns() < until_ns;
}

/* The deadline has passed here. Process 0 knows who misses, so it decides; it is given a while to answer. */
static void ask_about_delay(trek_control *control, trek_control_slot *slot, uint64_t number, int64_t deadline_ns)
{
    if (control->process == 0) {
        trek_control_late(control, number, deadline_ns);
        return;
    }
    slot->came = 0;
    trek_control_send(control, &control->links[0], TREK_CONTROL_LATE, number, &deadline_ns, sizeof deadline_ns);
    int64_t until = trek_clock_ns() + TREK_CONTROL_SILENCE_NS + TREK_CONTROL_BEAT_NS;
    while (!slot->done && slot->came == 0 && !atomic_load(&control->ended))
        if (!wait_until(control, until))
            trek_control_end_locked(control, TREK_ERR_TIMEOUT, "process 0 did not say who is missing in a gather");
}

trek_status trek_control_gather(trek_control *control, const void *mine, size_t bytes, void *all, int64_t deadline_ns)
{
    if (trek_forked)
        return trek_fail_forked();
    if (bytes > TREK_CONTROL_PAYLOAD / (size_t)control->processes)
        return trek_fail(TREK_ERR_ARGUMENT, "the control channel carries %u bytes at most, not %zu of each of %d processes",
                         TREK_CONTROL_PAYLOAD, bytes, control->processes);
    pthread_mutex_lock(&control->lock);
    uint64_t number = ++control->gathers;
    trek_control_slot *slot = slot_of(control, number);
    control->gathering = true;
    if (control->process != 0) {
        slot->number = number;
        slot->done = false;
        trek_control_gather_left(control);
        trek_control_send(control, &control->links[0], TREK_CONTROL_GATHER, number, mine, bytes);
    } else if (!atomic_load(&control->ended)) {
        trek_control_contribute(control, 0, number, mine, bytes);
    }
    int64_t until = deadline_ns ? trek_clock_ns() + deadline_ns : 0;
    while (!slot->done && !atomic_load(&control->ended)) {
        if (wait_until(control, until))
            continue;
        ask_about_delay(control, slot, number, deadline_ns);
        until = trek_clock_ns() + deadline_ns;
    }
    bool good = slot->done && slot->number == number && slot->bytes == bytes;
    if (good && bytes)
        memcpy(all, slot->data, bytes * (size_t)control->processes);
    control->gathering = false;
    pthread_mutex_unlock(&control->lock);
    return good ? TREK_OK : trek_control_fail(control);
}
