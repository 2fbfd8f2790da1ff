/* SPDX-License-Identifier: Apache-2.0 */
/* Which run and which process a monitor belongs to. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "distributed/control/launch.h"
#include "monitor/monitor_internal.h"
#include "tensor/environment.h"

enum { INTERVAL_NS = 250000000 };

static const char *setting(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* All processes of a job have to find the same name independently. trek-run sets TREK_RUN_NAME. */
static const char *default_name(const trek_monitor *m, const char *job, char *name, size_t size)
{
    time_t now = time(NULL);
    struct tm local;
    char text[32] = "";
    if (m->processes > 1) {
        snprintf(name, size, "%s-job-%s", m->program, job);
        return name;
    }
    if (localtime_r(&now, &local))
        strftime(text, sizeof text, "%Y%m%d-%H%M%S", &local);
    snprintf(name, size, "%s-%s", m->program, text);
    return name;
}

static trek_status name_all(trek_monitor *m, const trek_monitor_opts *o, const char *job)
{
    char own[512];
    const char *folder = o->folder ? o->folder : setting("TREK_LOG_DIR") ? setting("TREK_LOG_DIR") : "runs";
    const char *name = o->name ? o->name : setting("TREK_RUN_NAME");
    m->program = trek_strdup(program_invocation_short_name);
    if (!m->program)
        return TREK_ERR_MEMORY;
    m->run = trek_strdup(name && *name ? name : default_name(m, job, own, sizeof own));
    for (char *c = m->run; c && *c; c++)
        if (!strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-", *c) || (c == m->run && *c == '.'))
            *c = '_';
    m->path = m->run ? trek_format("%s/%.200s", folder, m->run) : NULL;
    m->file_path = m->path ? trek_format("%s/process-%d.jsonl", m->path, m->process) : NULL;
    m->wish_path = m->path ? trek_format("%s/want-histograms", m->path) : NULL;
    return m->wish_path && m->file_path ? TREK_OK : TREK_ERR_MEMORY;
}

void trek_monitor_drop(trek_monitor *m)
{
    if (m->file >= 0)
        close(m->file);
    if (m->events >= 0)
        close(m->events);
    trek_monitor_profile_end(&m->profile);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->ending);
    trek_free(m->path);
    trek_free(m->file_path);
    trek_free(m->wish_path);
    trek_free(m->run);
    trek_free(m->program);
    trek_free(m->shares);
    trek_free(m);
}

trek_monitor *trek_monitor_make(const trek_monitor_opts *o)
{
    trek_launch launch;
    if (o->profile_every < TREK_OFF)
        return trek_fail_null(TREK_ERR_ARGUMENT, "monitor_new: .profile_every: %d; must be TREK_OFF, 0 or more",
                              o->profile_every);
    if (!(o->interval_s >= 0) && o->interval_s != TREK_ZERO)
        return trek_fail_null(TREK_ERR_ARGUMENT, "monitor_new: .interval_s: %g; must be finite and not negative", o->interval_s);
    trek_status status = trek_launch_find(NULL, &launch);
    trek_monitor *m = status == TREK_OK ? trek_calloc(1, sizeof *m) : NULL;
    struct timespec now;
    if (!m)
        return NULL;
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->ending, &monotonic);
    pthread_condattr_destroy(&monotonic);
    clock_gettime(CLOCK_REALTIME, &now);
    m->started = (double)now.tv_sec + (double)(now.tv_nsec / 1000) * 1e-6;
    m->file = m->events = -1;
    m->tensorboard = o->tensorboard || trek_environment_number("TREK_TENSORBOARD", 0, 1, 0) == 1;
    m->process = launch.process;
    m->processes = launch.processes;
    m->epochs = o->epochs;
    m->interval_ns = o->interval_s == TREK_ZERO ? 0 : o->interval_s > 0 ? (int64_t)(o->interval_s * 1e9) : INTERVAL_NS;
    m->epoch = m->batch = m->batches = m->anchor = m->window = -1;
    m->step = -1;
    m->drift = m->loss = (double)NAN;
    m->local_ranks = m->ranks = 1;
    trek_monitor_profile_init(&m->profile, o->profile_every);
    status = name_all(m, o, launch.job);
    if (status == TREK_OK)
        return m;
    trek_monitor_drop(m);
    return NULL;
}
