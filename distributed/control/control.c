/* SPDX-License-Identifier: Apache-2.0 */
/* The control channel: joining and leaving. */
#include "distributed/control/control.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distributed/control/control_internal.h"
#include "distributed/control/launch.h"
#include "distributed/system/system.h"
#include "tensor/memory_internal.h"
#include "tensor/trace.h"

/* --- processes that exit without leaving the group ---------------------------------------------------------------- */

#define ALIVE 32

/* The channels of this process. */
typedef struct alive_controls {
    trek_lock lock;
    bool watches_exit;
    trek_control *controls[ALIVE];
} alive_controls;

TREK_PER_PROCESS(alive_controls, alive, { .lock = TREK_LOCK_INIT });

/* How long a process stays alive after the death of another one. */
#define BEHIND_NS 200000000
/* How long others wait for a process that has ended, and how often they look whether one has. */
#define DEATH_NS 1000000000
#define LOOK_NS 100000000
/* How long process 0 waits for processes that have not come yet when another one has died. */
#define LATE_NS 2000000000
/* How soon a process asks again when process 0 is not ready for this group: at first, and at most. */
#define AGAIN_NS 5000000
#define LAST_AGAIN_NS 200000000

/* Delays the exit of this process. The process whose death has ended the group must end first, because launchers
 * return its status as the job's. */
static void stay_behind(const trek_control *control)
{
    if (!atomic_load(&control->ended) || !control->started || control->status != TREK_ERR_PEER)
        return;
    for (int64_t left; (left = control->ended_ns + BEHIND_NS - trek_now_ns()) > 0;)
        trek_sleep_ns(left);
}

/* Takes note of what the others have already sent. If it says that the group has ended, they learn the reason from this
 * process before it leaves, after which it could not pass anything on. */
static void hear_all(trek_control *control)
{
    for (int i = 0; i < control->links_count && control->started && !atomic_load(&control->ended); i++)
        if (control->links[i].fd >= 0)
            trek_control_serve_link(control, &control->links[i]);
}

void trek_control_leave(trek_control *control, bool exited)
{
    hear_all(control);
    trek_control_say_goodbye(control, exited);
    atomic_store(&control->stopping, true);
}

/* Reports that this process ends by exit(), which its peers then can tell from a crash. */
static void say_exit(void)
{
    if (trek_forked || !trek_lock_try(&alive()->lock))
        return;
    for (int i = 0; i < ALIVE; i++) {
        trek_control *control = alive()->controls[i];
        if (control)
            stay_behind(control);
        if (!control || atomic_load(&control->ended) || !trek_lock_acquire_within(&control->lock, 1000000000))
            continue;
        if (control->started && !atomic_load(&control->stopping))
            trek_control_leave(control, true);
        atomic_store(&control->stopping, true);
        trek_lock_release(&control->lock);
    }
    trek_lock_release(&alive()->lock);
}

static void remember(trek_control *control)
{
    trek_lock_acquire(&alive()->lock);
    if (!alive()->watches_exit)
        alive()->watches_exit = trek_process_at_exit(say_exit);
    for (int i = 0; i < ALIVE; i++) {
        if (alive()->controls[i])
            continue;
        alive()->controls[i] = control;
        break;
    }
    trek_lock_release(&alive()->lock);
}

static void forget(const trek_control *control)
{
    trek_lock_acquire(&alive()->lock);
    for (int i = 0; i < ALIVE; i++)
        if (alive()->controls[i] == control)
            alive()->controls[i] = NULL;
    trek_lock_release(&alive()->lock);
}

/* --- making and freeing ------------------------------------------------------------------------------------------- */

void trek_control_destroy(trek_control *control)
{
    for (int i = 0; control->links && i < control->links_count; i++)
        trek_control_link_close(&control->links[i]);
    for (int i = 0; i < TREK_CONTROL_ARRIVALS; i++)
        trek_control_link_close(&control->arrivals[i]);
    trek_control_link_close(&control->up);
    for (int k = 0; k < TREK_TREE_FAN; k++)
        trek_control_link_close(&control->below[k]);
    trek_socket_close(control->listen_fd);
    trek_bell_free(control->bell);
    if (control->has_condition && !trek_forked)
        trek_condition_destroy(&control->changed);
    if (control->has_lock && !trek_forked)
        trek_lock_destroy(&control->lock);
    for (int s = 0; s < 2; s++) {
        trek_free(control->slots[s].has);
        trek_free(control->slots[s].data);
    }
    trek_free(control->polled);
    trek_free(control->links);
    trek_free(control->peers);
    trek_free(control);
}

static bool make_locks(trek_control *control)
{
    control->has_lock = trek_lock_init(&control->lock);
    control->has_condition = trek_condition_init(&control->changed);
    control->bell = trek_bell_new();
    return control->has_lock && control->has_condition && control->bell >= 0;
}

static void fill_in(trek_control *control, const trek_control_opts *opts)
{
    control->process = opts->process;
    control->processes = opts->processes;
    control->port = opts->port;
    control->join_s = opts->join_s > 0 ? opts->join_s : opts->join_s == TREK_OFF ? 1e9 : 300;
    control->deaths = opts->deaths - 1;
    control->flat = opts->flat > 0 ? opts->flat : TREK_TREE_FAN;
    control->patient = opts->patient;
    control->died = opts->died;
    control->died_arg = opts->arg;
    control->generation = (int32_t)opts->generation;
    snprintf(control->address, sizeof control->address, "%s", opts->address ? opts->address : "127.0.0.1");
    snprintf(control->token, sizeof control->token, "%s", opts->token ? opts->token : "");
    trek_hmac_key_of(control->token, strlen(control->token), &control->secret);
    trek_socket_where(control->address, control->port, control->where, sizeof control->where);
    trek_process_machine(control->machine, sizeof control->machine);
    control->bell = control->listen_fd = -1;
    control->same_machine = true;
    control->links_count = control->process == 0 ? control->processes : 1;
    for (int i = 0; i < TREK_CONTROL_ARRIVALS; i++)
        control->arrivals[i] = (trek_control_link){ .fd = -1, .process = -1 };
    control->up = (trek_control_link){ .fd = -1 };
    for (int k = 0; k < TREK_TREE_FAN; k++)
        control->below[k] = (trek_control_link){ .fd = -1 };
    trek_control_take_place(control, 0);
    int64_t now = trek_now_ns();
    control->join_until_ns = now + (int64_t)(control->join_s * 1e9);
    control->phase = "starting";
}

trek_control *trek_control_make(const trek_control_opts *opts)
{
    char why[160];
    trek_control *control = trek_calloc(1, sizeof *control);
    if (!control)
        return NULL;
    fill_in(control, opts);
    size_t n = (size_t)opts->processes, links = (size_t)control->links_count;
    control->peers = trek_calloc(n, sizeof *control->peers);
    control->links = trek_calloc(links, sizeof *control->links);
    control->polled = trek_calloc(3 + links + TREK_TREE_FAN + TREK_CONTROL_ARRIVALS, sizeof *control->polled);
    control->slots[0].has = trek_calloc(n, sizeof(bool));
    control->slots[1].has = trek_calloc(n, sizeof(bool));
    bool good = control->peers && control->links && control->polled && control->slots[0].has && control->slots[1].has;
    for (size_t i = 0; control->links && i < links; i++)
        control->links[i] = (trek_control_link){ .fd = -1, .process = (int)i };
    if (!good || !make_locks(control)) {
        int error = good ? errno : ENOMEM;
        trek_fail(trek_process_is_limit(error) ? TREK_ERR_COMM : TREK_ERR_MEMORY,
                  "comm_init: the control channel of %d processes: %s", opts->processes,
                  trek_process_why(error, why, sizeof why));
        trek_control_destroy(control);
        return NULL;
    }
    trek_control_peer_state *own = &control->peers[control->process];
    own->joined = true;
    own->pid = trek_process_id();
    trek_process_host(own->host, sizeof own->host);
    snprintf(own->report.phase, sizeof own->report.phase, "%s", control->phase);
    own->report.phase_ns = own->report.call_ns = trek_now_ns();
    return control;
}

/* --- joining ------------------------------------------------------------------------------------------------------ */

static trek_status check_opts(const trek_control_opts *opts)
{
    if (!opts)
        return trek_fail_missing("control_join", "options");
    if (opts->processes < 2 || opts->processes > TREK_MAX_RANKS)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: %d processes; must be 2 to %d", opts->processes, TREK_MAX_RANKS);
    if (opts->process < 0 || opts->process >= opts->processes)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: process %d of %d; must be below the number of processes", opts->process,
                         opts->processes);
    if (opts->port < 1 || opts->port > 65535)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: .port: %d of process 0; must be 1 to 65535", opts->port);
    if (opts->token && strlen(opts->token) >= TREK_CONTROL_TOKEN)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: TREK_TOKEN: %zu bytes; must be at most %d", strlen(opts->token),
                         TREK_CONTROL_TOKEN - 1);
    if (opts->address && strlen(opts->address) >= 256)
        return trek_fail(TREK_ERR_ARGUMENT, "comm_init: .address: %zu bytes; too many for an address", strlen(opts->address));
    return TREK_OK;
}

static bool find_death(const trek_control *control, char *text, size_t size)
{
    return control->died ? control->died(control->died_arg, text, size) : trek_launch_death(control->deaths, text, size);
}

/* Returns whether an expected process has ended and so will not come. What it had sent before is read first, because
 * it may have joined. */
static bool somebody_died(void *arg)
{
    trek_control *control = arg;
    char text[200];
    if (control->death_ns == 0 && find_death(control, text, sizeof text))
        control->death_ns = trek_now_ns();
    return control->death_ns && trek_now_ns() - control->death_ns > DEATH_NS;
}

static char *say_death(const trek_control *control, char *text, size_t size)
{
    char death[200] = "a process ended";
    find_death(control, death, sizeof death);
    snprintf(text, size, "%s before all had joined", death);
    return text;
}

/* Makes a process that may get children listen for them, at the address by which it reaches process 0. If it cannot,
 * there will be no tree. */
static void listen_for_children(trek_control *control, int fd)
{
    trek_control_peer_state *own = &control->peers[control->process];
    int fan = trek_tree_fan(control->processes, control->flat);
    if (fan == 0 || control->listen_fd >= 0 || trek_tree_place(control->processes, fan, control->process).children == 0 ||
        !trek_socket_own_address(fd, own->address, sizeof own->address) ||
        trek_socket_listen(own->address, 0, &control->listen_fd, &own->port) == TREK_OK)
        return;
    own->port = 0;
    trek_log_message(TREK_LOG_LEVEL_INFO, "control: %s", trek_error());
    trek_error_clear();
}

/* Connects to process 0 and says who this process is. The thread handles the answer. */
static trek_status greet(trek_control *control)
{
    char why[256];
    int fd = trek_socket_connect(control->address, control->port, control->join_until_ns, somebody_died, control, why,
                                 sizeof why);
    if (fd < 0 && somebody_died(control))
        return trek_fail(TREK_ERR_PEER, "comm_init: %s", say_death(control, why, sizeof why));
    if (fd < 0)
        return trek_fail(TREK_ERR_TIMEOUT, "comm_init: process %d did not reach process 0 at %s within %g s: %s",
                         control->process, control->where, control->join_s, why);
    trek_lock_acquire(&control->lock);
    listen_for_children(control, fd);
    control->links[0] = (trek_control_link){ .fd = fd, .process = 0 };
    control->peers[0].joined = true;
    control->peers[0].report.heard_ns = control->peers[0].report.phase_ns = control->peers[0].report.call_ns = trek_now_ns();
    const trek_control_peer_state *own = &control->peers[control->process];
    trek_control_say_hello(control, &control->links[0], own->address, own->port);
    trek_lock_release(&control->lock);
    return TREK_OK;
}

/* Greets again because process 0, or another program at its address, was not ready for this group. Called with the
 * lock held; releases it meanwhile. */
static void greet_again(trek_control *control, int64_t *pause_ns)
{
    char message[TREK_ERROR_SIZE];
    trek_status status = TREK_OK;
    control->later = false;
    trek_lock_release(&control->lock);
    trek_sleep_ns(*pause_ns);
    *pause_ns = 2 * *pause_ns < LAST_AGAIN_NS ? 2 * *pause_ns : LAST_AGAIN_NS;
    if (trek_now_ns() > control->join_until_ns)
        trek_fail(TREK_ERR_TIMEOUT,
                  "comm_init: process %d waited %g s at %s: process 0 has not left the group that it was in before",
                  control->process, control->join_s, control->where);
    else
        greet(control);
    trek_error_take(&status, message);
    trek_error_clear();
    trek_lock_acquire(&control->lock);
    if (status != TREK_OK)
        trek_control_end_locked(control, status, message);
    else
        trek_control_wake(control); /* the thread must watch the connection */
}

/* The thread of process 0 watches the time. The others wait a little longer, so that it can tell them who is missing. */
static bool wait_for_start(trek_control *control)
{
    char message[TREK_WHERE + 256];
    trek_lock_acquire(&control->lock);
    int64_t until = control->join_until_ns + (control->process == 0 ? 0 : 2 * (int64_t)TREK_CONTROL_BEAT_NS), pause = AGAIN_NS;
    while (!control->started && !atomic_load(&control->ended)) {
        int64_t now = trek_now_ns(), next = now + LOOK_NS < until || control->process == 0 ? now + LOOK_NS : until;
        if (!control->later)
            trek_condition_wait_until(&control->changed, &control->lock, next);
        if (control->started || atomic_load(&control->ended))
            break;
        if (somebody_died(control)) {
            trek_control_end_locked(control, TREK_ERR_PEER, say_death(control, message, sizeof message));
        } else if (control->process != 0 && trek_now_ns() >= until) {
            snprintf(message, sizeof message,
                     "process %d waited %g s at %s for the others, and process 0 did not say who is missing", control->process,
                     control->join_s, control->where);
            trek_control_end_locked(control, TREK_ERR_TIMEOUT, message);
        } else if (control->later) {
            greet_again(control, &pause);
        }
    }
    bool started = control->started; /* the group may have ended again; the first call reports that */
    trek_lock_release(&control->lock);
    return started;
}

/* A process has died while all were joining. Process 0 tells those who are about to come, which would otherwise look
 * for it in vain. */
static void tell_late_comers(trek_control *control)
{
    trek_lock_acquire(&control->lock);
    int64_t until = control->ended_ns + LATE_NS;
    bool tells = control->process == 0 && control->status == TREK_ERR_PEER && !control->died; /* otherwise they notice it */
    for (int p = 1; p < control->processes && tells; p++)
        while (!control->peers[p].joined && trek_now_ns() < until)
            trek_condition_wait_until(&control->changed, &control->lock, until);
    trek_lock_release(&control->lock);
}

/* Process 0 listens; the others tell it who they are. */
static trek_status come(trek_control *control)
{
    if (control->process != 0)
        return greet(control);
    return control->listen_fd >= 0 ? TREK_OK
                                   : trek_socket_listen(control->address, control->port, &control->listen_fd, &control->port);
}

trek_control_opts trek_control_like(const trek_control *control)
{
    return (trek_control_opts){ .address = control->address, .port = control->port, .token = control->token,
                                .join_s = control->join_s, .flat = control->flat };
}

trek_control *trek_control_join(const trek_control_opts *opts)
{
    if (trek_forked) {
        trek_fail_forked();
        return NULL;
    }
    trek_control *control = check_opts(opts) == TREK_OK ? trek_control_make(opts) : NULL;
    if (!control) {
        trek_socket_close(opts ? opts->listening - 1 : -1);
        return NULL;
    }
    control->listen_fd = opts->listening - 1;
    trek_status status = come(control);
    if (status == TREK_OK && trek_thread_begin(&control->thread, trek_control_serve, control) != 0)
        status = trek_fail(TREK_ERR_STATE, "comm_init: the thread of the control channel cannot start");
    if (status != TREK_OK) {
        trek_control_destroy(control);
        return NULL;
    }
    control->has_thread = true;
    remember(control);
    bool started = wait_for_start(control);
    if (started && trek_control_climb(control) == TREK_OK)
        return control;
    if (!started)
        tell_late_comers(control);
    trek_control_fail(control);
    trek_control_free(&control);
    return NULL;
}

void trek_control_free(trek_control **place)
{
    trek_control *control = place ? *place : NULL;
    if (!control)
        return;
    *place = NULL;
    if (!trek_forked) {
        stay_behind(control);
        forget(control);
        trek_lock_acquire(&control->lock);
        if (!atomic_load(&control->stopping))
            trek_control_leave(control, false);
        trek_lock_release(&control->lock);
        trek_control_wake(control);
        if (control->has_thread)
            trek_thread_join(control->thread);
    }
    trek_control_destroy(control);
}

int trek_control_take_listening(trek_control *control)
{
    trek_lock_acquire(&control->lock);
    bool first = control->process == 0 && control->generation == 0 && control->started;
    int taken = first ? control->listen_fd + 1 : 0;
    control->listen_fd = first ? -1 : control->listen_fd;
    trek_lock_release(&control->lock);
    trek_control_wake(control);
    return taken;
}

int trek_control_parent(const trek_control *control) { return control->node.parent; }
int trek_control_process(const trek_control *control) { return control->process; }
int trek_control_processes(const trek_control *control) { return control->processes; }
bool trek_control_same_machine(const trek_control *control) { return control->same_machine; }
const char *trek_control_machine(const trek_control *control) { return control->machine; }

bool trek_control_own_address(trek_control *control, char *text, size_t size)
{
    bool found = false;
    trek_lock_acquire(&control->lock);
    for (int i = control->links_count - 1; i >= 0 && !found; i--) /* the last process is the most likely to be on another
                                                                   * machine */
        found = control->links[i].fd >= 0 && trek_socket_own_address(control->links[i].fd, text, size);
    trek_lock_release(&control->lock);
    return found;
}
