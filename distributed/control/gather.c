/* SPDX-License-Identifier: Apache-2.0 */
/* Gathers over the control channel. Each process appends the parts of the processes below it to its own, by number,
 * and sends them to its parent in one piece. Process 0 sends all parts down again. Without a tree all processes are
 * children of process 0. */
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"

/* In a tree process 0 only knows by the star who has come if a process below waits for another one. A process that
 * waits says so after TELL_NS. Process 0 waits DECIDE_NS more before it decides about late processes. */
#define TELL_NS 100000000
#define DECIDE_NS 300000000

static trek_control_slot *slot_of(trek_control *control, uint64_t number) { return &control->slots[number & 1]; }

/* Makes room in a slot. A gather of zero bytes has an address, too. */
static bool slot_room(trek_control *control, trek_control_slot *slot, size_t bytes)
{
    bytes += bytes == 0;
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

static void send_down(trek_control *control, const trek_control_slot *slot)
{
    size_t bytes = slot->bytes * (size_t)control->processes;
    for (int k = 0; k < control->node.children; k++)
        trek_control_send(control, trek_control_below(control, k), TREK_CONTROL_GATHERED, slot->number, slot->data, bytes);
    trek_condition_wake_all(&control->changed);
    if (control->gatherer.gathered)
        control->gatherer.gathered(control->gatherer.arg);
}

/* Passes the parts on when all parts of this process's tree have arrived. */
static void pass_on(trek_control *control, trek_control_slot *slot)
{
    if (control->process == 0) {
        slot->done = true;
        send_down(control, slot);
        return;
    }
    trek_control_send(control, trek_control_up(control), TREK_CONTROL_GATHER, slot->number,
                      slot->data + (size_t)control->process * slot->bytes, slot->bytes * (size_t)control->node.size);
    trek_control_gather_left(control);
}

/* Returns how many parts a process gives: this process one, a child those of its whole tree, any other process 0. */
static int parts_of(const trek_control *control, int process)
{
    int k = trek_tree_which(&control->node, process), size = process == control->process;
    if (k >= 0)
        trek_tree_child(&control->node, k, &size);
    return size;
}

/* Ends the group because the first part of a process differs in size from that of another one. */
static void end_by_difference(trek_control *control, const trek_control_slot *slot, int process, const char *data, size_t part)
{
    const trek_control_gatherer *gatherer = &control->gatherer;
    char message[TREK_ERROR_SIZE];
    int other = 0;
    while (other < control->processes - 1 && !slot->has[other])
        other++;
    const char *others = slot->data + (size_t)other * slot->bytes;
    snprintf(message, sizeof message, "the processes' gathers differ: in number %llu process %d gave %zu bytes, others %zu",
             (unsigned long long)slot->number, process, part, slot->bytes);
    if (gatherer->differ && slot->has[other] && part >= gatherer->least && slot->bytes >= gatherer->least && part != slot->bytes)
        gatherer->differ(other, others, process, data, message, sizeof message);
    trek_control_end_locked(control, TREK_ERR_COMM, message);
}

/* Stores parts. The first part of a gather prepares its slot, the last one passes it on. */
void trek_control_contribute(trek_control *control, int process, uint64_t number, const void *data, size_t bytes)
{
    trek_control_slot *slot = slot_of(control, number);
    int n = control->processes, parts = parts_of(control, process);
    char message[256];
    if (parts == 0)
        return;
    size_t part = bytes / (size_t)parts;
    if (part > TREK_CONTROL_PAYLOAD / (size_t)n) { /* no trek_control_gather sends so much, so that no byte of it is kept */
        snprintf(message, sizeof message, "process %d gave %zu bytes to a gather, of %u for all together", process, part,
                 TREK_CONTROL_PAYLOAD);
        trek_control_end_locked(control, TREK_ERR_COMM, message);
        return;
    }
    if (slot->number != number || !slot->data) { /* also number 0, which no gather has */
        slot->number = number;
        slot->came = 0;
        slot->done = slot->extended = false;
        slot->bytes = part;
        memset(slot->has, 0, (size_t)n * sizeof *slot->has);
        if (!slot_room(control, slot, part * (size_t)n))
            return;
    }
    if (slot->bytes * (size_t)parts != bytes || slot->has[process]) {
        end_by_difference(control, slot, process, data, part);
        return;
    }
    if (bytes)
        memcpy(slot->data + (size_t)process * part, data, bytes);
    for (int p = process; p < process + parts; p++) {
        slot->has[p] = true;
        control->peers[p].gathers = number;
    }
    slot->came += parts;
    if (slot->came == control->node.size)
        pass_on(control, slot);
    else
        trek_control_gather_left(control);
}

/* Takes the answer of process 0, on other processes. */
void trek_control_gathered(trek_control *control, uint64_t number, const void *data, size_t bytes)
{
    trek_control_slot *slot = slot_of(control, number);
    if (number != control->gathers || slot->number != number || slot->done)
        return;
    if (bytes != slot->bytes * (size_t)control->processes) {
        trek_control_end_locked(control, TREK_ERR_COMM, "what the processes have gathered has another size than what they gave");
        return;
    }
    if (bytes)
        memcpy(slot->data, data, bytes);
    slot->done = true;
    if (control->up.fd >= 0 && control->torn == control->node.parent)
        control->torn_ns = 0; /* the answer was late, not lost */
    send_down(control, slot);
}

/* Returns, on process 0, whether a process is known to have come. */
static bool has_come(trek_control *control, int process, uint64_t number)
{
    const trek_control_slot *slot = slot_of(control, number);
    if (slot->number == number && slot->has[process])
        return true;
    return (process == 0 ? control->gathers : control->peers[process].gathers) >= number;
}

/* Ends the group unless all missing processes are excused, or this process stood still while they should have come: they may have
 * waited for what it had to send to them. */
static void decide_late(trek_control *control, uint64_t number, int64_t deadline_ns)
{
    const trek_control_slot *slot = slot_of(control, number);
    char missing[200] = "", doing[256] = "", message[TREK_ERROR_SIZE];
    size_t used = 0;
    int count = 0;
    bool excused = true, still = control->still_ns && trek_now_ns() - control->still_ns < deadline_ns;
    if (slot->done && slot->number == number)
        return;
    for (int p = 0; p < control->processes; p++) {
        if (has_come(control, p, number))
            continue;
        excused = excused && (still || trek_control_excused_locked(control, p, deadline_ns));
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

/* Notes on process 0 that a deadline has passed in a gather. Its thread decides after it has read what has arrived,
 * because this process may have stood still. */
void trek_control_late(trek_control *control, uint64_t number, int64_t deadline_ns)
{
    if (control->late.decide_ns)
        return;
    control->late.number = number;
    control->late.deadline_ns = deadline_ns;
    control->late.decide_ns = trek_now_ns() + (control->has_tree ? DECIDE_NS : 0);
    trek_control_wake(control);
}

void trek_control_decide_late(trek_control *control)
{
    control->late.decide_ns = 0;
    decide_late(control, control->late.number, control->late.deadline_ns);
}

void trek_control_extend(trek_control *control, uint64_t number)
{
    if (number != control->gathers)
        return;
    slot_of(control, number)->extended = true; /* the process that waits sees it */
    trek_condition_wake_all(&control->changed);
}

/* Waits for a change until that time (0: without limit). Returns false if the time has passed. */
static bool wait_until(trek_control *control, int64_t until_ns)
{
    if (until_ns != 0)
        return trek_condition_wait_until(&control->changed, &control->lock, until_ns) || trek_now_ns() < until_ns;
    trek_condition_wait(&control->changed, &control->lock);
    return true;
}

/* Asks process 0 after the deadline has passed here. Process 0 knows who is missing, so it decides, and gets a while
 * to answer. */
static void ask_about_delay(trek_control *control, int64_t deadline_ns)
{
    uint64_t number = control->gathers;
    trek_control_slot *slot = slot_of(control, number);
    if (control->process == 0) {
        trek_control_late(control, number, deadline_ns);
        return;
    }
    slot->extended = false;
    trek_control_send(control, &control->links[0], TREK_CONTROL_LATE, number, &deadline_ns, sizeof deadline_ns);
    int64_t until = trek_now_ns() + TREK_CONTROL_SILENCE_NS + TREK_CONTROL_BEAT_NS;
    while (!slot->done && !slot->extended && !atomic_load(&control->ended))
        if (!wait_until(control, until))
            trek_control_end_locked(control, TREK_ERR_TIMEOUT, "process 0 did not say who is missing in a gather");
}

/* Waits until the current gather is done or the group has ended. */
static void wait_for_all(trek_control *control, const trek_control_slot *slot, int64_t deadline_ns)
{
    int64_t now = trek_now_ns(), until = deadline_ns ? now + deadline_ns : 0;
    int64_t tell = control->has_tree && control->process != 0 ? now + TELL_NS : 0;
    while (!slot->done && !atomic_load(&control->ended)) {
        bool telling = tell && (until == 0 || tell < until);
        if (wait_until(control, telling ? tell : until))
            continue;
        if (telling) {
            trek_control_send_beats(control);
            tell = 0;
        } else {
            ask_about_delay(control, deadline_ns);
            until = trek_now_ns() + deadline_ns;
        }
    }
}

static trek_control_slot *begin(trek_control *control, const void *mine, size_t bytes)
{
    uint64_t number = ++control->gathers;
    if (!atomic_load(&control->ended))
        trek_control_contribute(control, control->process, number, mine, bytes);
    return slot_of(control, number);
}

trek_status trek_control_gather(trek_control *control, const void *mine, size_t bytes, void *all, int64_t deadline_ns)
{
    if (trek_forked)
        return trek_fail_forked();
    if (bytes > TREK_CONTROL_PAYLOAD / (size_t)control->processes)
        return trek_fail(TREK_ERR_ARGUMENT,
                         "comm_gather_bytes: bytes: %zu of each of %d processes; the control channel carries at most %u", bytes,
                         control->processes, TREK_CONTROL_PAYLOAD);
    trek_lock_acquire(&control->lock);
    trek_control_slot *slot = begin(control, mine, bytes);
    uint64_t number = control->gathers;
    wait_for_all(control, slot, deadline_ns);
    bool good = slot->done && slot->number == number && slot->bytes == bytes;
    if (good && bytes)
        memcpy(all, slot->data, bytes * (size_t)control->processes);
    trek_lock_release(&control->lock);
    return good ? TREK_OK : trek_control_fail(control);
}

void trek_control_gather_begin(trek_control *control, const void *mine, size_t bytes)
{
    if (trek_forked)
        return;
    trek_lock_acquire(&control->lock);
    begin(control, mine, bytes);
    trek_lock_release(&control->lock);
}

bool trek_control_gather_test(trek_control *control, size_t bytes, void *all, size_t stride)
{
    trek_lock_acquire(&control->lock);
    const trek_control_slot *slot = slot_of(control, control->gathers);
    bool done = slot->done && slot->number == control->gathers && slot->bytes == bytes;
    for (int p = 0; done && bytes && p < control->processes; p++)
        memcpy((char *)all + (size_t)p * stride, slot->data + (size_t)p * bytes, bytes);
    trek_lock_release(&control->lock);
    return done;
}

void trek_control_set_gatherer(trek_control *control, const trek_control_gatherer *gatherer)
{
    trek_lock_acquire(&control->lock);
    control->gatherer = gatherer ? *gatherer : (trek_control_gatherer){ .arg = NULL };
    trek_lock_release(&control->lock);
}
