/* SPDX-License-Identifier: Apache-2.0 */
/* A run's checkpoints: FOLDER/step-NUMBER.safetensors, of which the last ones stay, and best.safetensors. */
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "distributed/checkpoint_internal.h"
#include "distributed/replica/agreement.h"
#include "distributed/run/run_internal.h"
#include "distributed/step/stepper_ranks.h"

enum { MORE_BEST, MORE_SINCE_BEST, MORE_NUMBERS };

/* The step of a file's name; -1: it is another file. */
static int64_t step_of(const char *name)
{
    long long step;
    int used = 0;
    return sscanf(name, "step-%lld.safetensors%n", &step, &used) == 1 && used > 0 && name[used] == '\0' && step >= 0 ? step : -1;
}

static char *path_of(const char *folder, const char *name)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    char *path = trek_calloc(1, size);
    if (path)
        snprintf(path, size, "%s/%s", folder, name);
    return path;
}

/* Steps of the folder's files, a new array, descending; *n 0: none, or there is no such folder. */
static int64_t *list_steps(const char *folder, int *n)
{
    int64_t *steps = NULL;
    int room = 0;
    DIR *list = opendir(folder);
    *n = 0;
    for (struct dirent *entry; list && (entry = readdir(list));) {
        int64_t step = step_of(entry->d_name);
        if (step < 0)
            continue;
        if (trek_array_grow(&steps, &room, *n + 1, sizeof *steps) != TREK_OK)
            break;
        int at = (*n)++;
        for (; at > 0 && steps[at - 1] < step; at--)
            steps[at] = steps[at - 1];
        steps[at] = step;
    }
    if (list)
        closedir(list);
    return steps;
}

static void remove_old(const trek_run_opts *o)
{
    int n, keep = o->keep_last ? o->keep_last : 1;
    int64_t *steps = o->keep_last == TREK_OFF ? NULL : list_steps(o->checkpoint_folder, &n);
    for (int k = keep; steps && k < n; k++) {
        char name[64], *path;
        snprintf(name, sizeof name, "step-%012lld.safetensors", (long long)steps[k]);
        path = path_of(o->checkpoint_folder, name);
        if (path)
            unlink(path);
        trek_free(path);
    }
    trek_free(steps);
}

static trek_status make_folder(const char *folder)
{
    struct stat there;
    if (mkdir(folder, 0777) == 0 || (errno == EEXIST && stat(folder, &there) == 0 && S_ISDIR(there.st_mode)))
        return TREK_OK;
    return trek_fail(TREK_ERR_IO, "trek_trainer_run: the checkpoints' folder %s cannot be made: %s", folder, strerror(errno));
}

static trek_status write_file(trek_run *run, const char *name, bool last_ones, int64_t epoch)
{
    const trek_run_opts *o = &run->opts;
    const ranks_stepper *s = trek_graph_ranks(run->graph);
    bool writes = !s || !s->comm || s->process == 0;
    double more[MORE_NUMBERS] = { [MORE_BEST] = run->best, [MORE_SINCE_BEST] = (double)run->since_best };
    char *path = path_of(o->checkpoint_folder, name);
    trek_status status = path ? TREK_OK : trek_error_status();
    if (status == TREK_OK && writes)
        status = make_folder(o->checkpoint_folder);
    /* a collective, in which one that has failed says so */
    trek_status saved = path ? trek_checkpoint_save_more(run->graph, run->train, path, more, MORE_NUMBERS) : status;
    status = status == TREK_OK ? saved : status;
    if (status == TREK_OK && writes && last_ones)
        remove_old(o);
    if (status == TREK_OK && writes && o->on_checkpoint)
        status = o->on_checkpoint(run->graph, epoch, path, o->arg);
    if (status != TREK_OK)
        trek_fail_after(status, "trek_trainer_run: on_checkpoint failed");
    trek_free(path);
    return status == TREK_OK ? trek_error_status() : status;
}

trek_status trek_run_save(trek_run *run, const trek_epoch_metrics *m, bool last)
{
    const trek_run_opts *o = &run->opts;
    int64_t every = o->checkpoint_every ? o->checkpoint_every : 1;
    char name[64];
    if (!o->checkpoint_folder)
        return TREK_OK;
    trek_status status = TREK_OK;
    snprintf(name, sizeof name, "step-%012lld.safetensors", (long long)trek_graph_steps(run->graph));
    if (last || (m->epoch + 1) % every == 0)
        status = write_file(run, name, true, m->epoch);
    if (status == TREK_OK && m->best && o->keep_best)
        status = write_file(run, "best.safetensors", false, m->epoch);
    return status;
}

/* The file that is meant, a new string; "": there is none yet. */
static char *file_to_resume(const char *from)
{
    struct stat there;
    if (stat(from, &there) != 0 && errno == ENOENT)
        return trek_calloc(1, 1);
    if (stat(from, &there) == 0 && !S_ISDIR(there.st_mode))
        return trek_strdup(from);
    int n;
    int64_t *steps = list_steps(from, &n);
    char name[64] = "";
    if (n > 0)
        snprintf(name, sizeof name, "step-%012lld.safetensors", (long long)steps[0]);
    trek_free(steps);
    return n > 0 ? path_of(from, name) : trek_calloc(1, 1);
}

/* All processes go on from the same step, though each looks in its own file system. */
static trek_status agree_on_file(const trek_run *run, const char *path, trek_status own)
{
    const ranks_stepper *s = trek_graph_ranks(run->graph);
    const char *name = path ? strrchr(path, '/') : NULL;
    trek_text text = { 0 };
    if (!s || !s->comm)
        return own;
    trek_text_format(&text, "the checkpoint to go on from\t%s\n", name ? name + 1 : path && *path ? path : "none");
    trek_status status = trek_agree(s->comm, own, "trek_trainer_run: .resume_from", &text);
    trek_text_clear(&text);
    return status;
}

trek_status trek_run_resume(trek_run *run)
{
    double more[MORE_NUMBERS];
    bool found = false;
    int64_t batch;
    if (!run->opts.resume_from)
        return TREK_OK;
    char *path = file_to_resume(run->opts.resume_from);
    trek_status status = agree_on_file(run, path, path ? TREK_OK : trek_error_status());
    if (status == TREK_OK && *path) {
        status = trek_checkpoint_load_more(run->graph, run->train, path, more, MORE_NUMBERS, &found);
        trek_loader_position(run->train, &run->first_epoch, &batch);
        run->resumed = batch < trek_loader_batches(run->train);
        run->first_epoch += !run->resumed;
    }
    if (status == TREK_OK && found) {
        run->best = more[MORE_BEST];
        run->since_best = (int64_t)more[MORE_SINCE_BEST];
    }
    trek_free(path);
    return status;
}
